"""Variance of task vectors over tasks, and what masks make of it (Li et al., 2026, Corollary 1).

Task vectors Δ_t = θ_t − θ_0 are the rows of a table, ``(T, n)``, with merging weights w_t (the
paper's λ_t) that are not negative and sum to 1. With the mean Δ̄ = Σ_t w_t Δ_t, the variance at
coordinate j is v_j = Σ_t w_t (Δ_tj − Δ̄_j)². The paper takes it for the heterogeneity ζ² of the
losses, and says that masks lower it; chapter 41 of the book proves what each of them does.
"""

import torch
from torch import Tensor

from mergebook.stability.theory.steps import check_weights
from mergelib.numerics.selection import magnitude_thresholds
from mergelib.rules.sparse import trim_below


def task_variance(rows: Tensor, weights: Tensor | None = None) -> Tensor:
    """The variance v_j, ``(n,)``: what the proof of Corollary 1 puts for ζ²."""
    weights = _weights(rows, weights)
    return weights @ (rows - weights @ rows).square()


def relative_variance(rows: Tensor, weights: Tensor | None = None) -> float:
    """Σ_j v_j over Σ_t w_t ‖Δ_t‖², which is 1 − ‖Δ̄‖² / Σ_t w_t ‖Δ_t‖²: in 0..1, without a scale.

    0 for equal rows, 1 − 1/T for perpendicular ones of equal length and weight, 1 where the mean is
    zero, NaN where all rows are.
    """
    weights = _weights(rows, weights)
    squares = rows.square().sum(1, dtype=torch.float64)
    mean = (weights @ rows).square().sum(dtype=torch.float64)
    return float(1 - mean / (weights.double() @ squares))


def reduction(before: Tensor, after: Tensor, weights: Tensor | None = None) -> Tensor:
    """δ, ``(T, n)``: by how much each entry comes closer to its mean, squared, as in Eq. 10.

    Its mean over t by the weights is what `task_variance` falls by. The paper sums it over the
    entries that the mask sets to zero.
    """
    weights = _weights(before, weights)
    return (before - weights @ before).square() - (after - weights @ after).square()


def trim_rows(rows: Tensor, density: float) -> Tensor:
    """Every row with its largest entries alone, a share ``density`` of them, in (0, 1]."""
    bounds = magnitude_thresholds(lambda: [(list(rows), None)], density)
    return torch.stack([trim_below(row, bound) for row, bound in zip(rows, bounds, strict=True)])


def elect_rows(rows: Tensor, weights: Tensor | None = None, *, minority: bool = False) -> Tensor:
    """Every entry with the sign of the weighted sum over rows; all others are zero.

    With ``minority`` the entries of the other sign are kept instead. Where the sum is zero nothing
    is kept, as in `mergelib.rules.sparse.elect_and_reduce`.
    """
    sign = (_weights(rows, weights) @ rows).sign()
    return rows * (rows * (-sign if minority else sign) > 0)


def dropped_variance(rows: Tensor, drop_rate: float, weights: Tensor | None = None) -> Tensor:
    """The mean of v over DARE's draws, v_j + p/(1−p) Σ_t w_t (1 − w_t) Δ_tj²: never below v."""
    weights = _weights(rows, weights)
    noise = (weights * (1 - weights)) @ rows.square()
    return task_variance(rows, weights) + drop_rate / (1 - drop_rate) * noise


def _weights(rows: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return torch.full((len(rows),), 1 / len(rows), dtype=rows.dtype, device=rows.device)
    check_weights(weights)
    return weights.to(rows)
