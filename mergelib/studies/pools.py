"""Studies of pools: experts whose tasks somebody asks for, or nobody (FW-Merging, appendix C.4).

See `mergelib.studies.runner`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from mergelib.procedures import Adapted
from mergelib.procedures.common import unlabelled
from mergelib.studies.comparison import Grid, cut, merge_zoo, only
from mergelib.studies.frank_wolfe import (
    TOLERANCE,
    Tables,
    adapted,
    best_of,
    examples_of,
    judged,
)
from mergelib.testbed.zoo import Zoo

# Rules that merge a part of the experts, and what is searched for it on validation data: the grids
# of CART's appendix D.
POOL_GRIDS: dict[str, Grid] = {
    "average": {},
    "task_arithmetic": {"scale": [0.1, 0.2, 0.3]},
    "ties": {"density": [0.05, 0.1, 0.2]},
    "cart": {"rank_ratio": [0.08, 0.12, 0.16]},
}

# Where the paper's four targets have counterparts: SUN397, Cars, GTSRB, DTD.
TARGETS = ("scenes15", "cars_body", "gtsrb", "dtd10")


def irrelevant(
    zoo: Zoo,
    *,
    counts: Sequence[int] = (0, 1, 2, 4, 8, 16),
    examples: int = 100,
    steps: int = 5,
) -> Tables:
    """A pool of four experts that joins others whose tasks nobody asks for (appendix C.4).

    Args:
        zoo: of a suite of twenty tasks; four of them are judged, see `TARGETS`.
        counts: how many irrelevant experts, drawn once and then added one after the other.
        examples: unlabelled test inputs of each target, for AdaMerging and Frank-Wolfe; and as many
            labelled training examples for Frank-Wolfe with cross-entropy.
        steps: of Frank-Wolfe.

    Returns:
        ``test``: rows of ``count``, ``method``, ``task`` and ``accuracy``.
    """
    known = set(TARGETS) <= set(zoo.suite.tasks)
    targets = list(TARGETS if known else list(zoo.suite.tasks)[:4])
    others = [task for task in _shuffled(zoo) if task not in targets]
    rows = []
    for count in counts:
        part = _pool(zoo, [*targets, *others[:count]], targets)
        rows += [{"count": count, **row} for row in _pooled(part, examples, steps, labels=True)]
    return {"test": rows}


def relevant(
    zoo: Zoo,
    *,
    counts: Sequence[int] = (2, 5, 10, 15, 20),
    examples: int = 25,
    steps: int = 5,
    pictures: int = 500,
) -> Tables:
    """A pool that experts of more and more of the judged tasks join (appendix C.4).

    Args:
        zoo: all its tasks are judged.
        counts: experts in the pool, in random order.
        examples: unlabelled test inputs of each task, for AdaMerging and Frank-Wolfe.
        steps: of Frank-Wolfe.
        pictures: at most so many test pictures of a task, and half as many for validation.

    Returns:
        ``test``: rows of ``count``, ``method``, ``task`` and ``accuracy``.
    """
    zoo = cut(zoo, pictures)
    order = _shuffled(zoo)
    rows = []
    for count in counts:
        part = _pool(zoo, order[:count], list(zoo.suite.tasks))
        rows += [{"count": count, **row} for row in _pooled(part, examples, steps)]
    return {"test": rows}


def _pooled(zoo: Zoo, examples: int, steps: int, *, labels: bool = False) -> list[dict[str, Any]]:
    """Rules and two procedures on a pool of experts, judged on the suite's tasks."""
    rows = []
    for rule, grid in POOL_GRIDS.items():
        rows += judged(zoo, rule, Adapted(merge_zoo(rule, zoo, **best_of(zoo, rule, grid))))
    inputs = unlabelled(examples_of(zoo, examples, "test"))
    rows += judged(zoo, "adamerging", adapted(zoo, "adamerging", inputs, steps=150))
    options: dict[str, Any] = {"steps": steps, "tolerance": TOLERANCE}
    made = adapted(zoo, "frank_wolfe", inputs, loss="entropy", **options)
    rows += judged(zoo, "frank_wolfe", made)
    if labels:
        made = adapted(zoo, "frank_wolfe", examples_of(zoo, examples), **options)
        rows += judged(zoo, "frank_wolfe, labels", made)
    return rows


def _shuffled(zoo: Zoo) -> list[str]:
    names = list(zoo.suite.tasks)
    generator = torch.Generator().manual_seed(zoo.suite.seed)
    return [names[i] for i in torch.randperm(len(names), generator=generator).tolist()]


def _pool(zoo: Zoo, experts: Sequence[str], tasks: Sequence[str]) -> Zoo:
    """The zoo with some of the experts, judged on some of the tasks."""
    pool = {name: zoo.experts[name] for name in experts}
    return replace(zoo, suite=only(zoo.suite, tasks), experts=pool)
