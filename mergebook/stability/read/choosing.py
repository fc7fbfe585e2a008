"""What chapter 43 computes: do bounds rank and choose settings as the exact errors do?

A *setting* is a learning rate η, a number of steps K and a batch size b, the same for all experts,
which are averaged. The unit of every interval is the family of tasks that a seed draws.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from scipy.stats import kendalltau
from torch import Tensor

from mergebook.lab.statistics import interval
from mergebook.stability.read.quadratics import (
    TOTALS,
    pretrained_error,
    pulled_tasks,
    repaired_parts,
    totals,
)
from mergebook.stability.theory import bounds
from mergebook.stability.theory.quadratics import Quadratics, covered, errors
from mergebook.stability.theory.steps import Training

Parameter = Literal["steps", "rate", "batch", "examples", "tasks"]
Setting = Mapping[Parameter, Any]

USUAL: Setting = {"steps": 100, "rate": 0.05, "batch": 8, "examples": 50, "tasks": 4}
RATES, STEPS, BATCHES = (0.01, 0.05, 0.25), (1, 3, 10, 30, 100, 300, 1000), (2, 16)


def settings(steps: Sequence[int] = STEPS, examples: int = 50) -> list[Setting]:
    """All of `RATES`, steps and `BATCHES`."""
    grid = product(RATES, steps, BATCHES)
    return [{"rate": r, "steps": k, "batch": b, "examples": examples} for r, k, b in grid]


PARTS = ("generalisation", "optimisation")
FAMILY = ["own", "turned", "seed"]
HABIT = "fixed_progress"  # the rule that needs no bound: the usual ηK
GUIDES = [*TOTALS[1:], HABIT]


def planned(setting: Mapping[Any, Any]) -> Training:
    """Equal experts of plain SGD, averaged; as usual but for what the setting says."""
    own = {name: setting.get(name, value) for name, value in USUAL.items()}
    return Training.alike(own["tasks"], own["steps"], own["rate"], own["batch"], own["examples"])


def laws(values: Mapping[Parameter, Sequence[float]], seeds: Sequence[int]) -> pd.DataFrame:
    """The paper's laws: `survey` while one ``parameter`` has each ``value``, over θ_0's error."""
    tables = []
    for parameter, points in values.items():
        table = survey([{parameter: value} for value in points], seeds)
        table[TOTALS] = table[TOTALS].div(table["start"], axis=0)
        tables.append(table.assign(parameter=parameter, value=table[parameter]))
    return pd.concat(tables, ignore_index=True)


def change(
    table: pd.DataFrame, parameter: Parameter, curves: Sequence[str] = TOTALS
) -> pd.DataFrame:
    """By which ``factor`` truth and bounds change over a parameter's range; 95 % interval."""
    part = table[table["parameter"] == parameter].set_index(["value", "seed"])[list(curves)]
    logs, values = part.apply(np.log), part.index.unique("value")
    change = logs.loc[values.max()] - logs.loc[values.min()]
    middle, width = np.array([interval(own.tolist()) for _, own in change.items()]).T
    ends = {"factor": middle, "low": middle - width, "high": middle + width}
    return pd.DataFrame(ends, index=list(curves)).apply(np.exp)


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
    ``start``, the excess error of θ_0, `TOTALS`, the exact `PARTS`, and `HABIT`: how far ηK is, in
    logarithms, from what was best on average in the *other* families of a kind.
    """
    rows: list[dict[str, Any]] = []
    grid: list[dict[Any, Any]] = [{**USUAL, **setting} for setting in settings]
    most = max(setting["tasks"] for setting in grid)
    for pull, turn, seed in product(own, turned, seeds):
        family = pulled_tasks(most, own=pull, turned=turn, seed=seed)
        for setting in grid:
            tasks, plan = first(family, setting["tasks"]), planned(setting)
            start, exact = (
                pretrained_error(tasks, examples=setting["examples"]),
                errors(tasks, plan),
            )
            row = {"own": pull, "turned": turn, "seed": seed, "start": start, **setting}
            row |= {"progress": setting["rate"] * setting["steps"], **totals(tasks, plan)}
            rows.append(row | {part: getattr(exact, part) for part in PARTS})
    table = pd.DataFrame(rows)
    lengths = np.log(_best(table, "progress"))
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


def regret(table: pd.DataFrame) -> pd.DataFrame:
    """What the choice of each guide loses: exact excess error, less the least, over that of θ_0.

    One row per family of a `survey`; ``random`` is the mean over all settings, and ``start`` leaves
    θ_0 as it is.
    """
    least, start = _best(table, "truth"), _best(table, "start")
    chosen = {guide: _best(table, "truth", by=guide) for guide in GUIDES}
    chosen |= {"random": table.groupby(FAMILY)["truth"].mean(), "start": start}
    lost = {guide: (value - least) / start for guide, value in chosen.items()}
    return pd.DataFrame(lost).reset_index()


def _best(table: pd.DataFrame, column: str, by: str = "truth") -> pd.Series:
    """What a column says in the setting where another is least, by family."""
    return table.loc[table.groupby(FAMILY)[by].idxmin()].set_index(FAMILY)[column]


def predicted_progress(
    own: Sequence[float], turned: Sequence[float], seeds: Sequence[int], *, examples: int = 50
) -> pd.DataFrame:
    """ηK by `best_progress`, from gradients at θ_0, and the best there is, one row per family.

    ``rule`` is without noise, ``noisy`` with that of batches of 8 at η = 0.05, ``free`` without
    noise or cap; ``best`` is over K at that rate.
    """
    rows, rate, batch = [], 0.05, 8
    for pull, turn, seed in product(own, turned, seeds):
        tasks = pulled_tasks(own=pull, turned=turn, seed=seed)
        plan = planned({"examples": examples})
        _, squared, apart = tasks.opening(plan, plan.weights)
        known = (math.sqrt(squared), math.sqrt(apart), tasks.smoothness)
        noise = rate * float(tasks.noise.square().mean()) / batch
        rule, noisy = (bounds.best_progress(*known, noise=s, tasks=4) for s in (0.0, noise))
        free = math.sqrt(squared / apart) / (6 * tasks.smoothness)
        best = rate * best_steps(tasks, rate, batch=batch, examples=examples)
        rows.append((pull, turn, seed, rule, noisy, free, best))
    return pd.DataFrame(rows, columns=["own", "turned", "seed", "rule", "noisy", "free", "best"])


def best_steps(tasks: Quadratics, rate: float, *, batch: int, examples: int) -> int:
    """K of the least exact excess error: on a grid of factor 2, then between its neighbours."""

    def excess(count: int) -> float:
        plan = Training.alike(len(tasks.hessians), count, rate, batch, examples)
        return errors(tasks, plan).excess

    best = min((1 << power for power in range(15)), key=excess)
    finer = {max(1, round(best * 2 ** (step / 8))) for step in range(-8, 9)}
    return min(sorted(finer), key=excess)


def searched(
    table: pd.DataFrame, counts: Sequence[int], *, validation: int, draws: int
) -> pd.DataFrame:
    """Regret, by seed, of training m random ``candidates`` and keeping the best in validation."""
    rows = []
    for _, family in table.groupby(FAMILY):
        settings = family.to_dict("records")
        seed, examples = settings[0]["seed"], settings[0]["examples"]
        tasks = pulled_tasks(own=settings[0]["own"], turned=settings[0]["turned"], seed=seed)
        generator = torch.Generator().manual_seed(seed)
        data = _draw(tasks.covariances / examples, draws, generator)
        held = tasks.centres + _draw(tasks.covariances / validation, draws, generator)
        merges = [_merges(tasks, planned(each), data, generator) for each in settings]
        away = torch.stack(merges, 1)[:, :, None] - held[:, None]
        scores = torch.einsum("mstd,tde,mste->ms", away, tasks.hessians, away)
        orders = torch.rand(scores.shape, generator=generator).argsort(1)
        exact = torch.tensor(family["truth"].to_numpy())
        for count in counts:
            tried = orders[:, :count]
            kept = tried.gather(1, scores.gather(1, tried).argmin(1, keepdim=True))
            lost = float((exact[kept].mean() - exact.min()) / settings[0]["start"])
            rows.append({"seed": seed, "candidates": count, "regret": lost})
    return pd.DataFrame(rows)


def _draw(covariances: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """Vectors of mean zero, ``(draws, T, d)``."""
    values, axes = torch.linalg.eigh(covariances)
    roots = axes * values.clamp(min=0).sqrt()[:, None]
    shape = (draws, *values.shape)
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    drawn: Tensor = (roots * normal[:, :, None]).sum(-1)
    return drawn


def _merges(tasks: Quadratics, plan: Training, data: Tensor, generator: torch.Generator) -> Tensor:
    """Trained merges, ``(draws, d)``, of given deviations of the data's means ``(draws, T, d)``."""
    reach, batches = covered(tasks, plan)
    gap = tasks.centres + data - tasks.start
    moved = (reach * gap[:, :, None]).sum(-1) + _draw(batches, len(data), generator)
    return tasks.start + torch.einsum("t,mtd->md", plan.weights, moved)


def weights_by(tasks: Quadratics, plan: Training, guide: Literal["truth", "repaired"]) -> Tensor:
    """Merging weights on the simplex where the exact error, or the bound, is least; ``(T,)``."""

    def value(weights: Tensor) -> float:
        other = replace(plan, weights=weights)
        if guide == "truth":
            return errors(tasks, other).excess
        return sum(repaired_parts(tasks, other, weighted=True).values())

    return bounds.least_weights(value, len(plan.weights))


def weighed(steps: Sequence[int], seeds: Sequence[int], *, rate: float) -> pd.DataFrame:
    """Excess error over that of θ_0 with uniform weights, with the bound's, and with the best."""
    rows = []
    for seed, count in product(seeds, steps):
        tasks = pulled_tasks(seed=seed)
        plan = planned({"steps": count, "rate": rate})
        start = pretrained_error(tasks, examples=USUAL["examples"])
        row = {"uniform": errors(tasks, plan).excess / start}
        for guide in ("repaired", "truth"):
            chosen = replace(plan, weights=weights_by(tasks, plan, guide))
            row[guide] = errors(tasks, chosen).excess / start
        rows.append({"seed": seed, "steps": count} | row)
    return pd.DataFrame(rows)
