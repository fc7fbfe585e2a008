"""Training from a start, what it is measured by, and what it costs (Anonymous, 2025, section 4).

A start is judged by the steps that it takes to a fixed loss. Several networks can be trained as
one model: then losses have the shape ``(M,)``, and every parameter has its M networks along the
first axis, so that neither gradients nor Adam's steps mix them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement, pairwise
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode

from mergelib.messages.brief import Brief
from mergelib.training import train

Batch = TypeVar("Batch")
Account = Literal["A", "B", "C"]


@dataclass(frozen=True, repr=False)
class Curve(Brief):
    """A training, evaluated at E points: of one network, or of M side by side.

    Attributes:
        steps: of each evaluation, the first at 0.
        loss: ``(E,)`` or ``(E, M)``, in nats.
        accuracy: likewise, 0..1.
        gradient: likewise, the Euclidean norm of this loss's gradient.
    """

    steps: tuple[int, ...]
    loss: Tensor
    accuracy: Tensor
    gradient: Tensor


def retrain(
    model: nn.Module,
    batches: Iterable[Batch],
    loss: Callable[[Batch], Tensor],
    evaluate: Callable[[], tuple[Tensor, Tensor]],
    optimiser: Optimizer,
    *,
    every: int = 1,
) -> Curve:
    """Train a model in place from where it stands, and evaluate it on the way.

    Args:
        model: at its start.
        batches: one for each step.
        loss: as `mergelib.training.train` takes it; of several networks the sum.
        evaluate: loss and accuracy of the model as it is, on data that stay the same: scalars or
            ``(M,)``, the loss with a graph.
        optimiser: fresh, over the model's parameters.
        every: steps between evaluations; before the first step there is one, too.
    """
    rows: list[tuple[Tensor, ...]] = []
    steps: list[int] = []

    def record(step: int, _: float = 0.0) -> None:
        if (step + 1) % every == 0:
            steps.append(step + 1)
            value, accuracy = evaluate()
            rows.append((value.detach(), accuracy.detach(), _gradient_norm(model, value)))

    record(-1)
    train(model, batches, loss, optimiser, on_step=record)
    losses, accuracies, gradients = (torch.stack(column) for column in zip(*rows, strict=True))
    return Curve(tuple(steps), losses, accuracies, gradients)


def _gradient_norm(model: nn.Module, loss: Tensor) -> Tensor:
    parts = torch.autograd.grad(loss.sum(), [p for p in model.parameters() if p.requires_grad])
    squares = [part.square().flatten(loss.dim()).sum(-1) for part in parts]
    return torch.stack(squares).sum(0).sqrt()


def steps_to(curve: Curve, goal: float, *, patience: int = 3) -> Tensor:
    """Steps to a loss: to the first of some evaluations in a row that lie below it.

    Args:
        curve: of one network or of M.
        goal: nats, fixed beforehand.
        patience: how many evaluations in a row.

    Returns:
        Int64, ``()`` or ``(M,)``; the budget, which is the last step, where that never happens.
    """
    return steps_below(curve.steps, curve.loss, goal, patience=patience)


def steps_below(steps: Sequence[int], loss: Tensor, goal: float, *, patience: int = 3) -> Tensor:
    """`steps_to`, of losses ``(E,)`` or ``(E, M)`` that were read at E steps."""
    runs = (loss < goal).unfold(0, patience, 1).all(-1)
    first = torch.tensor(steps)[runs.int().argmax(0)]
    return torch.where(runs.any(0), first, steps[-1])


@dataclass(frozen=True)
class Costs:
    """What a way to train costs, in FLOPs.

    Attributes:
        step: of retraining.
        added: whatever the start takes besides its sources: transformation, divergences, choice
            of weights.
        sources: training the sources.
    """

    step: float
    added: float = 0.0
    sources: float = 0.0

    def of(self, steps: Tensor, account: Account) -> Tensor:
        """FLOPs of some steps: A counts these alone, B what is added, C the sources as well."""
        extra = {"A": 0.0, "B": self.added, "C": self.added + self.sources}[account]
        return self.step * steps + extra


ENOUGH = 0.8  # of runs that reach a goal: with fewer, a speed-up is no more than a bound


def speed_up(
    rival: Tensor, rival_costs: Costs, own: Tensor, costs: Costs, account: Account, *, least: int
) -> Tensor:
    """log₂ of the rival's FLOPs to a loss over one's own: 1 is twice as fast.

    Args:
        rival: steps, as `steps_to` gives them.
        rival_costs: of the rival.
        own: steps, shape as the rival's or one that goes with it.
        costs: one's own.
        account: see `Costs.of`.
        least: steps that count at least, as many as lie between two evaluations: a start below
            the goal has taken none.
    """
    sides = [(rival_costs, rival), (costs, own)]
    flops = [cost.of(steps.double().clamp(min=least), account) for cost, steps in sides]
    return (flops[0] / flops[1]).log2()


def count_flops(function: Callable[[], object]) -> int:
    """FLOPs of a call by PyTorch's counter, which counts the products of matrices alone."""
    with FlopCounterMode(display=False) as counter:
        function()
    return int(counter.get_total_flops())


def loop_flops(run: Callable[[int], object], steps: int) -> int:
    """FLOPs of a loop of equal steps, told by those of one step and of two.

    Args:
        run: takes the number of steps; what it does before and after them counts once.
        steps: how many, at least 1.
    """
    once, twice = (count_flops(partial(run, count)) for count in (1, 2))
    return once + (steps - 1) * (twice - once)


def perceptron_flops(widths: Sequence[int], examples: int) -> int:
    """FLOPs of a training step of an MLP, as `count_flops` counts them, without counting.

    Every weight takes part in three products for each example: forwards, for its own gradient, and
    for its input's, which the first layer does not need.
    """
    sizes = [first * second for first, second in pairwise(widths)]
    return 2 * examples * (3 * sum(sizes) - sizes[0])


def mmd_flops(sizes: Sequence[int], features: int) -> int:
    """FLOPs of a table of MMD² by the same convention: an inner product for every pair of rows.

    Args:
        sizes: rows of each sample.
        features: of a row.
    """
    pairs = sum(first * second for first, second in combinations_with_replacement(sizes, 2))
    return 2 * features * pairs
