"""Features of a backbone, and the frozen heads that tasks put on them.

A head is a cosine classifier of the mean *pretrained* features of a few examples per class, as
CLIP's text heads are (Ilharco et al., 2023): "pretrained" is a weak but honest classifier.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.suites.models import Head
from mergebook.suites.training import Recipe
from mergelib.evaluation.tasks import Split, Suite, Transform
from mergelib.problems import calling


def features(model: nn.Module, inputs: Tensor, transform: Transform) -> Tensor:
    """A model's outputs for inputs ``(N, ...)`` as they are stored, ``(N, width)`` for images."""
    return calling.features(model, model.state_dict(), inputs, transform=transform)


def few_shot_head(
    model: nn.Module,
    split: Split,
    classes: int,
    *,
    transform: Transform,
    shots: int,
    scale: float,
    seed: int,
) -> Head:
    """A cosine head of ``shots`` random examples' mean features; ValueError: a class has none."""
    device = next(model.parameters()).device
    order = torch.randperm(len(split.labels), generator=torch.Generator().manual_seed(seed))
    chosen = []
    for label in range(classes):
        members = order[split.labels.cpu()[order] == label][:shots]
        if len(members) == 0:
            raise ValueError(f"class {label} has no example to build its head from")
        chosen.append(members)
    rows = torch.cat(chosen)
    x = F.normalize(features(model, split.inputs[rows].to(device), transform), dim=1)
    labels = split.labels[rows].to(device)
    weight = torch.zeros(classes, x.shape[1], device=device).index_add_(0, labels, x)
    return Head(weight, scale).to(device)


def few_shot_heads(
    backbone: nn.Module, suite: Suite, recipe: Recipe, seed: int
) -> dict[str, nn.Module]:
    """The frozen few-shot head of every task, from pretrained features (see `few_shot_head`)."""
    how: dict[str, Any] = {"shots": recipe.shots, "scale": recipe.head_scale, "seed": seed}
    return {
        name: few_shot_head(
            backbone, task.train, len(task.class_names), transform=task.transform, **how
        )
        for name, task in suite.tasks.items()
    }


def own_outputs(
    backbone: nn.Module, suite: Suite, recipe: Recipe, seed: int
) -> dict[str, nn.Module]:
    """Heads that pass on what they get, for a model that predicts by itself (a language model)."""
    return {name: nn.Identity() for name in suite.tasks}
