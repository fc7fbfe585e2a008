"""What chapter 43 computes, against brute force, written-out formulas and simulated merges."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from mergebook.stability.draw.explorer import aligned_tasks, as_data, terms
from mergebook.stability.read import choosing, mixed
from mergebook.stability.read.quadratics import (
    TOTALS,
    bounds_over_steps,
    pulled_tasks,
    totals,
    two_tasks,
)
from mergebook.stability.theory import bounds
from mergebook.stability.theory.quadratics import covered, errors
from mergebook.stability.theory.steps import Training, sgd
from mergelib.rules.arithmetic import fednova


@pytest.fixture(scope="module")
def settings() -> pd.DataFrame:
    return choosing.survey(choosing.settings((1, 30, 300)), (0, 1, 2), turned=(0.3, 1.0))


def uneven_plan() -> Training:
    ones = torch.ones(4, dtype=torch.float64)
    return Training(0.05, [sgd(k) for k in (3, 3, 24, 24)], 8 * ones, 50 * ones, ones / 4)


def test_scaling_moves_one_parameter() -> None:
    table = choosing.survey([{"steps": 10}, {"steps": 100}], (0,))
    usual = bounds_over_steps(pulled_tasks(), [10, 100], 0.05, batch=8, examples=50)
    for name in TOTALS:
        assert table[name].tolist() == pytest.approx(usual[name].tolist())
    more = choosing.survey([{"tasks": 2}, {"tasks": 5}], (0,)).iloc[0]
    pair = choosing.first(pulled_tasks(5), 2)
    plan = Training.alike(2, 100, 0.05, batch=8, examples=50)
    assert more["truth"] == pytest.approx(errors(pair, plan).excess)


def test_change_is_the_ratio_of_the_ends() -> None:
    table = choosing.laws({"batch": (1, 4, 16)}, (0, 1))
    ratios = [part["truth"].iloc[-1] / part["truth"].iloc[0] for _, part in table.groupby("seed")]
    row = choosing.change(table, "batch").loc["truth"]
    assert row["factor"] == pytest.approx(np.sqrt(np.prod(ratios)))
    assert row["low"] <= row["factor"] <= row["high"]


def test_agreement_counts_pairs(settings: pd.DataFrame) -> None:
    result = choosing.agreement(settings).iloc[0]
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
    assert row[choosing.HABIT] == pytest.approx(abs(np.log(row["progress"] / usual)))


def test_regret_is_what_a_choice_loses(settings: pd.DataFrame) -> None:
    row = choosing.regret(settings).iloc[0]
    family = settings[(settings["turned"] == row["turned"]) & (settings["seed"] == row["seed"])]
    chosen = family.loc[family["theorem_3"].idxmin(), "truth"]
    start, least = family["start"].iloc[0], family["truth"].min()
    assert row["theorem_3"] == pytest.approx((chosen - least) / start)
    assert row["random"] == pytest.approx((family["truth"].mean() - least) / start)
    assert row["start"] == pytest.approx(1 - least / start)


def test_parts_of_the_first_tasks() -> None:
    """Each E_G is tr(H R C)/n of one expert, over T; their curvatures have the same eigenvalues."""
    table = choosing.survey([{"steps": 20, "tasks": 1}, {"steps": 20, "tasks": 3}], (2,))
    single, three = table["generalisation"]
    values = torch.linalg.eigvalsh(pulled_tasks(seed=2).hessians[0])
    assert single == pytest.approx(float((values * (1 - (1 - 0.05 * values) ** 20)).sum()) / 50)
    assert three == pytest.approx(single / 3)
    plan = Training.alike(1, 20, 0.05, batch=8, examples=50)
    exact = errors(choosing.first(pulled_tasks(3, seed=2), 1), plan)
    assert table["optimisation"][0] == pytest.approx(exact.optimisation)


def test_best_steps_by_brute_force() -> None:
    tasks = pulled_tasks(seed=1)
    values = [
        errors(tasks, Training.alike(4, k, 0.5, batch=8, examples=50)).excess for k in range(1, 65)
    ]
    assert choosing.best_steps(tasks, 0.5, batch=8, examples=50) == 1 + int(np.argmin(values))


def test_the_rule_is_that_of_the_bound() -> None:
    row = choosing.predicted_progress((2.0,), (1.0,), (0,)).iloc[0]
    assert row["rule"] == pytest.approx(min(row["free"], bounds.REPAIRED_DOMAIN))
    tasks, plan = pulled_tasks(own=2.0), Training.alike(4, 1, 1.0, batch=8, examples=50)
    _, squared, apart = tasks.opening(plan, plan.weights)
    noise = 0.05 * float((tasks.noise**2).mean()) / 8
    noisy = bounds.best_progress(squared**0.5, apart**0.5, 1.0, noise=noise, tasks=4)
    assert row["noisy"] == pytest.approx(noisy)
    assert row["noisy"] < row["rule"]


def test_simulated_merges_have_the_exact_error() -> None:
    tasks, plan = pulled_tasks(), Training.alike(4, 40, 0.1, batch=4, examples=20)
    generator = torch.Generator().manual_seed(0)
    data = choosing._draw(tasks.covariances / 20, 20_000, generator)
    away = choosing._merges(tasks, plan, data, generator) - tasks.minimum
    above = 0.5 * torch.einsum("md,de,me->m", away, tasks.hessians.mean(0), away)
    exact = errors(tasks, plan)
    spread = 0.5 * torch.einsum("tij,tij->", tasks.hessians, tasks.covariances) / 4
    apart = tasks.centres - tasks.minimum
    least = 0.5 * torch.einsum("td,tde,te->", apart, tasks.hessians, apart) / 4 + spread
    expected = exact.excess + tasks.floor(plan.examples) - float(least)
    assert abs(float(above.mean()) - expected) < 5 * float(above.std()) / 20_000**0.5


def test_a_search_of_one_is_random_and_a_full_one_finds_the_best() -> None:
    kind = choosing.survey(choosing.settings((1, 100)), (0, 1))
    table = choosing.searched(kind, (1, 12), validation=10**6, draws=2000)
    for (_, part), random in zip(
        table.groupby("seed"), choosing.regret(kind)["random"], strict=True
    ):
        one, full = part["regret"]
        assert one == pytest.approx(random, rel=0.1)
        assert full < 0.02


def test_weights_by_the_exact_error_against_a_grid() -> None:
    tasks = two_tasks()
    plan = Training.alike(2, 50, 0.5, batch=1, examples=1)
    grid = torch.linspace(0, 1, 1001, dtype=torch.float64)
    values = [errors(tasks, replace(plan, weights=torch.stack([1 - w, w]))).excess for w in grid]
    found = choosing.weights_by(tasks, plan, "truth")
    assert float(found[1]) == pytest.approx(float(grid[int(np.argmin(values))]), abs=2e-3)


def test_normalised_weights_are_fednova() -> None:
    tasks, plan = pulled_tasks(), uneven_plan()
    reach, _ = covered(tasks, plan)
    experts = tasks.start + (reach @ (tasks.centres - tasks.start)[..., None])[..., 0]
    merged = fednova(list(experts), tasks.start, steps=plan.steps.tolist())
    weights = mixed.normalised(plan).weights
    torch.testing.assert_close(merged, tasks.start + weights @ (experts - tasks.start))
    assert float(weights.sum()) > 1


def test_limit_is_where_rounds_arrive() -> None:
    tasks, plan = pulled_tasks(), uneven_plan()
    reach, _ = covered(tasks, plan)
    point = tasks.start
    for _ in range(2000):
        point = point + plan.weights @ (reach @ (tasks.centres - point)[..., None])[..., 0]
    torch.testing.assert_close(mixed.limit(tasks, plan), point)
    assert mixed.above(tasks, tasks.minimum) == 0


def test_early_averages_descend_the_surrogate() -> None:
    row = mixed.uneven((0.01,), (0,), rate=0.001).iloc[0]
    assert row["surrogate"] == pytest.approx(1, abs=1e-4)
    assert row["shared"] < row["surrogate"]
    assert row["fednova"] == pytest.approx(row["equal"], rel=1e-3)


def test_the_explorers_terms_add_up() -> None:
    tasks = choosing.first(aligned_tasks(seed=2), 3)
    plan = Training.alike(3, 30, 0.05, batch=4, examples=50)
    sums = {group: sum(parts.values()) for group, parts in terms(tasks, plan).items()}
    expected = totals(tasks, plan)
    assert sums["exact"] == pytest.approx(expected["truth"])
    assert sums["repaired"] == pytest.approx(expected["repaired"])
    assert sums["printed"] == pytest.approx(expected["theorem_3"])
    assert sums["gamma"] == pytest.approx(expected["best_gamma"])
    data = as_data(tasks)
    assert sorted(data["curvatures"][0]) == sorted(data["curvatures"][1])
