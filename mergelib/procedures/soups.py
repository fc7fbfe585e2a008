"""Soups: averages of models, of one task or several (Wortsman et al., 2022).

The uniform soup takes all of them. The greedy soup (Recipe 1) tries them in the order of their
accuracy; each joins the average if that loses nothing by it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mergelib.merging import merge
from mergelib.problems.calling import features, transform_of
from mergelib.problems.checks import check_positive
from mergelib.problems.examples import IGNORED
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted
from mergelib.progress import progress
from mergelib.registry import Needs, procedure
from mergelib.statedict import StateDict

if TYPE_CHECKING:
    import pandas as pd


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
    soup = merge("average", experts, pretrained=problem.pretrained)
    return Adapted(soup, _weights(experts, list(experts)))


@dataclass(frozen=True)
class GreedySoupSettings:
    """Hyperparameters of `greedy_soup`.

    Attributes:
        batch_size: inputs at once.
    """

    batch_size: int = 500

    def __post_init__(self) -> None:
        check_positive("batch_size", self.batch_size)


@procedure(
    paper="wortsman2022model",
    data="labelled inputs (a validation set)",
    settings=GreedySoupSettings,
    needs=Needs(labels="classes"),
)
def greedy_soup(problem: Problem, settings: GreedySoupSettings) -> Adapted:
    """Greedy soup: add models in the order of their accuracy, as long as accuracy does not fall.

    It asks for one forward pass of all data for each model, and one for each but the first soup.
    The data should be held out from training; names of experts need not be those of tasks.

    Returns:
        The soup; ``coefficients`` with every model's ``weight``; ``history``, one row per model in
        the order of trial: ``expert``, its own ``accuracy`` (mean over tasks, 0..1), the accuracy
        of the ``soup`` with it, and whether it was ``added``.
    """
    import pandas as pd

    experts = problem.experts

    def accuracy(state: StateDict) -> float:
        return _accuracy(problem, state, settings.batch_size)

    scores = {name: accuracy(state) for name, state in experts.items()}
    chosen: list[str] = []
    best, rows = -1.0, []
    order = sorted(experts, key=lambda name: -scores[name])
    for name in progress(order, desc="soup", leave=False):
        trial = {member: experts[member] for member in [*chosen, name]}
        soup = accuracy(merge("average", trial)) if chosen else scores[name]
        added = soup >= best
        rows.append({"expert": name, "accuracy": scores[name], "soup": soup, "added": added})
        if added:
            chosen, best = list(trial), soup
    members = {name: experts[name] for name in chosen}
    merged = merge("average", members, pretrained=problem.pretrained)
    return Adapted(merged, _weights(experts, chosen), pd.DataFrame(rows))


def _weights(experts: Mapping[str, StateDict], chosen: Sequence[str]) -> "pd.DataFrame":
    """Every model's weight in the average of the chosen ones."""
    import pandas as pd

    weights = [(name in chosen) / len(chosen) for name in experts]
    return pd.DataFrame({"weight": weights}, index=list(experts))


@torch.no_grad()
def _accuracy(problem: Problem, state: StateDict, batch_size: int) -> float:
    """Mean over the tasks of the share of right answers."""
    shares = []
    for task, examples in problem.data.items():
        own = transform_of(problem.transform, task)
        outputs = features(problem.model, state, examples, batch_size=batch_size, transform=own)
        logits, labels = examples.rows_of(problem.heads[task](outputs))
        shares.append(_share_right(logits, labels))
    return sum(shares) / len(shares)


def _share_right(logits: Tensor, labels: Tensor | None) -> float:
    """Of the labels that are judged."""
    assert labels is not None
    labels = labels.to(logits.device)
    judged = labels != IGNORED
    return int((logits.argmax(-1) == labels)[judged].sum()) / int(judged.sum())
