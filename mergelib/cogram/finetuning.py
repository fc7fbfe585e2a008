"""Gradient kickoff, and the fine-tuning that follows it.

CoGraM does not follow gradients. Before fine-tuning, a few epochs at two to three times the
learning rate restart the optimisation (Lenz, section Gradient-Kickoff).
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from mergelib.messages.kinds import BelowOne, Count, Positive, Size, annotations_of, check_fits
from mergelib.problems.calling import Transform
from mergelib.problems.checks import check_labelled, check_tasks
from mergelib.problems.examples import read_examples
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted
from mergelib.procedures.multitask import descend
from mergelib.statedict import StateDict, check_compatible
from mergelib.training import make_optimiser


def kickoff(
    state: StateDict,
    *,
    learning_rate: Positive,
    factor: Positive = 2.5,
    epochs: int = 8,
    **options: Any,
) -> Adapted:
    """Gradient kickoff: `fine_tune` for fewer than ten epochs at ``factor`` times its rate.

    Arguments are as in `fine_tune`; ``learning_rate`` is that of the fine-tuning that follows, and
    the paper uses a factor of 2 to 3 and 8 epochs. Ten epochs or more are a ``ValueError``.
    """
    check_fits(annotations_of(kickoff), locals())
    if epochs >= 10:
        raise ValueError(f"epochs is {epochs}, but a kickoff has fewer than 10; use fine_tune")
    return fine_tune(state, learning_rate=factor * learning_rate, epochs=epochs, **options)


def fine_tune(
    state: StateDict,
    *,
    model: nn.Module,
    data: Mapping[str, Any],
    heads: Mapping[str, nn.Module],
    learning_rate: Positive,
    epochs: Count = 20,
    optimiser: str = "adam",
    momentum: BelowOne = 0.9,
    clip: Positive | None = None,
    batch_size: Size = 64,
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
        optimiser: ``"adam"`` (Kingma & Ba, 2015), ``"adamw"`` or ``"sgd"``.
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

    check_fits(annotations_of(fine_tune), locals())
    check_compatible(model.state_dict(), {"state": state}, "the model")
    check_tasks(data, heads, "head")
    examples = {task: read_examples(task, part) for task, part in data.items()}
    check_labelled("training", examples)

    def optimise(network: nn.Module) -> tuple[Optimizer, None]:
        return make_optimiser(network, optimiser, learning_rate, momentum=momentum), None

    sizes = {task: len(part) for task, part in examples.items()}
    steps = math.ceil(max(sizes.values()) / batch_size)
    generator = Generator().manual_seed(seed)
    rows: list[dict[str, Tensor]] = []
    for _ in range(epochs):
        orders = {task: torch.randperm(size, generator=generator) for task, size in sizes.items()}
        parts = {task: order.tensor_split(steps) for task, order in orders.items()}
        rows += [{t: p[step] for t, p in parts.items() if len(p[step])} for step in range(steps)]
    problem = Problem({"state": state}, state, model, examples, heads, transform)
    trained, losses = descend(problem, rows, optimise, seed=seed, clip=clip)
    shares = (
        {task: loss * len(batch[task]) / sizes[task] for task, loss in step.items()}
        for batch, step in zip(rows, losses, strict=True)
    )
    means = pd.DataFrame(shares, columns=list(sizes)).groupby(lambda step: step // steps).sum()
    return Adapted(trained, history=means.rename_axis("epoch").reset_index())
