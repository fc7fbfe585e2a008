"""Intervals and p-values of checks, against scipy and against each other."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mergelib.ledger import Check
from mergelib.ledger.checks import Limit
from mergelib.ledger.sail.speeds import faster, more
from mergelib.ledger.sail.spirals import maintained
from mergelib.ledger.verdicts import outcomes
from mergelib.records.statistics import paired_bootstrap
from mergelib.studies.analysis.sail.reached import SIDES, bounded

RANDOM = np.random.default_rng(0)
NOISE = RANDOM.normal(0.4, 1, (6, 5))
PAIRS = RANDOM.multivariate_normal([0, 0], [[1, 0.6], [0.6, 4]], 30)


def test_a_mean_has_students_interval_and_the_paired_bootstraps() -> None:
    check = Check("", NOISE)
    means = NOISE.mean(1)
    found = stats.ttest_1samp(means, 0)
    ends = found.confidence_interval()
    over = check.over_seeds[0]
    assert (over.low, over.high) == pytest.approx((ends.low, ends.high))
    assert 2 * min(over.below, over.above) == pytest.approx(found.pvalue)
    cells = [(seed, task, NOISE[seed, task]) for seed in range(6) for task in range(5)]
    rows = [(seed, task, "a", value) for seed, task, value in cells]
    rows += [(seed, task, "b", 0.0) for seed, task, _ in cells]
    table = pd.DataFrame(rows, columns=["seed", "task", "method", "accuracy"])
    both = check.resampled[0]
    expected = paired_bootstrap(table, "a", "b", draws=5000)
    assert (check.value, both.low, both.high) == pytest.approx(expected)
    assert check.interval == (min(over.low, both.low), max(over.high, both.high))


def test_p_values_and_intervals_say_the_same() -> None:
    """Where the interval ends at a bound, the chance is one in twenty."""
    check = Check("", NOISE)
    low, high = check.interval
    for bound, side in ((low, 0), (high, 1)):
        assert Check("", NOISE, bound=bound).chances[side] == pytest.approx(0.05, abs=0.002)


def test_exchanging_sides_turns_every_sign() -> None:
    there, back = Check("", NOISE), Check("", -NOISE)
    assert back.value == -there.value
    assert back.interval == pytest.approx((-there.interval[1], -there.interval[0]))
    assert back.chances == pytest.approx(there.chances[::-1], abs=1e-3)


def test_within_a_tolerance_both_ends_count() -> None:
    """Two one-sided tests at 2.5 %: the interval lies inside just where the chance is below 5 %."""
    low, high = Check("", NOISE).interval
    reach = max(-low, high)
    assert Check("", NOISE, tolerance=1.02 * reach).chances[0] < 0.05
    assert Check("", NOISE, tolerance=0.98 * reach).chances[0] > 0.05
    far = NOISE + 10
    assert Check("", far, tolerance=5.0).chances[1] < 0.05
    assert Check("", -far, tolerance=5.0).chances[1] < 0.05


def test_values_that_do_not_vary_decide() -> None:
    assert Check("", np.full(4, 0.3)).chances == pytest.approx((0, 1), abs=1e-3)
    assert Check("", np.zeros(4)).chances == (1, 1)


def test_spreads_are_compared_by_pitman_and_morgan() -> None:
    check = Check("", PAIRS, kind="spread")
    first, second = PAIRS.T
    assert check.value == pytest.approx(np.log(first.std() / second.std()))
    p = stats.pearsonr(first + second, first - second).pvalue
    assert 2 * min(check.over_seeds[0].below, check.over_seeds[0].above) == pytest.approx(p)
    drawn = [PAIRS[RANDOM.integers(30, size=30)].std(axis=0) for _ in range(4000)]
    ends = np.quantile([np.log(a / b) for a, b in drawn], [0.025, 0.975])
    both = check.resampled[0]
    np.testing.assert_allclose([both.low, both.high], ends, atol=0.04)


def test_correlations_against_plain_resampling() -> None:
    check = Check("", PAIRS, kind="correlation")
    assert check.value == pytest.approx(stats.spearmanr(*PAIRS.T).statistic)
    error = np.sqrt((1 + check.value**2 / 2) / 27)
    half = stats.t.ppf(0.975, 29) * error
    ends = np.tanh(np.arctanh(check.value) + np.array([-half, half]))
    assert (check.over_seeds[0].low, check.over_seeds[0].high) == pytest.approx(tuple(ends))
    drawn = [stats.spearmanr(PAIRS[RANDOM.integers(30, size=30)]).statistic for _ in range(2000)]
    both = check.resampled[0]
    np.testing.assert_allclose([both.low, both.high], np.quantile(drawn, [0.025, 0.975]), atol=0.05)


def test_what_could_be_shown_is_shown_in_four_cases_of_five() -> None:
    """Noise of that size with that mean: Student's test rejects about 80 % of the time."""
    noise = RANDOM.normal(0, 1, (3000, 12))
    power = []
    for sample in noise[:40]:
        centred = (sample - sample.mean()) / sample.std(ddof=1)
        distance = Check("", centred).detectable
        shifted = noise / noise.std() + distance
        power.append(np.mean(stats.ttest_1samp(shifted, 0, axis=1).pvalue < 0.05))
    assert 0.77 < np.mean(power) < 0.86


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        ("", ["holds", "fails"]),
        ("least", ["holds", "open"]),
        ("most", ["open", "fails"]),
        ("none", ["open", "open"]),
    ],
)
def test_bounds_of_a_quantity_decide_on_one_side(limit: Limit, shown: list[str]) -> None:
    values = np.array([1.0, 1.1, 0.9, 1.05, 0.95])
    checks = [Check("", sign * values, limit=limit) for sign in (1, -1)]
    assert [outcome for outcome, _ in outcomes(checks)] == shown


