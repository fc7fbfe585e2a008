"""Soups: averages of models, of one task or several (Wortsman et al., 2022).

The uniform soup averages all models. The greedy soup (Recipe 1) tries them in the order of their
accuracy and adds each unless the average gets worse.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mergelib.merging import merge_checked
from mergelib.messages.kinds import Size
from mergelib.problems.calling import evaluating, features, transform_of
from mergelib.problems.checks import check_finite
from mergelib.problems.examples import IGNORED
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted
from mergelib.progress import progress
from mergelib.registry import Needs, procedure
from mergelib.statedict import StateDict

if TYPE_CHECKING:
    import pandas as pd

Score = Callable[[Tensor, Tensor], Tensor | float]


@dataclass(frozen=True)
class UniformSoupSettings:
    """`uniform_soup` has no hyperparameters."""


@procedure(
    paper="wortsman2022model",
    data="no data",
    settings=UniformSoupSettings,
    needs=Needs(model=False, heads=False),
)
def uniform_soup(problem: Problem, settings: UniformSoupSettings) -> Adapted:
    """Uniform soup: the average of all models, as the rule ``average`` gives it.

    Returns:
        The soup, and ``coefficients`` with every model's ``weight``.
    """
    experts = problem.experts
    soup = merge_checked("average", experts, problem.pretrained)
    return Adapted(soup, _weights(experts, list(experts)))


@dataclass(frozen=True)
class GreedySoupSettings:
    """Hyperparameters of `greedy_soup`.

    Attributes:
        batch_size: inputs at once.
        score: maps logits ``(M, C)`` and labels ``(M,)`` to a number, higher is better; accuracy if
            None. Positions of sequences are rows, without ignored ones.
    """

    batch_size: Size = 500
    score: Score | None = None


@procedure(
    paper="wortsman2022model",
    data="labelled inputs (a validation set)",
    settings=GreedySoupSettings,
    needs=Needs(labels="classes"),
)
def greedy_soup(problem: Problem, settings: GreedySoupSettings) -> Adapted:
    """Greedy soup: add models in the order of their accuracy, as long as accuracy does not fall.

    A ``score`` can replace accuracy. The cost is one forward pass over all data per model, and one
    per soup but the first. The data should be held out; experts and tasks may have different names.

    Returns:
        The soup; ``coefficients`` with every model's ``weight``; ``history``, one row per model in
        the order of trial: ``expert``, its ``accuracy`` (mean over tasks, 0..1) or ``score``, that
        of the ``soup`` with it, and whether it was ``added``.
    """
    import pandas as pd

    experts = problem.experts
    column = "accuracy" if settings.score is None else "score"
    score = settings.score or (lambda x, y: int((x.argmax(-1) == y).sum()) / len(y))

    def scored(state: StateDict) -> float:
        return _mean_score(problem, state, score, settings.batch_size)

    scores = {name: scored(state) for name, state in experts.items()}
    chosen: list[str] = []
    best, rows = -math.inf, []
    order = sorted(experts, key=lambda name: -scores[name])
    for name in progress(order, desc="soup", leave=False):
        trial = {member: experts[member] for member in [*chosen, name]}
        soup = scored(merge_checked("average", trial)) if chosen else scores[name]
        added = soup >= best
        rows.append({"expert": name, column: scores[name], "soup": soup, "added": added})
        if added:
            chosen, best = list(trial), soup
    members = {name: experts[name] for name in chosen}
    merged = merge_checked("average", members, problem.pretrained)
    return Adapted(merged, _weights(experts, chosen), pd.DataFrame(rows))


def _weights(experts: Mapping[str, StateDict], chosen: Sequence[str]) -> "pd.DataFrame":
    """Return every model's weight in the average of the chosen ones."""
    import pandas as pd

    weights = [(name in chosen) / len(chosen) for name in experts]
    return pd.DataFrame({"weight": weights}, index=list(experts))


@torch.no_grad()
def _mean_score(problem: Problem, state: StateDict, score: Score, batch_size: int) -> float:
    """Return the mean score over tasks."""
    scores = []
    for task, examples in problem.data.items():
        transform = transform_of(problem.transform, task)
        outputs = features(
            problem.model, state, examples, batch_size=batch_size, transform=transform
        )
        with evaluating(head := problem.heads[task]):
            logits, labels = examples.rows_of(head(outputs))
        check_finite(f"the predictions on task {task!r}", logits)
        assert labels is not None
        labels = labels.to(logits.device)
        counted = labels != IGNORED
        scores.append(float(score(logits[counted], labels[counted])))
        if not math.isfinite(scores[-1]):
            raise ValueError(f"the score on task {task!r} is {scores[-1]}, expected a finite one")
    return sum(scores) / len(scores)
