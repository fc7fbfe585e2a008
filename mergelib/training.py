"""The one training loop, with its optimisers, schedules and batches.

Fine-tuning, pretraining, multi-task training and CoGraM's kickoff differ only in their batches and
losses. `shuffled` sets the number of steps; without a schedule the rate is constant.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

Batch = TypeVar("Batch")
TINY = 1e-12  # beside the length of a gradient


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let PyTorch draw from this seed on the CPU inside the block only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def train(
    model: nn.Module,
    batches: Iterable[Batch],
    loss: Callable[[Batch], Tensor],
    optimiser: Optimizer,
    *,
    schedule: LRScheduler | None = None,
    radius: float = 0.0,
    clip: float | None = None,
    on_step: Callable[[int, float], object] | None = None,
) -> list[float]:
    """Train a model in place, with one optimiser step per batch.

    Args:
        model: whose parameters are trained; the caller sets its mode.
        batches: one per step.
        loss: maps a batch to a scalar with a graph.
        optimiser: over the parameters to train.
        schedule: of the learning rate, advanced once per step.
        radius: ρ of sharpness-aware training (Foret et al., 2021): the gradient is taken at θ + ρ
            g/‖g‖, with g the gradient at θ. This needs two passes; 0 is plain training.
        clip: the largest Euclidean norm of a step's whole gradient.
        on_step: called after each step with its number, from 0, and its loss.

    Returns:
        The loss of every step, before the step.

    Raises:
        FloatingPointError: if the loss is not finite; the step is not taken.
        ValueError: if the radius is negative.
    """
    if not radius >= 0:
        raise ValueError(f"radius is {radius}, expected at least 0")

    losses: list[float] = []
    for step, batch in enumerate(batches):
        value = loss(batch)
        if not torch.isfinite(value):
            rate = optimiser.param_groups[0]["lr"]
            raise FloatingPointError(
                f"the loss became {value.item()} in step {step}, at learning rate {rate:g}"
            )
        optimiser.zero_grad()
        value.backward()
        if radius:
            _look_around(model, partial(loss, batch), radius)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
        if schedule is not None:
            schedule.step()
        losses.append(value.item())
        if on_step is not None:
            on_step(step, losses[-1])
    return losses


def _look_around(model: nn.Module, loss: Callable[[], Tensor], radius: float) -> None:
    """Replace the gradient by that at the steepest point within the radius."""
    moving = [parameter for parameter in model.parameters() if parameter.grad is not None]
    start = [parameter.detach().clone() for parameter in moving]
    length = nn.utils.get_total_norm([p.grad for p in moving if p.grad is not None])
    with torch.no_grad():
        for parameter in moving:
            assert parameter.grad is not None
            parameter.add_(parameter.grad, alpha=float(radius / (length + TINY)))
            parameter.grad = None
    loss().backward()
    with torch.no_grad():
        for parameter, value in zip(moving, start, strict=True):
            parameter.copy_(value)


def shuffled(examples: int, batch_size: int, generator: Generator, steps: int) -> Iterator[Tensor]:
    """Yield this many batches of row numbers (int64); every epoch has an order of its own.

    The last batch of an epoch may be smaller. The generator draws each order when its epoch begins.
    """
    while steps > 0:
        order = torch.randperm(examples, generator=generator, device=generator.device)
        for batch in order.split(batch_size)[:steps]:
            steps -= 1
            yield batch


def make_optimiser(
    model: nn.Module,
    name: str,
    learning_rate: float,
    *,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    fused: bool | None = None,
) -> Optimizer:
    """Return an optimiser over all parameters of a model that require gradients.

    Args:
        model: may be a stack of several.
        name: ``"adamw"``, ``"adam"`` or ``"sgd"``; ValueError otherwise.
        learning_rate: the peak, if a schedule follows.
        weight_decay: of parameters with two or more dimensions, so not of norms and biases;
            decoupled for AdamW, L2 for the others.
        momentum: of SGD.
        fused: implementation of Adam and AdamW; None lets PyTorch choose.
    """
    moving = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in moving if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in moving if p.dim() <= 1], "weight_decay": 0.0},
    ]
    kinds: dict[str, Callable[..., Optimizer]] = {
        "adamw": partial(torch.optim.AdamW, fused=fused),
        "adam": partial(torch.optim.Adam, fused=fused),
        "sgd": partial(torch.optim.SGD, momentum=momentum),
    }
    if name not in kinds:
        raise ValueError(f"unknown optimiser {name!r}; known: {', '.join(kinds)}")
    return kinds[name](groups, lr=learning_rate)


def warmup_cosine(optimiser: Optimizer, steps: int, warmup: float) -> LambdaLR:
    """Return a linear warm-up over a fraction of the steps (0..1), then a cosine to zero."""
    first = max(1, round(warmup * steps))

    def factor(step: int) -> float:
        if step < first:
            return (step + 1) / first
        return 0.5 * (1 + math.cos(math.pi * (step - first) / max(1, steps - first)))

    return LambdaLR(optimiser, factor)
