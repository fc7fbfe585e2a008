"""Intervals, pooled effects and corrections, against scipy and by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mergebook.lab.statistics import (
    Estimate,
    both_intervals,
    crossed,
    holm_factors,
    interval,
    log_ratio_of_spreads,
    over_seeds,
    paired,
    pool,
)


def test_interval_by_hand() -> None:
    """1, 2, 3: standard error 1/√3, and the t quantile of 2 degrees of freedom is 4.3027."""
    mean, half_width = interval([1, 2, 3])
    assert mean == 2
    assert half_width == pytest.approx(4.302653 / math.sqrt(3))


@given(
    values=st.lists(st.floats(0, 1), min_size=2, max_size=9).filter(lambda v: np.ptp(v) > 1e-6),
    level=st.floats(0.5, 0.999),
)
def test_interval_against_scipy(values: list[float], level: float) -> None:
    mean, half_width = interval(values, level)
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    low, high = stats.t.interval(level, len(values) - 1, loc=np.mean(values), scale=error)
    assert (mean - half_width, mean + half_width) == pytest.approx((low, high))


@pytest.mark.parametrize("values", [[], [0.5]])
def test_an_interval_needs_repetitions(values: list[float]) -> None:
    with pytest.raises(ValueError, match=f"at least 2 repetitions, got {len(values)}"):
        interval(values)


def table(gains: list[list[float]]) -> pd.DataFrame:
    """``after`` is ahead of ``before`` by ``gains[seed][task]``, on tasks of uneven difficulty."""
    rows = []
    for seed, row in enumerate(gains):
        for task, gain in enumerate(row):
            start = 0.1 + 0.2 * task + 0.01 * seed
            for method, accuracy in (("before", start), ("after", start + gain), ("other", 0.5)):
                rows.append({"method": method, "seed": seed, "task": task, "accuracy": accuracy})
    return pd.DataFrame(rows)


def test_a_crossed_table_without_residual_by_hand() -> None:
    """Rows 0, 1, 2 and columns 0, 3: squares R = 2 and C = 13.5, so the variance is 15.5 / 6."""
    found = crossed(np.array([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]))
    assert found.value == 2.5
    assert found.error == pytest.approx(math.sqrt(15.5 / 6))
    assert found.freedom == pytest.approx(15.5**2 / (2**2 / 2 + 13.5**2 / 1))


def test_a_component_below_the_residual_is_left_out() -> None:
    """Equal rows or columns leave Student's interval over the other means; if both, all pool."""
    noise = np.array([[1.0, -1.0, 0.0], [-1.0, 0.0, 1.0], [0.0, 1.0, -1.0]])
    by_task = noise + np.array([0.0, 10.0, 20.0])
    for values in (by_task, by_task.T):
        means = by_task.mean(0)
        assert crossed(values).interval() == pytest.approx(
            stats.t.interval(0.95, 2, means.mean(), stats.sem(means))
        )
    assert crossed(noise) == pytest.approx((0, math.sqrt(6 / 8 / 9), 8))


def test_a_table_that_does_not_vary_has_an_interval_of_width_zero() -> None:
    """As where a procedure returns the model that it started from, in every seed and task."""
    for value in (0.0, 0.3):
        assert crossed(np.full((3, 8), value)).interval() == pytest.approx((value, value))


def test_a_crossed_interval_turns_with_the_sign_and_does_not_depend_on_order() -> None:
    values = np.random.default_rng(1).normal(size=(4, 6)) + np.arange(6)
    found = crossed(values)
    assert crossed(values[::-1, [3, 1, 0, 2, 5, 4]]) == pytest.approx(found)
    assert crossed(-values).interval() == pytest.approx([-end for end in found.interval()][::-1])
    one = crossed(values[:, :1])
    assert (one.value, one.interval()[1] - one.value) == pytest.approx(
        interval(values[:, 0].tolist())
    )
    with pytest.raises(ValueError, match=r"complete table of 2 or more rows, got \(1, 6\)"):
        crossed(values[:1])
    with pytest.raises(ValueError, match="complete table"):
        crossed(np.array([[1.0, np.nan], [2.0, 3.0]]))


@pytest.mark.parametrize(("seeds", "tasks"), [(3, 8), (5, 4), (5, 8), (5, 20)])
def test_the_crossed_interval_misses_in_one_case_of_twenty(seeds: int, tasks: int) -> None:
    """Tasks that differ most, as in this book; the study `error_rates` has other cases."""
    random = np.random.default_rng(seeds + tasks)
    tables = 0.4 * random.normal(size=(4000, seeds, 1)) + 3 * random.normal(size=(4000, 1, tasks))
    tables += 1.5 * random.normal(size=(4000, seeds, tasks))
    missed = np.mean([min(crossed(table).one_sided(0.0)) < 0.025 for table in tables])
    assert 0.04 < missed < 0.06


