"""Intervals against scipy and by hand; the paired bootstrap on tables whose answer is known."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mergelib.records.results import load_table
from mergelib.records.statistics import (
    both_intervals,
    holm,
    interval,
    over_seeds,
    paired,
    paired_bootstrap,
    pitman_morgan,
    resampled_means,
    resampling,
    written_both,
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


def test_a_constant_gain_has_no_spread() -> None:
    found = paired_bootstrap(table([[0.1, 0.1, 0.1], [0.1, 0.1, 0.1]]), "after", "before")
    assert found == pytest.approx((0.1, 0.1, 0.1))


@pytest.mark.parametrize("gains", [[[0.0, 0.0], [0.2, 0.2]], [[0.0, 0.2], [0.0, 0.2]]])
def test_two_seeds_or_two_tasks_are_drawn_with_replacement(gains: list[list[float]]) -> None:
    """Gains of 0 and 0.2: a quarter of the draws each is all the one or all the other."""
    assert paired_bootstrap(table(gains), "after", "before") == pytest.approx((0.1, 0.0, 0.2))


def test_against_every_possible_draw() -> None:
    """Three seeds, two tasks: 27 x 4 equally likely draws, listed and weighed."""
    gains = np.array([[0.0, 0.05], [0.1, 0.3], [0.02, 0.4]])
    triples = np.stack(np.meshgrid(*[range(3)] * 3), -1).reshape(-1, 3)
    pairs = np.stack(np.meshgrid(*[range(2)] * 2), -1).reshape(-1, 2)
    means = [gains[rows][:, columns].mean() for rows in triples for columns in pairs]
    assert len(means) == 108
    mean, low, high = paired_bootstrap(table(gains.tolist()), "after", "before", draws=40_000)
    assert mean == pytest.approx(gains.mean())
    assert (low, high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.01)


def test_swapping_methods_turns_the_sign_and_seeds_repeat() -> None:
    data = table([[0.0, 0.05], [0.1, 0.3], [0.02, 0.4]])
    mean, low, high = paired_bootstrap(data, "after", "before", draws=500)
    assert paired_bootstrap(data, "before", "after", draws=500) == pytest.approx(
        (-mean, -high, -low)
    )
    assert paired_bootstrap(data, "after", "before", draws=500) == (mean, low, high)
    shuffled = data.sample(frac=1, random_state=0)
    assert paired_bootstrap(shuffled, "after", "before", draws=500) == (mean, low, high)


def test_what_is_not_paired_is_refused() -> None:
    data = table([[0.0, 0.05], [0.1, 0.3]])
    partial = data.drop(data.index[(data["method"] == "before") & (data["seed"] == 1)])
    with pytest.raises(ValueError, match="after and before were not measured on the same seeds"):
        paired_bootstrap(partial, "after", "before")


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
    assert (found["low"], found["high"]) == pytest.approx((0.1, 0.3))


def test_both_intervals_of_another_column() -> None:
    table = two_methods().rename(columns={"accuracy": "bits"}).assign(accuracy=0.0)
    found = both_intervals(table, {"gap": ("a", "b")}, "bits")
    assert found["mean"].tolist() == pytest.approx([-0.2])
    assert found["high"].tolist() == pytest.approx([-0.1])


def test_both_intervals_agree_with_the_bootstrap_on_results() -> None:
    table = load_table("vision20-baselines")
    found = both_intervals(table, {"Iso-C": ("iso_c", "cart")}).loc["Iso-C"]
    ends = [found["mean"], found["low"], found["high"]]
    assert ends == pytest.approx(list(paired_bootstrap(table, "iso_c", "cart")))


def test_both_intervals_as_text() -> None:
    rows = pd.DataFrame({"mean": [1.0], "half_width": [0.25], "low": [-0.5], "high": [2.5]})
    assert written_both(rows, 2).to_numpy().tolist() == [["1.00 ± 0.25", "[-0.50, 2.50]"]]


def test_pitman_morgan_by_hand_and_its_interval_holds_what_it_does_not_reject() -> None:
    random = np.random.default_rng(3)
    first, second = random.multivariate_normal([0, 0], [[1, 0.5], [0.5, 2]], 25).T
    ratio, low, high, p = pitman_morgan(first, second)
    assert ratio == pytest.approx(np.log(first.std() / second.std()))
    assert p == pytest.approx(stats.pearsonr(first + second, first - second).pvalue)
    for end in (low, high):  # scaled by an end of the interval, the test stands at 5 %
        assert pitman_morgan(first / np.exp(end), second)[3] == pytest.approx(0.05)
    with pytest.raises(ValueError, match="no spread"):
        pitman_morgan([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])


def test_holm_by_hand() -> None:
    """0.01 counts four times, 0.02 three times, 0.03 twice but not less than that, 0.5 once."""
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([]) == []


def test_resampling_shares_sum_to_one() -> None:
    rows, columns = resampling(4, 3, 50)
    assert rows.shape == (50, 4)
    assert columns.shape == (50, 3)
    np.testing.assert_allclose(rows.sum(1), 1)
    assert len(resampled_means(np.arange(4.0), draws=7)) == 7
