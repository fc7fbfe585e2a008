"""Intervals and p-values of checks, against scipy and against each other."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mergebook.ledger import Check
from mergebook.ledger.checks import SEED, Kind, Limit
from mergebook.ledger.verdicts import outcomes
from mergebook.sail.claims.speeds import TARGETS, measured
from mergebook.sail.claims.spirals import maintained
from mergebook.sail.read.reached import SIDES, bounded

RANDOM = np.random.default_rng(0)
NOISE = RANDOM.normal(0.4, 1, (6, 5))
PAIRS = RANDOM.multivariate_normal([0, 0], [[1, 0.6], [0.6, 4]], 30)


def test_a_mean_over_seeds_has_students_interval() -> None:
    for check in (Check("", NOISE[:, 0]), Check("", NOISE, columns="designed")):
        means = check.values.reshape(6, -1).mean(1)
        expected = stats.ttest_1samp(means, 0)
        ends = expected.confidence_interval()
        assert check.interval() == pytest.approx((ends.low, ends.high))
        assert min(check.chances) == pytest.approx(expected.pvalue)


def test_p_values_and_intervals_say_the_same() -> None:
    """Where the interval ends at a bound, the p-value is one in twenty."""
    cases: list[tuple[np.ndarray, dict[str, Any]]] = [(NOISE, {}), (NOISE, {"columns": "designed"})]
    cases += [(PAIRS, {"kind": "spread"}), (PAIRS, {"kind": "correlation"})]
    for values, option in cases:
        for level in (0.95, 0.99):
            low, high = Check("", values, **option).interval(level)
            for bound, side in ((low, 0), (high, 1)):
                p = Check("", values, bound=bound, **option).chances[side]
                assert p == pytest.approx(1 - level, abs=1e-6)


def test_exchanging_sides_turns_every_sign() -> None:
    there, back = Check("", NOISE), Check("", -NOISE)
    assert back.value == -there.value
    assert back.interval() == pytest.approx([-end for end in there.interval()][::-1])
    assert back.chances == pytest.approx(there.chances[::-1])


def test_within_a_tolerance_both_ends_count() -> None:
    """Two one-sided tests at 2.5 %: the interval lies inside where the p-value is below 5 %."""
    low, high = Check("", NOISE).interval()
    reach = max(-low, high)
    assert Check("", NOISE, tolerance=1.02 * reach).chances[0] < 0.05
    assert Check("", NOISE, tolerance=0.98 * reach).chances[0] > 0.05
    far = NOISE + 10
    assert Check("", far, tolerance=5.0).chances[1] < 0.05
    assert Check("", -far, tolerance=5.0).chances[1] < 0.05


@pytest.mark.parametrize("values", [np.full(4, 0.3), np.zeros((3, 2)), np.array([1e9, 1e9 + 1e-6])])
def test_values_that_do_not_vary_have_no_interval(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"it: all \d values are .* state it as kind='fact'"):
        Check("it", values)
    fact = Check("", values, kind="fact", bound=-1.0)
    assert fact.chances == (0.0, 1.0)
    assert np.isnan(fact.detectable)


@pytest.mark.parametrize(("kind", "rows"), [("correlation", 3), ("spread", 2), ("mean", 1)])
def test_each_kind_needs_its_rows(kind: Kind, rows: int) -> None:
    with pytest.raises(ValueError, match=f"it: a {kind} needs {rows + 1} or more rows"):
        Check("it", PAIRS[:rows], kind=kind)


def test_spreads_are_compared_by_mean_absolute_deviations() -> None:
    """Resampling the pairs gives the same interval, and other scales do not change its length."""
    check = Check("", PAIRS, kind="spread")
    deviations = np.abs(PAIRS - np.median(PAIRS, axis=0)).mean(0)
    assert check.value == pytest.approx(np.log(deviations[0] / deviations[1]))
    drawn = PAIRS[RANDOM.integers(30, size=(4000, 30))]
    sizes = np.abs(drawn - np.median(drawn, axis=1, keepdims=True)).mean(1)
    ends = np.quantile(np.log(sizes[:, 0] / sizes[:, 1]), [0.025, 0.975])
    np.testing.assert_allclose(check.interval(), ends, atol=0.08)
    wider = Check("", PAIRS * [7, 1], kind="spread")
    assert wider.value - check.value == pytest.approx(np.log(7))
    assert np.ptp(wider.interval()) == pytest.approx(np.ptp(check.interval()))


def test_correlations_against_plain_resampling() -> None:
    check = Check("", PAIRS, kind="correlation")
    assert check.value == pytest.approx(stats.spearmanr(*PAIRS.T).statistic)
    error = np.sqrt((1 + check.value**2 / 2) / 27)
    half = stats.t.ppf(0.975, 29) * error
    ends = np.tanh(np.arctanh(check.value) + np.array([-half, half]))
    assert check.interval() == pytest.approx(tuple(ends))
    drawn = [stats.spearmanr(PAIRS[RANDOM.integers(30, size=30)]).statistic for _ in range(2000)]
    np.testing.assert_allclose(check.interval(), np.quantile(drawn, [0.025, 0.975]), atol=0.06)


def test_fractions_have_the_exact_binomial_test() -> None:
    """None of five against a chance of 6/31 shows nothing, and all of five do."""
    none, every = (Check("", np.full(5, x), kind="fraction", bound=6 / 31) for x in (0, 1))
    assert none.chances[1] == pytest.approx(2 * (25 / 31) ** 5)
    assert every.chances[0] == pytest.approx(2 * (6 / 31) ** 5)
    assert every.interval() == pytest.approx((0.025 ** (1 / 5), 1))
    with pytest.raises(ValueError, match="it: a fraction needs values of 0 and 1"):
        Check("it", np.array([0.5, 1.0]), kind="fraction")


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
    for check in checks:
        low, high = check.interval()
        assert np.isinf(low) == (limit in ("most", "none"))
        assert np.isinf(high) == (limit in ("least", "none"))
        assert np.isfinite(check.detectable)
    assert [result.shown for result in outcomes(checks)] == shown


def as_they_are(rows: pd.DataFrame) -> pd.DataFrame:
    return rows


EARLY = ": one side is there at the first reading)"


@pytest.mark.parametrize(
    ("own", "rival", "early", "rival_early", "words"),
    [
        (5, 5, 1, 0, ""),
        (5, 3, 0, 0, " (a lower bound)"),
        (3, 4, 0, 0, " (an upper bound)"),
        (3, 3, 0, 0, " (no factor)"),
        (5, 5, 2, 1, f" (a lower bound{EARLY}"),
        (5, 3, 2, 0, f" (a lower bound{EARLY}"),
        (5, 5, 0, 2, f" (an upper bound{EARLY}"),
        (5, 5, 2, 2, f" (no factor{EARLY}"),
        (5, 3, 0, 2, f" (no factor{EARLY}"),
    ],
)
def test_speed_ups_are_bounds_where_a_side_rarely_gets_there_or_is_early(
    own: int, rival: int, early: int, rival_early: int, words: str
) -> None:
    """What was reached never changes a role."""
    seeds = range(5)
    rows = pd.DataFrame({"seed": seeds, "speed": [1.0, 1.2, 0.8, 1.1, 0.9], "size": "a"})
    for name, count in zip(SIDES, (own, rival, early, rival_early), strict=True):
        rows[name] = [seed < count for seed in seeds]
    assert bounded(rows, "size").item() == bool(words)
    check = Check(role="primary", **measured("faster", as_they_are, SEED, rows))
    assert check.what == f"faster{words}"
    assert check.value == pytest.approx(1)


@pytest.mark.parametrize(("speed", "fraction"), [(3.0, 1.0), (-1.0, 0.0)])
def test_speeds_that_are_all_bounds_and_the_same_are_counted(speed: float, fraction: float) -> None:
    """Always there at once, never there: no spread, so that only the signs can be tested."""
    rows = pd.DataFrame({"seed": range(5), "speed": speed, "size": "a"})
    rows[list(SIDES)] = [True, False, True, False]
    check = Check(**measured("faster", as_they_are, SEED, rows))
    assert (check.kind, check.value, check.bound) == ("fraction", fraction, 0.5)
    assert check.chances[0] == pytest.approx(min(1, 2 * 0.5**5 if speed > 0 else 1))
    tasks = pd.concat([rows.assign(target=name, speed=speed + i) for i, name in enumerate("xyz")])
    check = Check(**measured("faster", as_they_are, TARGETS, tasks))
    assert check.values.shape == (5, 3)
    assert check.columns == "tasks"


@pytest.mark.parametrize(
    ("lead", "shown"),
    [
        (2.0, ["holds", "holds"]),
        (-0.2, ["holds", "fails"]),
        (-2.0, ["fails", "fails"]),
    ],
)
def test_who_is_better_has_maintained_its_accuracy(lead: float, shown: list[str]) -> None:
    scratch = np.array([50.0, 60.0, 55.0, 52.0, 58.0])
    own = scratch + lead + np.array([0.02, -0.01, 0.0, 0.01, -0.02])
    sides = {"scratch": scratch / 100, "SAIL": own / 100}
    rows = pd.DataFrame({"seed": range(5), **sides}).melt("seed", [*sides], "arm", "accuracy")
    options: dict[str, Any] = {"about": {}, "result": "x", "by": "arm", "keys": SEED}
    no_worse, better = (each.of(rows) for each in maintained("cell", "SAIL", **options))
    assert [outcomes([check])[0].shown for check in (no_worse, better)] == shown
    assert [no_worse.role, better.role] == ["primary", "secondary"]