@pytest.mark.parametrize(
    ("own", "rival", "begun", "rival_begun", "words", "role"),
    [
        (5, 5, 1, 0, "", "primary"),
        (5, 3, 0, 0, " (a lower bound)", "primary"),
        (3, 4, 0, 0, " (an upper bound)", "primary"),
        (3, 3, 0, 0, " (no factor)", "secondary"),
        (5, 5, 2, 1, " (a lower bound: one side begins there)", "secondary"),
        (5, 3, 2, 0, " (a lower bound: one side begins there)", "secondary"),
        (5, 5, 0, 2, " (an upper bound: one side begins there)", "secondary"),
        (5, 5, 2, 2, " (no factor: one side begins there)", "secondary"),
        (5, 3, 0, 2, " (no factor: one side begins there)", "secondary"),
    ],
)
def test_speed_ups_are_bounds_where_a_side_seldom_gets_there_or_begins_there(
    own: int, rival: int, begun: int, rival_begun: int, words: str, role: str
) -> None:
    seeds = range(5)
    rows = pd.DataFrame({"seed": seeds, "speed": [1.0, 1.2, 0.8, 1.1, 0.9], "size": "a"})
    for name, count in zip(SIDES, (own, rival, begun, rival_begun), strict=True):
        rows[name] = [seed < count for seed in seeds]
    assert bounded(rows, "size").item() == bool(words)
    check = faster("faster", rows, {"size": "a"}, "primary")
    assert (check.what, check.role) == (f"faster{words}", role)
    assert check.value == pytest.approx(1)


@pytest.mark.parametrize(
    ("own", "other", "limit"),
    [
        ("", "", ""),
        ("begun", "", "least"),
        ("", "begun", "most"),
        ("begun", "rival_begun", "least"),
        ("begun", "begun", "none"),
    ],
)
def test_a_difference_of_bounds_is_one_where_both_go_the_same_way(
    own: str, other: str, limit: Limit
) -> None:
    rows = pd.DataFrame({"seed": 2 * [*range(5)], "speed": 1.0, "size": 5 * ["a"] + 5 * ["b"]})
    rows[list(SIDES)] = [True, True, False, False]
    for size, name in (("a", own), ("b", other)):
        if name:
            rows.loc[rows["size"] == size, name] = True
    assert more("more", rows, {"size": "a"}, {"size": "b"}).limit == limit


@pytest.mark.parametrize(
    ("lead", "shown"),
    [
        (2.0, ["holds", "holds"]),
        (-0.2, ["fails", "holds"]),
        (-2.0, ["fails", "fails"]),
    ],
)
def test_who_is_better_has_maintained_its_accuracy(lead: float, shown: list[str]) -> None:
    scratch = pd.Series([50.0, 60.0, 55.0, 52.0, 58.0])
    own = scratch + lead + pd.Series([0.02, -0.01, 0.0, 0.01, -0.02])
    better, no_worse = maintained("cell", own, scratch)
    assert [outcomes([check])[0][0] for check in (better, no_worse)] == shown
    assert [better.role, no_worse.role] == ["primary", "secondary"]
