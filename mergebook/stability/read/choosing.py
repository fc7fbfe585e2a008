"""What chapter 43 computes: do bounds rank and choose settings as the exact errors do?

A *setting* is a learning rate η, a number of steps K and a batch size b, the same for all experts,
which are averaged. The unit of every interval is the family of tasks that a seed draws.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from mergebook.stability.read.quadratics import TOTALS, pulled_tasks, totals
from mergebook.stability.theory.quadratics import Quadratics
from mergebook.stability.theory.steps import Training

Parameter = Literal["steps", "rate", "batch", "examples", "tasks"]
Setting = Mapping[Parameter, Any]

USUAL: Setting = {"steps": 100, "rate": 0.05, "batch": 8, "examples": 50, "tasks": 4}
RATES, STEPS, BATCHES = (0.01, 0.05, 0.25), (1, 3, 10, 30, 100, 300, 1000), (2, 16)


def settings(steps: Sequence[int] = STEPS, examples: int = 50) -> list[Setting]:
    """All of `RATES`, steps and `BATCHES`."""
    grid = product(RATES, steps, BATCHES)
    return [{"rate": r, "steps": k, "batch": b, "examples": examples} for r, k, b in grid]


FAMILY = ["own", "turned", "seed"]
HABIT = "fixed_progress"  # the rule that needs no bound: the usual ηK
GUIDES = [*TOTALS[1:], HABIT]


def planned(setting: Mapping[Any, Any]) -> Training:
    """Equal experts of plain SGD, averaged; as usual but for what the setting says."""
    own = {name: setting.get(name, value) for name, value in USUAL.items()}
    return Training.alike(own["tasks"], own["steps"], own["rate"], own["batch"], own["examples"])


def first(tasks: Quadratics, count: int) -> Quadratics:
    """The first of the tasks."""
    return Quadratics(
        tasks.hessians[:count], tasks.centres[:count], tasks.covariances[:count], tasks.start
    )


def survey(
    settings: Iterable[Setting],  # as far as they are not `USUAL`
    seeds: Sequence[int],
    *,
    own: Sequence[float] = (0.5,),  # how long the tasks' own gradients at θ_0 are
    turned: Sequence[float] = (1.0,),  # how differently their curvatures point, 0 to 1
) -> pd.DataFrame:
    """Exact error and bounds of every setting on many families, whose first tasks are merged.

    One row per family and setting: ``own``, ``turned``, ``seed``, the setting, ``progress`` (ηK),
    `TOTALS`, and `HABIT`: how far ηK is, in logarithms, from what was best on average in the
    *other* families of a kind.
    """
    rows: list[dict[str, Any]] = []
    grid: list[dict[Any, Any]] = [{**USUAL, **setting} for setting in settings]
    most = max(setting["tasks"] for setting in grid)
    for pull, turn, seed in product(own, turned, seeds):
        family = pulled_tasks(most, own=pull, turned=turn, seed=seed)
        for setting in grid:
            tasks, plan = first(family, setting["tasks"]), planned(setting)
            row = {"own": pull, "turned": turn, "seed": seed, **setting}
            row |= {"progress": setting["rate"] * setting["steps"], **totals(tasks, plan)}
            rows.append(row)
    table = pd.DataFrame(rows)
    best_rows = table.loc[table.groupby(FAMILY)["truth"].idxmin()].set_index(FAMILY)
    lengths = np.log(best_rows["progress"])
    others = lengths.groupby(["own", "turned"]).transform(
        lambda best: (best.sum() - best) / (len(best) - 1 or math.nan)
    )
    table = table.merge(others.rename("usual").reset_index(), on=FAMILY)
    table[HABIT] = (np.log(table["progress"]) - table.pop("usual")).abs()
    return table


def agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Kendall's τ of each of `GUIDES` with the exact error, a row for each family of a `survey`."""
    ranks = {
        kind: {guide: kendalltau(rows[guide], rows["truth"]).statistic for guide in GUIDES}
        for kind, rows in table.groupby(FAMILY)
    }
    return pd.DataFrame.from_dict(ranks, orient="index").rename_axis(FAMILY).reset_index()
