"""Gradient kickoff, and the fine-tuning that follows it.

CoGraM does not follow gradients. Before fine-tuning, a few epochs at two to three times the
learning rate restart the optimisation (Lenz, section Gradient-Kickoff).
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from mergelib.problems.calling import Transform
from mergelib.problems.checks import check_choice, check_steps, check_tasks
from mergelib.procedures.common import Adapted, labelled
from mergelib.procedures.multitask import descend
from mergelib.statedict import StateDict, check_compatible
from mergelib.training import make_optimiser

OPTIMISERS = ("adam", "sgd")


def kickoff(
    state: StateDict, *, learning_rate: float, factor: float = 2.5, epochs: int = 8, **options: Any
) -> Adapted:
    """Gradient kickoff: `fine_tune` for fewer than ten epochs at ``factor`` times its rate.

    Arguments are as in `fine_tune`; ``learning_rate`` is that of the fine-tuning that follows, and
    the paper uses a factor of 2 to 3 and 8 epochs. Ten epochs or more are a ``ValueError``.
    """
    if epochs >= 10:
        raise ValueError(f"epochs is {epochs}, but a kickoff has fewer than 10; use fine_tune")
    _check_positive("factor", factor)
    _check_positive("learning_rate", learning_rate)
    return fine_tune(state, learning_rate=factor * learning_rate, epochs=epochs, **options)


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
    """Train a network on the labelled data of all tasks at a constant learning rate.

    Each epoch uses every example once, in as many steps as the largest task needs; every task is
    spread evenly over them. A step descends the mean of its tasks' losses.

    Args:
        state: initial weights; not changed.
        model: the architecture, run in training mode, so BatchNorm statistics are updated.
        data: task to (inputs, labels). Integer labels are classes (cross-entropy, nats), floating
            ones are the head's targets (mean squared error).
        heads: task to the module that turns the model's output into logits; not trained.
        learning_rate: positive.
        epochs: number of epochs; 20 in the paper.
        optimiser: ``"adam"`` (Kingma & Ba, 2015) or ``"sgd"``.
        momentum: μ of SGD, 0 <= μ < 1.
        clip: largest gradient norm of a step; None for no clipping.
        batch_size: at most this many examples of each task per step.
        seed: seed of the batches and of the model's random draws.
        transform: from a batch of inputs to the model's, e.g. `Task.transform`.

    Returns:
        The trained state, and ``history`` with one row per epoch: each task's mean loss over its
        examples, measured just before each step.

    Raises:
        ValueError: the state does not fit, labels, a head or inputs are missing, a setting is
            invalid, or a loss is not finite. The message names the task.
    """
    import pandas as pd

    check_compatible(model.state_dict(), {"state": state}, "the model")
    check_tasks(data, heads, "head")
    pairs = labelled(data, "training")
    check_steps(0, batch_size)
    _check_positive("learning_rate", learning_rate)
    if epochs < 0:
        raise ValueError(f"epochs is {epochs}, expected at least 0")
    check_choice("optimiser", optimiser, OPTIMISERS)
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is {momentum}, expected 0 <= momentum < 1")
    if clip is not None:
        _check_positive("clip", clip)

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
    """Yield the batches of one epoch, task to rows; small tasks miss some steps."""
    steps = math.ceil(max(sizes.values()) / batch_size)
    shuffled = {
        task: torch.randperm(size, generator=generator).tensor_split(steps)
        for task, size in sizes.items()
    }
    for step in range(steps):
        yield {task: parts[step] for task, parts in shuffled.items() if len(parts[step])}


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}, expected a positive number")
