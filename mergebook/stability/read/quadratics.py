"""What chapters 40 and 43 to 45 compute on quadratic tasks: exact errors, and bounds, of merges."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from scipy.stats import kendalltau
from torch import Tensor

from mergebook.stability.theory import bounds
from mergebook.stability.theory.quadratics import Quadratics, covered, errors
from mergebook.stability.theory.steps import Training, sgd

TOTALS = ["truth", "theorem_3", "best_gamma", "repaired"]


def pulled_tasks(
    tasks: int = 4,
    size: int = 6,  # dimensions
    *,
    own: float = 0.5,  # length of a task's own part of g_t; the shared part's is about 1
    turned: float = 1.0,  # 0 gives all tasks the same H_t, 1 axes without relation
    flattest: float = 0.05,  # least eigenvalue of every H_t; the largest is 1
    seed: int = 0,
) -> Quadratics:
    """Tasks of turned curvatures, which have their minima far away along their flat directions."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(tasks, size, size, generator=generator, dtype=torch.float64)
    axes = torch.linalg.qr(turned * drawn + (1 - turned) * drawn[:1])[0]
    values = torch.logspace(0, math.log10(flattest), size, dtype=torch.float64)
    hessians = axes * values @ axes.mT
    shared = torch.randn(size, generator=generator, dtype=torch.float64)
    single = torch.randn(tasks, size, generator=generator, dtype=torch.float64)
    pulls = (shared + own * single) / math.sqrt(size)
    return Quadratics(
        hessians=(hessians + hessians.mT) / 2,
        centres=torch.linalg.solve(hessians, pulls),
        covariances=torch.eye(size, dtype=torch.float64).expand(tasks, size, size),
        start=torch.zeros(size, dtype=torch.float64),
    )


def pretrained_error(tasks: Quadratics, *, examples: int) -> float:
    """Excess error of θ_0: it has seen no data, so that its generalisation error is zero."""
    plan = Training.alike(len(tasks.hessians), 1, 1.0, batch=1, examples=examples)
    return tasks.opening(plan, plan.weights)[0] - tasks.floor(plan.examples)


def errors_over_steps(
    tasks: Quadratics, steps: Sequence[int], learning_rate: float, **sizes: int
) -> pd.DataFrame:
    """Exact errors of equal experts' average by ``steps``; sizes are ``batch`` and ``examples``."""
    rows, total = [], len(tasks.hessians)
    for count in steps:
        exact = errors(tasks, Training.alike(total, count, learning_rate, **sizes))
        rows.append((count, exact.generalisation, exact.optimisation, exact.excess))
    return pd.DataFrame(rows, columns=["steps", "generalisation", "optimisation", "excess"])


def bounds_over_steps(
    tasks: Quadratics, steps: Sequence[int], learning_rate: float, **sizes: int
) -> pd.DataFrame:
    """`TOTALS` by ``steps``, and whether the bounds are proved there, as in `errors_over_steps`."""
    rows, known = [], constants(tasks)
    for count in steps:
        plan = Training.alike(len(tasks.hessians), count, learning_rate, **sizes)
        places = (bounds.in_domain(known, plan, printed=True), bounds.in_domain(known, plan))
        rows.append((count, *totals(tasks, plan).values(), *places))
    return pd.DataFrame(rows, columns=["steps", *TOTALS, "papers_domain", "domain"])


def constants(tasks: Quadratics) -> bounds.Losses:
    """L, σ in the mean square, and ζ at θ_0 only, which favours bounds that need it anywhere."""
    return bounds.Losses(tasks.smoothness, tasks.noise, tasks.heterogeneity(tasks.start))


def totals(tasks: Quadratics, plan: Training) -> dict[str, float]:
    """`TOTALS`: the exact excess error of equal experts' average, and three bounds of it."""
    allowed = [*printed_parts(tasks, plan), repaired_parts(tasks, plan)]
    values = [errors(tasks, plan).excess, *(sum(parts.values()) for parts in allowed)]
    return dict(zip(TOTALS, values, strict=True))


def printed_parts(tasks: Quadratics, plan: Training) -> list[dict[str, float]]:
    """The parts of Theorem 3 (Li et al., 2026), and of its form with γ*."""
    known = constants(tasks)
    gap = tasks.opening(plan, plan.weights)[0] - tasks.floor(plan.examples)
    given = known, plan, gap, tasks.pl_constant
    return [bounds.theorem_3(*given, gamma=gamma)[0] for gamma in (1.0, None)]


