"""Gradient kickoff, and the fine-tuning that it precedes.

CoGraM moves weights by comparing losses, not along gradients. Before a merged network is
fine-tuned, a few epochs at a raised rate set it in motion (Lenz, section Gradient-Kickoff): fewer
than ten, by Adam or by SGD with momentum μ, at two to three times the rate of the fine-tuning that
follows, with its gradient clipped if wanted.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from mergelib.problems.checks import check_steps, check_tasks
from mergelib.procedures.common import Adapted, Transform, labelled
from mergelib.procedures.multitask import descend
from mergelib.statedict import StateDict, check_compatible
from mergelib.training import make_optimiser

OPTIMISERS = ("adam", "sgd")


def kickoff(
    state: StateDict,
    *,
    model: nn.Module,
    data: Mapping[str, Any],
    heads: Mapping[str, nn.Module],
    learning_rate: float,
    factor: float = 2.5,
    epochs: int = 8,
    **options: Any,
) -> Adapted:
    """Gradient kickoff: `fine_tune` for fewer than ten epochs, at ``factor`` times its rate.

    Args:
        state: the merged network; left as it is.
        model: the architecture, run in training mode.
        data: task to a pair of inputs and labels.
        heads: task to what turns the model's output into logits; not trained.
        learning_rate: of the fine-tuning that follows.
        factor: what the rate is raised by; 2 to 3 in the paper.
        epochs: 0 to 9; 8 in the paper.
        **options: ``optimiser`` and all that follow, as in `fine_tune`.

    Returns:
        As `fine_tune`.

    Raises:
        ValueError: ten epochs or more, a factor that is not positive, and what `fine_tune` refuses.
    """
    if epochs >= 10:
        raise ValueError(f"epochs is {epochs}: a kickoff has fewer than 10, use fine_tune for more")
    _check_positive("factor", factor)
    _check_positive("learning_rate", learning_rate)
    return fine_tune(
        state,
        model=model,
        data=data,
        heads=heads,
        learning_rate=factor * learning_rate,
        epochs=epochs,
        **options,
    )


def fine_tune(
    state: StateDict,
    *,
    model: nn.Module,
    data: Mapping[str, Any],
    heads: Mapping[str, nn.Module],
    learning_rate: float,
    epochs: int = 20,
    optimiser: str = "adam",
    momentum: float = 0.9,
    clip: float | None = None,
    batch_size: int = 64,
    seed: int = 0,
    transform: Transform | None = None,
) -> Adapted:
    """Train a network on the labelled data of all tasks at a constant rate.

    An epoch takes every example of every task once. It has as many steps as the largest task needs,
    and each task's examples are spread evenly over them; a step descends the mean of its tasks'
    losses.

    Args:
        state: where training starts; left as it is.
        model: the architecture, run in training mode, so that BatchNorm's statistics move along.
        data: task to a pair of inputs and labels: integer ones are classes (cross-entropy, nats),
            floating ones what the head should give (mean squared error).
        heads: task to what turns the model's output into logits; not trained.
        learning_rate: of every step.
        epochs: how many; 20 in the paper.
        optimiser: ``"adam"`` (Kingma & Ba, 2015) or ``"sgd"``.
        momentum: μ of SGD, 0 <= μ < 1.
        clip: the largest Euclidean norm of a step's gradient; None leaves it as it is.
        batch_size: at most so many examples of each task in a step.
        seed: of the batches, and of what the model draws in training.
        transform: from a batch of inputs to the model's, e.g. `Task.transform` of the testbed.

    Returns:
        The trained state, and ``history`` with a row an epoch: each task's mean loss over its
        examples, each taken just before the step that it is part of.

    Raises:
        ValueError: a state that does not fit the model; data without labels; a task without head or
            inputs; an unknown optimiser; a number out of range; a loss that is not finite, naming
            the task.
    """
    import pandas as pd

    check_compatible(model.state_dict(), {"state": state}, "the model")
    check_tasks(data, heads, "head")
    pairs = labelled(data, "training")
    check_steps(0, batch_size)
    _check(learning_rate, epochs, optimiser, momentum, clip)

    def optimise(network: nn.Module) -> tuple[Optimizer, None]:
        return make_optimiser(network, optimiser, learning_rate, momentum=momentum), None

    sizes = {task: len(labels) for task, (_, labels) in pairs.items()}
    generator = Generator().manual_seed(seed)
    parts = [
        (epoch, rows) for epoch in range(epochs) for rows in _epoch(sizes, batch_size, generator)
    ]
    trained, losses = descend(
        state,
        model=model,
        heads=heads,
        data=pairs,
        rows=[rows for _, rows in parts],
        optimise=optimise,
        seed=seed,
        clip=clip,
        transform=transform,
    )
    means = [dict.fromkeys(sizes, 0.0) for _ in range(epochs)]
    for (epoch, rows), step in zip(parts, losses, strict=True):
        for task, loss in step.items():
            means[epoch][task] += loss * len(rows[task]) / sizes[task]
    history = pd.DataFrame(means, columns=list(sizes)).rename_axis("epoch").reset_index()
    return Adapted(trained, history=history)


def _epoch(
    sizes: Mapping[str, int], batch_size: int, generator: Generator
) -> Iterator[dict[str, Tensor]]:
    """Batches of one epoch: task to rows; a task with fewer rows than steps is not in them all."""
    steps = math.ceil(max(sizes.values()) / batch_size)
    shuffled = {
        task: torch.randperm(size, generator=generator).tensor_split(steps)
        for task, size in sizes.items()
    }
    for step in range(steps):
        yield {task: parts[step] for task, parts in shuffled.items() if len(parts[step])}


def _check(
    learning_rate: float, epochs: int, optimiser: str, momentum: float, clip: float | None
) -> None:
    _check_positive("learning_rate", learning_rate)
    if epochs < 0:
        raise ValueError(f"epochs is {epochs}, expected at least 0")
    if optimiser not in OPTIMISERS:
        raise ValueError(f"unknown optimiser {optimiser!r}; known: {', '.join(OPTIMISERS)}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is {momentum}, expected 0 <= momentum < 1")
    if clip is not None:
        _check_positive("clip", clip)


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}, expected a positive number")
