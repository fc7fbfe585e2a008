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
from mergelib.messages import kinds
from mergelib.training import make_optimiser, shuffled, train, warmup_cosine


@dataclass(frozen=True)
class Recipe:
    """How an expert is fine-tuned; too large a rate takes experts out of their common basin."""

    optimiser: Literal["adamw", "sgd"] = "adamw"  # SGD has momentum 0.9
    learning_rate: kinds.Positive = 4e-4  # the peak, after warming up and before a cosine to zero
    epochs: kinds.Size = 5
    batch_size: kinds.Size = 64
    weight_decay: kinds.NotNegative = 0.01  # decoupled for AdamW, L2 for SGD
    warmup: kinds.Share = 0.1  # of the steps, spent warming up
    shots: kinds.Size = 3  # examples per class behind the frozen head
    head_scale: kinds.Positive = 20.0  # inverse temperature of the cosine head

    def __post_init__(self) -> None:
        kinds.check_fits(kinds.annotations_of(Recipe), vars(self))

    def steps(self, examples: int) -> int:
        return self.epochs * math.ceil(examples / self.batch_size)

    def optimiser_of(self, model: nn.Module) -> Optimizer:
        fused = True if self.optimiser == "adamw" else None
        rate, decay = self.learning_rate, self.weight_decay
        return make_optimiser(model, self.optimiser, rate, weight_decay=decay, fused=fused)

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
    """The state dict of a copy of ``model`` that is fine-tuned under a frozen head."""
    network = copy.deepcopy(model).train()
    generator = torch.Generator().manual_seed(seed)
    optimiser = recipe.optimiser_of(network)
    train(
        network,
        shuffled(len(split), recipe.batch_size, generator, recipe.steps(len(split))),
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
    """State dicts of a copy of ``model`` by step, fine-tuned at a constant rate up to the largest.

    `pull` is μ of the penalty μ/2 ‖θ − θ_0‖². Each is what a training that ends there would give.
    """
    network = copy.deepcopy(model).train()
    kept: dict[int, dict[str, Tensor]] = {}

    def keep(step: int, _: float) -> None:
        if step + 1 in steps:
            kept[step + 1] = _copied(network)

    plain = loss_of_rows(network, head, split, transform, loss)

    def penalised(rows: Tensor) -> Tensor:
        pairs = zip(network.parameters(), model.parameters(), strict=True)
        squares = torch.stack([(p - start).square().sum() for p, start in pairs])
        return plain(rows) + 0.5 * pull * squares.sum()

    generator = torch.Generator().manual_seed(seed)
    train(
        network,
        shuffled(len(split), batch_size, generator, steps=max(steps)),
        penalised if pull else plain,
        make_optimiser(
            network, optimiser, learning_rate, momentum=momentum, fused=optimiser == "adam" or None
        ),
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
