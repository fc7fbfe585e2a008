"""Stability measured: train again with one example replaced, and see how far the model moves.

Definition 2 of Li et al. (2026), for one task: s = (1/n) Σ_j E ‖A(D) − A(D^(j))‖². In D^(j) the
j-th example is drawn again, and the training A keeps all else: start, order, head.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mergebook.lab.statistics import interval
from mergebook.stability.theory.estimators import Estimate
from mergelib.problems.examples import Examples, join

Train = Callable[[Examples], Tensor]


def replaced(examples: Examples, row: int, fresh: Examples) -> Examples:
    """The examples with another one, ``fresh`` of length 1, in a row."""
    return join([examples[:row], fresh, examples[row + 1 :]])


def draw_rows(seen: Tensor, pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows to replace, and what each of them counts in the mean over all rows.

    A row that training has not met moves nothing. So first a checkpoint is drawn, and then one of
    the rows that training had met there: with few steps, else, hardly a pair would differ.

    Returns:
        Rows and weights, both ``(pairs,)``. For numbers s_j that are 0 at rows never met, the mean
        of weight · s_j has the expectation (1/n) Σ_j s_j.
    """
    chances = (seen / seen.sum(1, keepdim=True)).mean(0)
    rows = torch.multinomial(chances, pairs, replacement=True, generator=generator)
    return rows, 1 / (len(chances) * chances[rows])


def squared_moves(
    train: Train, examples: Examples, fresh: Examples, rows: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """A(D), and ‖A(D^(j)) − A(D)‖² for some rows j, ``(pairs,)`` or ``(pairs, C)``."""
    base = train(examples)
    if not torch.equal(base, train(examples)):
        raise ValueError("training twice on the same examples gave different weights")
    again = (train(replaced(examples, row, fresh[i : i + 1])) for i, row in enumerate(rows))
    return base, torch.stack([squared_distance(weights, base) for weights in again])


def squared_distance(weights: Tensor, base: Tensor) -> Tensor:
    """‖θ − θ'‖² along the last dimension, float64."""
    return (weights.double() - base.double()).square().sum(-1)


def measured_stability(moves: Tensor, weights: Tensor) -> Estimate:
    """S from pairs, with its interval over them."""
    return Estimate(*interval((moves * weights).tolist()))
