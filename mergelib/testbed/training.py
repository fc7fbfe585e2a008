"""Fine-tuning, and the frozen few-shot heads it trains against.

Only backbones are trained and merged. A task's head is a cosine classifier made of the mean
*pretrained* features of a few examples per class and then frozen, as CLIP's text heads are
(Ilharco et al., 2023). So "pretrained" is a weak but honest classifier, and the gap to the
fine-tuned expert is what merging has to close.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mergelib.testbed.models import Head, normalise
from mergelib.testbed.tasks import Split
from mergelib.training import make_optimiser, shuffled, train, warmup_cosine


@dataclass(frozen=True)
class Recipe:
    """How an expert is fine-tuned.

    Attributes:
        optimiser: ``"adamw"`` or ``"sgd"`` (with momentum 0.9).
        learning_rate: peak rate; warmed up over ``warmup`` of the steps, then cosine to zero. Too
            large a rate takes the experts out of their common basin.
        epochs: passes over the training split.
        batch_size: pictures a step.
        weight_decay: decoupled for AdamW, L2 for SGD.
        warmup: share of the steps spent warming up, 0..1.
        shots: examples per class behind the frozen head.
        head_scale: inverse temperature of the cosine head.
    """

    optimiser: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = 4e-4
    epochs: int = 5
    batch_size: int = 64
    weight_decay: float = 0.01
    warmup: float = 0.1
    shots: int = 3
    head_scale: float = 20.0

    def __post_init__(self) -> None:
        if self.optimiser not in ("adamw", "sgd"):
            raise ValueError(f"optimiser is {self.optimiser!r}, expected 'adamw' or 'sgd'")
        for name in ("learning_rate", "epochs", "batch_size", "shots", "head_scale"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected a positive number")

    def steps(self, examples: int) -> int:
        """How many steps of the optimiser that is, with so many training examples."""
        return self.epochs * math.ceil(examples / self.batch_size)

    def optimiser_of(self, model: nn.Module) -> Optimizer:
        """The recipe's optimiser over a model's parameters."""
        fused = True if self.optimiser == "adamw" else None
        return make_optimiser(
            model,
            self.optimiser,
            self.learning_rate,
            weight_decay=self.weight_decay,
            fused=fused,
        )

    def schedule_of(self, optimiser: Optimizer, examples: int) -> LRScheduler:
        """The rate over as many steps as that many examples take."""
        return warmup_cosine(optimiser, self.steps(examples), self.warmup)


def usual_recipe(suite: str) -> Recipe:
    """How the experts of a suite are made, by its name, unless another recipe is given."""
    if suite.startswith("text"):  # a language has more to learn than a head's classes
        return Recipe(learning_rate=1e-3, epochs=6, batch_size=32)
    return Recipe()


@torch.no_grad()
def features(model: nn.Module, images: Tensor, batch_size: int = 500) -> Tensor:
    """Features ``(N, width)`` of uint8 pictures ``(N, 3, 32, 32)`` on the model's device."""
    model.eval()
    return torch.cat([model(normalise(batch)) for batch in images.split(batch_size)])


def few_shot_head(
    model: nn.Module, split: Split, classes: int, *, shots: int, scale: float, seed: int
) -> Head:
    """A cosine head from the mean features of ``shots`` random examples of each class.

    Raises:
        ValueError: if a class has no example in ``split``.
    """
    device = next(model.parameters()).device
    order = torch.randperm(len(split.labels), generator=torch.Generator().manual_seed(seed))
    chosen = []
    for label in range(classes):
        members = order[split.labels.cpu()[order] == label][:shots]
        if len(members) == 0:
            raise ValueError(f"class {label} has no example to build its head from")
        chosen.append(members)
    picked = torch.cat(chosen)
    x = F.normalize(features(model, split.inputs[picked].to(device)), dim=1)
    labels = split.labels[picked].to(device)
    weight = torch.zeros(classes, x.shape[1], device=device).index_add_(0, labels, x)
    return Head(weight, scale).to(device)


def fine_tune(
    model: nn.Module,
    head: nn.Module,
    split: Split,
    recipe: Recipe,
    *,
    seed: int = 0,
    on_step: Callable[[int, float], object] | None = None,
) -> dict[str, Tensor]:
    """Fine-tune a copy of ``model`` under a frozen head; returns the copy's state dict.

    Args:
        model: the pretrained backbone; it is left as it is.
        head: maps features to logits; its parameters get no gradient.
        split: training inputs (uint8) and labels.
        recipe: optimiser, rate, length.
        seed: draws the order of the examples.
        on_step: as for `mergelib.training.train`.

    Raises:
        FloatingPointError: if the loss stops being finite.
    """
    device = next(model.parameters()).device
    network = copy.deepcopy(model).train()
    frozen = copy.deepcopy(head).requires_grad_(False)
    inputs, labels = split.inputs.to(device), split.labels.to(device)

    def loss(rows: Tensor) -> Tensor:
        batch = rows.to(device)
        logits = frozen(network(normalise(inputs[batch])))
        return F.cross_entropy(logits.flatten(0, -2), labels[batch].flatten())

    generator = torch.Generator().manual_seed(seed)
    optimiser = recipe.optimiser_of(network)
    train(
        network,
        shuffled(len(labels), recipe.batch_size, generator, epochs=recipe.epochs),
        loss,
        optimiser,
        schedule=recipe.schedule_of(optimiser, len(labels)),
        on_step=on_step,
    )
    return {key: value.detach().clone() for key, value in network.state_dict().items()}
