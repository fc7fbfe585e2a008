"""Variance of task vectors over tasks, and what masks make of it (Li et al., 2026, Corollary 1).

Task vectors are rows of a table ``(T, n)``; v_j is the mean over t of (Δ_tj − Δ̄_j)². The paper
takes it for ζ², and says that masks lower it; chapter 41 proves what each of them does.
"""

import torch
from torch import Tensor

from mergelib.numerics.selection import magnitude_thresholds
from mergelib.rules.sparse import trim_below


def task_variance(rows: Tensor) -> Tensor:
    """The variance v_j, ``(n,)``: what the proof of Corollary 1 puts for ζ²."""
    return rows.var(0, correction=0)


def relative_variance(rows: Tensor) -> float:
    """Σ_j v_j over the mean ‖Δ_t‖², which is 1 − ‖Δ̄‖² / mean ‖Δ_t‖²: in 0..1; NaN for zeros."""
    squares = rows.square().sum(1, dtype=torch.float64)
    return float(1 - rows.mean(0).square().sum(dtype=torch.float64) / squares.mean())


def reduction(before: Tensor, after: Tensor) -> Tensor:
    """δ, ``(T, n)``: by how much each entry comes closer to its mean, squared, as in Eq. 10."""
    return (before - before.mean(0)).square() - (after - after.mean(0)).square()


def trim_rows(rows: Tensor, density: float) -> Tensor:
    """Every row with its largest entries alone, a share ``density`` of them, in (0, 1]."""
    bounds = magnitude_thresholds(lambda: [(list(rows), None)], density)
    return torch.stack([trim_below(row, bound) for row, bound in zip(rows, bounds, strict=True)])


def elect_rows(rows: Tensor, *, minority: bool = False) -> Tensor:
    """Every entry with the sign of the sum over rows, or of the ``minority``; zero elsewhere."""
    sign = rows.sum(0).sign()
    return rows * (rows * (-sign if minority else sign) > 0)


def dropped_variance(rows: Tensor, drop_rate: float) -> Tensor:
    """The mean of v over DARE's draws, v_j + p/(1−p) (1 − 1/T) mean Δ_tj²: never below v."""
    noise = (1 - 1 / len(rows)) * rows.square().mean(0)
    return task_variance(rows) + drop_rate / (1 - drop_rate) * noise
