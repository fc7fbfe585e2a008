"""Fine-tuning: how an expert comes from a backbone under a frozen head, and the recipe for it."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mergelib.evaluation.tasks import Loss, Split, Transform, cross_entropy
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


def fine_tune(
    model: nn.Module,
    head: nn.Module,
    split: Split,
    recipe: Recipe,
    *,
    transform: Transform,
    loss: Loss = cross_entropy,
    radius: float = 0.0,
    seed: int = 0,
    on_step: Callable[[int, float], object] | None = None,
) -> dict[str, Tensor]:
    """Fine-tune a copy of ``model`` under a frozen head; returns the copy's state dict.

    Args:
        model: the pretrained backbone; it is left as it is.
        head: maps features to logits; its parameters get no gradient.
        split: training inputs, as stored, and labels.
        recipe: optimiser, rate, length.
        transform: from a batch of inputs to what the model takes.
        loss: from the head's outputs and the labels to what is lowered.
        radius: as for `mergelib.training.train`.
        seed: draws the order of the examples.
        on_step: as for `mergelib.training.train`.

    Raises:
        FloatingPointError: if the loss stops being finite.
    """
    network = copy.deepcopy(model).train()
    generator = torch.Generator().manual_seed(seed)
    optimiser = recipe.optimiser_of(network)
    train(
        network,
        shuffled(len(split), recipe.batch_size, generator, epochs=recipe.epochs),
        loss_of_rows(network, head, split, transform, loss),
        optimiser,
        schedule=recipe.schedule_of(optimiser, len(split)),
        radius=radius,
        on_step=on_step,
    )
    return _copied(network)


def checkpoints(
    model: nn.Module,
    head: nn.Module,
    split: Split,
    steps: Sequence[int],
    *,
    optimiser: str,
    learning_rate: float,
    batch_size: int,
    transform: Transform,
    loss: Loss = cross_entropy,
    momentum: float = 0.0,
    pull: float = 0.0,
    seed: int = 0,
) -> dict[int, dict[str, Tensor]]:
    """Fine-tune a copy of ``model`` at a constant rate, and keep its state dict on the way.

    Without a schedule or decay, each is what a training that ends there would give.

    Args:
        model: the pretrained backbone; it is left as it is.
        head: maps features to logits; its parameters get no gradient.
        split: training inputs, as stored, and labels.
        steps: numbers of steps to keep; the largest ends the training.
        optimiser: ``"adam"`` or ``"sgd"``.
        learning_rate: of every step.
        batch_size: examples of a step.
        transform: from a batch of inputs to what the model takes.
        loss: from the head's outputs and the labels to what is lowered.
        momentum: of SGD.
        pull: μ of the penalty μ/2 ‖θ − θ_0‖².
        seed: draws the order of the examples.

    Raises:
        ValueError: an unknown optimiser.
        FloatingPointError: if the loss stops being finite.

    Returns:
        Number of steps to the state dict after it.
    """
    network = copy.deepcopy(model).train()
    kept: dict[int, dict[str, Tensor]] = {}

    def keep(step: int, _: float) -> None:
        if step + 1 in steps:
            kept[step + 1] = _copied(network)

    def penalty(moved: nn.Module) -> Tensor:
        pairs = zip(moved.parameters(), model.parameters(), strict=True)
        return 0.5 * pull * torch.stack([(p - start).square().sum() for p, start in pairs]).sum()

    generator = torch.Generator().manual_seed(seed)
    train(
        network,
        shuffled(len(split), batch_size, generator, steps=max(steps)),
        loss_of_rows(network, head, split, transform, loss),
        make_optimiser(
            network, optimiser, learning_rate, momentum=momentum, fused=optimiser == "adam" or None
        ),
        penalty=penalty if pull else None,
        on_step=keep,
    )
    return kept


def loss_of_rows(
    network: nn.Module, head: nn.Module, split: Split, transform: Transform, loss: Loss
) -> Callable[[Tensor], Tensor]:
    """The loss of a network under a frozen copy of a head, from the numbers of a batch's rows."""
    device = next(network.parameters()).device
    frozen = copy.deepcopy(head).requires_grad_(False)
    inputs, labels = split.inputs.to(device), split.labels.to(device)

    def batch_loss(rows: Tensor) -> Tensor:
        batch = rows.to(device)
        return loss(frozen(network(transform(inputs[batch]))), labels[batch])

    return batch_loss


def _copied(network: nn.Module) -> dict[str, Tensor]:
    return {key: value.detach().clone() for key, value in network.state_dict().items()}
