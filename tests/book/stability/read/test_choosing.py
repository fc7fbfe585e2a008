"""What chapter 43 computes, against brute force, written-out formulas and simulated merges."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from mergebook.stability.draw.explorer import aligned_tasks, terms
from mergebook.stability.read import quadratics
from mergebook.stability.read.quadratics import (
    TOTALS,
    bounds_over_steps,
    pulled_tasks,
    totals,
)
from mergebook.stability.theory.quadratics import covered, errors
from mergebook.stability.theory.steps import Training, sgd
from mergelib.rules.arithmetic import fednova


@pytest.fixture(scope="module")
def settings() -> pd.DataFrame:
    return quadratics.survey(quadratics.settings((1, 30, 300)), (0, 1, 2), turned=(0.3, 1.0))


def uneven_plan() -> Training:
    ones = torch.ones(4, dtype=torch.float64)
    return Training(0.05, [sgd(k) for k in (3, 3, 24, 24)], 8 * ones, 50 * ones, ones / 4)


def test_scaling_moves_one_parameter() -> None:
    table = quadratics.survey([{"steps": 10}, {"steps": 100}], (0,))
    usual = bounds_over_steps(pulled_tasks(), [10, 100], 0.05, batch=8, examples=50)
    for name in TOTALS:
        assert table[name].tolist() == pytest.approx(usual[name].tolist())
    more = quadratics.survey([{"tasks": 2}, {"tasks": 5}], (0,)).iloc[0]
    pair = quadratics.first(pulled_tasks(5), 2)
    plan = Training.alike(2, 100, 0.05, batch=8, examples=50)
    assert more["truth"] == pytest.approx(errors(pair, plan).excess)


def test_agreement_counts_pairs(settings: pd.DataFrame) -> None:
    result = quadratics.agreement(settings).iloc[0]
    family = settings[(settings["turned"] == result["turned"]) & (settings["seed"] == 0)]
    pairs = list(itertools.combinations(family.index, 2))
    votes = [
        np.sign(family["truth"][a] - family["truth"][b])
        * np.sign(family["repaired"][a] - family["repaired"][b])
        for a, b in pairs
    ]
    assert result["repaired"] == pytest.approx(sum(votes) / len(pairs))


def test_the_habit_comes_from_other_families(settings: pd.DataFrame) -> None:
    kind = settings[settings["turned"] == 1.0]
    best = kind.sort_values("truth").groupby("seed")["progress"].first()
    row = kind[kind["seed"] == 0].iloc[0]
    usual = np.sqrt(best[1] * best[2])
    assert row[quadratics.HABIT] == pytest.approx(abs(np.log(row["progress"] / usual)))


def test_normalised_weights_are_fednova() -> None:
    tasks, plan = pulled_tasks(), uneven_plan()
    reach, _ = covered(tasks, plan)
    experts = tasks.start + (reach @ (tasks.centres - tasks.start)[..., None])[..., 0]
    merged = fednova(list(experts), tasks.start, steps=plan.steps.tolist())
    weights = quadratics.normalised(plan).weights
    torch.testing.assert_close(merged, tasks.start + weights @ (experts - tasks.start))
    assert float(weights.sum()) > 1


def test_limit_is_where_rounds_arrive() -> None:
    tasks, plan = pulled_tasks(), uneven_plan()
    reach, _ = covered(tasks, plan)
    point = tasks.start
    for _ in range(2000):
        point = point + plan.weights @ (reach @ (tasks.centres - point)[..., None])[..., 0]
    torch.testing.assert_close(quadratics.limit(tasks, plan), point)
    assert quadratics.above(tasks, tasks.minimum) == 0


def test_early_on_fednova_is_the_average_of_equal_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quadratics, "RATE", 0.001)
    row = quadratics.uneven((0.01,), (0,)).iloc[0]
    assert row["fednova"] == pytest.approx(row["equal"], rel=1e-3)


def test_the_explorers_terms_add_up() -> None:
    tasks = quadratics.first(aligned_tasks(2), 3)
    plan = Training.alike(3, 30, 0.05, batch=4, examples=50)
    sums = {group: sum(parts.values()) for group, parts in terms(tasks, plan).items()}
    expected = totals(tasks, plan)
    assert sums["exact"] == pytest.approx(expected["truth"])
    assert sums["repaired"] == pytest.approx(expected["repaired"])
    assert sums["printed"] == pytest.approx(expected["theorem_3"])
    assert sums["gamma"] == pytest.approx(expected["best_gamma"])
    curvatures = tasks.hessians.diagonal(dim1=1, dim2=2).tolist()
    assert sorted(curvatures[0]) == sorted(curvatures[1])
