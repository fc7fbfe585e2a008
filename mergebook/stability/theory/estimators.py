"""Estimates of the constants in bounds, on examples that one has.

Li et al. (2026, Assumptions 1 to 3) assume L, σ_t and ζ_t at *every* point, so each is a lower
estimate. Squared mean gradients are too large by noise: E ‖ĝ‖² = ‖g‖² + σ²/n; the mean of ⟨ĝ_a,
ĝ_b⟩ over a ≠ b of m disjoint parts has no bias.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mergebook.stability.theory.task_loss import TaskLoss
from mergelib.statedict import flatten


class Estimate(NamedTuple):
    """A number estimated from a sample."""

    value: float  # without bias
    plug_in: float  # what putting sample means in for expectations gives


TOLERANCE = 0.01  # relative, of two products in a row


def smoothness(
    losses: Sequence[TaskLoss], *, steps: int = 50, generator: torch.Generator | None = None
) -> float:
    """The largest |eigenvalue| of the Hessian of the tasks' mean loss at θ, by power iteration."""
    like, hessians = flatten(losses[0].point), [loss.hessian() for loss in losses]
    direction, value = torch.randn(like.shape, generator=generator).to(like), 0.0
    for _ in range(steps):
        direction = direction / direction.norm().clamp(min=torch.finfo(like.dtype).tiny)
        direction = torch.stack([hessian(direction) for hessian in hessians]).mean(0)
        before, value = value, float(direction.norm())
        if value <= (1 + TOLERANCE) * before:
            break
    return value


def example_smoothness(
    loss: TaskLoss, *, steps: int = 20, generator: torch.Generator | None = None
) -> Tensor:
    """`smoothness` of the loss of every single example, ``(n,)``, each by that many products."""
    like, found = flatten(loss.point), []
    for start in range(0, len(loss), loss.batch_size):
        rows = slice(start, min(start + loss.batch_size, len(loss)))
        size = (rows.stop - rows.start, len(like))
        hessians, directions = loss.example_hessians(rows), torch.randn(size, generator=generator)
        directions = directions.to(like)
        for _ in range(steps):
            lengths = directions.norm(dim=1, keepdim=True)
            directions = directions / lengths.clamp(min=torch.finfo(like.dtype).tiny)
            directions = hessians(directions)
        found.append(directions.norm(dim=1))
    return torch.cat(found)


class Noise(NamedTuple):
    """How far gradients of single examples are from their mean."""

    square: float  # the mean squared distance σ_t² of Assumption 2, without bias
    largest: float  # the largest distance, not squared, which stability asks for


def gradient_noise(loss: TaskLoss) -> Noise:
    """σ_t at θ: batches of b of n have E ‖g − ∇f_t‖² = σ² (n − b)/(b n), without replacement."""
    centre = loss.gradient()
    rows = [(batch - centre).square().sum(1) for batch in loss.example_gradients()]
    squares = torch.cat(rows).double()
    return Noise(float(squares.sum() / (len(loss) - 1)), float(squares.max().sqrt()))


def gradient_products(losses: Sequence[TaskLoss], parts: int = 4) -> Tensor:
    """⟨ĝ_ta, ĝ_sb⟩ of all tasks' gradients on disjoint parts of their examples, (T, m, T, m)."""
    if parts < 2 or parts > min(len(loss) for loss in losses):
        raise ValueError(f"parts is {parts}, expected 2 up to the examples of a task")
    gradients = []
    for loss in losses:
        size = len(loss) // parts
        cuts = [slice(i * size, (i + 1) * size) for i in range(parts)]
        gradients += [loss[rows].gradient() for rows in cuts]
    stacked = torch.stack(gradients)
    return (stacked @ stacked.T).double().view(len(losses), parts, len(losses), parts)


def squared_length(products: Tensor, combination: Tensor) -> Estimate:
    """‖Σ_t c_t ∇f_t‖² without bias."""
    return _off_diagonal(_combined(products, combination))


def heterogeneity(products: Tensor) -> list[Estimate]:
    """ζ_t² = ‖∇f_t − ∇f‖² of every task, f being the mean of these tasks (Assumption 3)."""
    each = torch.eye(len(products), dtype=products.dtype) - 1 / len(products)
    return [squared_length(products, row) for row in each]


def dissimilarity(products: Tensor, weights: Tensor) -> Estimate:
    """κ² = Σ_t ω_t ‖∇f_t − ∇f̃‖² around f̃ = Σ_t ω_t f_t (Lemma 4): at most Σ_t ω_t ζ_t²."""
    each = torch.eye(len(weights), dtype=products.dtype) - weights
    squares = torch.stack([_combined(products, row) for row in each])
    return _off_diagonal((weights[:, None, None] * squares).sum(0))


def _combined(products: Tensor, combination: Tensor) -> Tensor:
    """⟨ĝ_a, ĝ_b⟩ of one combination of the tasks' gradients, ``(m, m)``."""
    factors = combination.to(products)
    return torch.einsum("t,tasb,s->ab", factors, products, factors)


def _off_diagonal(table: Tensor) -> Estimate:
    count, total = len(table), float(table.sum())
    apart = total - float(table.trace())
    return Estimate(apart / (count * (count - 1)), total / count**2)


def pl_constant(values: Tensor, squares: Tensor, smoothness: float) -> float:
    """C of Assumption 5, f − f(θ̂) ≤ C ‖∇f‖², for f(θ̂) = 0: the largest ratio, at least 1/(2L)."""
    return max(float((values / squares).max()), 1 / (2 * smoothness))
