"""Fine-tuning: how an expert comes from a backbone under a frozen head, and the recipe for it."""

import copy
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from tqdm.auto import tqdm

from mergelib.testbed.tasks import Loss, Split, Transform, cross_entropy


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


def make_optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser over all parameters; norms, biases and tables are not decayed."""
    decayed = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    plain = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=0.9)
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, fused=True)


def warmup_cosine(optimiser: torch.optim.Optimizer, steps: int, warmup: float) -> LambdaLR:
    """Linear warm-up over a share of the steps, then a cosine to zero."""
    first = max(1, round(warmup * steps))

    def factor(step: int) -> float:
        if step < first:
            return (step + 1) / first
        return 0.5 * (1 + math.cos(math.pi * (step - first) / max(1, steps - first)))

    return LambdaLR(optimiser, factor)


def fine_tune(
    model: nn.Module,
    head: nn.Module,
    split: Split,
    recipe: Recipe,
    *,
    transform: Transform,
    loss: Loss = cross_entropy,
    seed: int = 0,
    progress: tqdm | None = None,
) -> dict[str, Tensor]:
    """Fine-tune a copy of ``model`` under a frozen head; returns the copy's state dict.

    Args:
        model: the pretrained backbone; it is left as it is.
        head: maps features to logits; its parameters get no gradient.
        split: training inputs, as stored, and labels.
        recipe: optimiser, rate, length.
        transform: from a batch of inputs to what the model takes.
        loss: from the head's outputs and the labels to what is lowered.
        seed: draws the order of the examples.
        progress: a bar to advance by one a step.

    Raises:
        FloatingPointError: if the loss stops being finite.
    """
    device = next(model.parameters()).device
    model = copy.deepcopy(model).train()
    head = copy.deepcopy(head).requires_grad_(False)
    inputs, labels = split.inputs.to(device), split.labels.to(device)
    generator = torch.Generator().manual_seed(seed)
    steps = recipe.steps(len(labels))
    optimiser = make_optimiser(model, recipe)
    schedule = warmup_cosine(optimiser, steps, recipe.warmup)
    for _ in range(recipe.epochs):
        order = torch.randperm(len(labels), generator=generator).to(device)
        for batch in order.split(recipe.batch_size):
            value = loss(head(model(transform(inputs[batch]))), labels[batch])
            if not torch.isfinite(value):
                raise FloatingPointError(
                    f"the loss became {value.item()} at learning rate {recipe.learning_rate}"
                )
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            schedule.step()
            if progress is not None:
                progress.update()
    return {key: value.detach().clone() for key, value in model.state_dict().items()}