def test_spreads_by_hand() -> None:
    """Deviations 1, 0, 1 and 2, 0, 2 from the medians: half as wide, in each pair alike."""
    found = log_ratio_of_spreads(np.array([1.0, 2.0, 3.0]), np.array([3.0, 1.0, -1.0]))
    assert found == pytest.approx((math.log(1 / 2), 0, 2))
    with pytest.raises(ValueError, match="3 pairs, or a sample without spread"):
        log_ratio_of_spreads(np.ones(3), np.arange(3.0))


def test_pooled_effects_by_hand() -> None:
    """Effects 1 and 3 with errors of 1: Q = 2, so the variance between networks is 1."""
    found = pool([Estimate(1.0, 1.0, 4), Estimate(3.0, 1.0, 9)])
    assert (found.estimate.value, found.between) == pytest.approx((2, 1))
    assert found.heterogeneity == pytest.approx(2)
    assert found.p == pytest.approx(stats.chi2.sf(2, 1))
    assert found.estimate.error == pytest.approx(1)
    reach = math.sqrt(2) * stats.t.ppf(0.975, 1)
    assert (found.low, found.high) == pytest.approx((2 - reach, 2 + reach))


def test_networks_that_agree_are_pooled_as_one() -> None:
    found = pool([Estimate(2.0, 0.5, 4)] * 4)
    assert (found.estimate.value, found.estimate.error, found.between) == (2, 0.25, 0)
    with pytest.raises(ValueError, match="2 or more networks"):
        pool([Estimate(2.0, 0.5, 4)])


def test_what_is_not_paired_is_refused() -> None:
    data = table([[0.0, 0.05], [0.1, 0.3]])
    partial = data.drop(data.index[(data["method"] == "before") & (data["seed"] == 1)][:1])
    with pytest.raises(ValueError, match="after and before were not measured on the same seeds"):
        both_intervals(partial, {"gain": ("after", "before")})


def measured() -> pd.DataFrame:
    """Two methods, three seeds, two tasks; means over tasks: 1, 2, 3 and 2, 4, 6."""
    rows = [
        {"method": method, "seed": seed, "task": task, "accuracy": factor * (seed + 1) + shift}
        for method, factor in (("b", 2), ("a", 1))
        for seed in range(3)
        for task, shift in (("x", -0.5), ("y", 0.5))
    ]
    return pd.DataFrame(rows)


def test_over_seeds_averages_tasks_first() -> None:
    table = over_seeds(measured(), "method")
    assert table.index.tolist() == ["b", "a"], "in order of appearance"
    assert tuple(table.loc["a"]) == pytest.approx(interval([1, 2, 3]))
    assert tuple(table.loc["b"]) == pytest.approx(interval([2, 4, 6]))
    both = over_seeds(measured(), ["method", "task"])
    assert tuple(both.loc[("a", "y"), :]) == pytest.approx(interval([1.5, 2.5, 3.5]))


def test_paired_takes_differences_seed_by_seed() -> None:
    table = paired(measured(), {"more": ("b", "a"), "less": ("a", "b")})
    assert tuple(table.loc["more"]) == pytest.approx(interval([1, 2, 3]))
    assert tuple(table.loc["less"]) == pytest.approx(interval([-1, -2, -3]))


def two_methods() -> pd.DataFrame:
    """B is above A by 0.1 in seed 0 and by 0.3 in seed 1, on both tasks."""
    rows = [
        {"method": method, "seed": seed, "task": task, "accuracy": 0.5 + gap * (method == "b")}
        for method in "ab"
        for seed, gap in ((0, 0.1), (1, 0.3))
        for task in ("x", "y")
    ]
    return pd.DataFrame(rows)


def test_both_intervals_have_both_intervals() -> None:
    found = both_intervals(two_methods(), {"b − a": ("b", "a")}).loc["b − a"]
    assert found["mean"] == pytest.approx(0.2)
    assert found["half_width"] == pytest.approx(0.1 * 12.706, rel=1e-3)  # t with one degree
    assert found["high"] - 0.2 == pytest.approx(found["half_width"])  # the tasks are alike


def test_both_intervals_of_another_column() -> None:
    table = two_methods().rename(columns={"accuracy": "bits"}).assign(accuracy=0.0)
    found = both_intervals(table, {"gap": ("a", "b")}, "bits")
    assert found["mean"].tolist() == pytest.approx([-0.2])
    assert found["high"].tolist() == pytest.approx([-0.2 + 0.1 * 12.706], rel=1e-3)


def test_holm_by_hand() -> None:
    """0.01 counts four times, 0.02 three times, 0.03 twice but not less than that, 0.5 once."""
    p_values = [0.03, 0.01, 0.5, 0.02]
    factors = holm_factors(p_values)
    adjusted = [factor * p for factor, p in zip(factors, p_values, strict=True)]
    assert adjusted == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm_factors([0.0, 1.0]) == [2.0, 1.0]
    assert holm_factors([]) == []