def repaired_parts(tasks: Quadratics, plan: Training) -> dict[str, float]:
    """E_O and E_G as `excess_bound` allows them, of examples on spheres."""
    known = constants(tasks)
    parts = bounds.descent_bound(tasks.opening(plan, plan.surrogate[1]), known, plan)
    spread = tasks.covariances.diagonal(dim1=1, dim2=2).sum(1).sqrt()
    largest = bounds.Losses(known.smoothness, 2 * known.smoothness * spread, known.heterogeneity)
    return bounds.convex_excess_bound(parts, tasks.floor(plan.examples), largest, plan)


# Do bounds rank and choose settings as the exact errors do? (chapter 43)

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

    Rows of ``own``, ``turned``, ``seed``, the setting, ``progress`` (ηK), `TOTALS` and `HABIT`: how
    far log ηK lies from what was best in the *other* families of a kind.
    """
    rows: list[dict[str, Any]] = []
    grid: list[dict[Any, Any]] = [{**USUAL, **setting} for setting in settings]
    most = max(setting["tasks"] for setting in grid)
    for pull, turn, seed in product(own, turned, seeds):
        family = pulled_tasks(most, own=pull, turned=turn, seed=seed)
        for setting in grid:
            tasks, plan = first(family, setting["tasks"]), planned(setting)
            row = {"own": pull, "turned": turn, "seed": seed, **setting}
            row |= {"progress": setting["rate"] * setting["steps"]}
            rows.append(row | totals(tasks, plan))
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


# Experts that were trained for different times (chapter 44)

TIMES, RATE = 8, 0.01  # how much longer two of the four experts are trained; η


def uneven(lengths: Sequence[float], seeds: Sequence[int]) -> pd.DataFrame:
    """Excess errors over that of θ_0 where two of four experts are trained `TIMES` longer.

    By seed and ``progress``, means over the six choices of the two: of the ``average``,
    ``fednova``, and the average of ``equal`` lengths.
    """
    rows = []
    for seed, length in product(seeds, lengths):
        tasks = pulled_tasks(seed=seed)
        start = pretrained_error(tasks, examples=USUAL["examples"])
        count, values = round(length / RATE), []
        alike = planned({"steps": count, "rate": RATE})
        for pair in combinations(range(4), 2):
            paces = torch.ones(4, dtype=torch.float64)
            paces[list(pair)] = TIMES
            counts = (paces / paces.mean() * count).round().clamp(min=1)
            plan = replace(alike, vectors=[sgd(int(own)) for own in counts])
            values.append([errors(tasks, each).excess for each in (plan, normalised(plan))])
        average, fednova = (torch.tensor(values, dtype=torch.float64).mean(0) / start).tolist()
        rows.append((seed, length, average, fednova, errors(tasks, alike).excess / start))
    return pd.DataFrame(rows, columns=["seed", "progress", "average", "fednova", "equal"])


def normalised(plan: Training) -> Training:
    """FedNova: weights w_t τ_eff / ‖a_t‖₁ = w_t² / ω_t, of a sum above 1 for unequal experts."""
    return replace(plan, weights=plan.weights**2 / plan.surrogate[1])


def limits(rate: float, seeds: Sequence[int]) -> pd.DataFrame:
    """Optimisation error left after many rounds of 1, 1, 8 and 8 steps, over θ_0's, no noise."""
    rows = []
    for seed in seeds:
        tasks = pulled_tasks(seed=seed)
        alike = Training.alike(4, 1, rate, batch=1, examples=1)
        plan = replace(alike, vectors=[sgd(count) for count in (1, 1, TIMES, TIMES)])
        start = above(tasks, tasks.start)
        plans = {"average": plan, "fednova": normalised(plan)}
        rows.append({name: above(tasks, limit(tasks, own)) / start for name, own in plans.items()})
    return pd.DataFrame(rows)


def limit(tasks: Quadratics, plan: Training) -> Tensor:
    """Where training and merging again and again arrives, Σ w_t R_t (c_t − θ) = 0; ``(d,)``."""
    pulls = plan.weights[:, None, None] * covered(tasks, plan)[0]
    arrived: Tensor = torch.linalg.solve(pulls.sum(0), (pulls @ tasks.centres[..., None]).sum(0))
    return arrived[:, 0]


def above(tasks: Quadratics, point: Tensor) -> float:
    """Mean expected loss at a point, less the least there is."""
    away = point - tasks.minimum
    return float(0.5 * away @ tasks.hessians.mean(0) @ away)
