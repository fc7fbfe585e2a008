"""Verdicts from checks worked out by hand, and the rows of CART on made-up results."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mergelib.ledger import Check, Claim, cogram, frank_wolfe, judge, positive, verdict, within
from mergelib.ledger.cart import CLAIMS
from mergelib.records import results

UP, DOWN, OPEN = Check("", 2, 1, 3), Check("", -2, -3, -1), Check("", 1, -1, 3)


def test_outcomes_and_verdicts() -> None:
    assert [check.outcome for check in (UP, DOWN, OPEN)] == ["holds", "fails", "open"]
    assert verdict([UP, UP]) == "holds"
    assert verdict([UP, OPEN]) == verdict([DOWN, UP]) == "partly"
    assert verdict([OPEN, DOWN]) == verdict([OPEN]) == "does not hold here"


def test_positive_is_students_interval() -> None:
    values = [1.0, 2.0, 4.0]
    check = positive("three", values, "nats")
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert (check.value, check.low, check.high) == pytest.approx((7 / 3, low, high))
    assert check.unit == "nats"
    with pytest.raises(ValueError, match="at least 2"):
        positive("one", [1.0])


@pytest.mark.parametrize(
    ("values", "outcome"),
    [([0.1, -0.1, 0.1, -0.1], "holds"), ([5.0, 5.1, 4.9], "fails"), ([-5.0, -5.1], "fails")],
)
def test_within(values: list[float], outcome: str) -> None:
    check = within("near", values, 2.0)
    assert check.outcome == outcome
    assert check.low <= check.value <= check.high
    assert check.value == pytest.approx(2 - abs(np.mean(values)))


def claim(key: str, checks: list[Check] | Exception) -> Claim:
    def test() -> list[Check]:
        if isinstance(checks, Exception):
            raise checks
        return checks

    return Claim(key, "paper", "Table 1", "it helps", "a lot", "on seeds", "page", test)


def test_judge() -> None:
    missing = ValueError("no result 'x'; there are: none")
    claims = [claim("A", [UP, OPEN]), claim("B", missing), claim("C", [UP])]
    table, checks = judge(claims)
    assert table["verdict"].tolist() == ["partly", "not tested", "holds"]
    assert table["ours"].tolist() == [
        "1 holds, 1 open, 0 fails; differences 1.0 to 2.0 points",
        "no result 'x'; there are: none",
        "1 holds, 0 open, 0 fails; differences 2.0 to 2.0 points",
    ]
    assert checks["claim"].tolist() == ["A", "A", "C"]
    assert checks["outcome"].tolist() == ["holds", "open", "holds"]


def test_keys_are_unique_and_in_order() -> None:
    assert [each.key for each in CLAIMS] == [f"C{i}" for i in range(1, 11)]
    assert [each.key for each in frank_wolfe.CLAIMS] == [f"F{i}" for i in range(1, 9)]
    assert [each.key for each in cogram.CLAIMS] == [f"G{i}" for i in range(1, 6)]


def order_table(accuracies: dict[str, float]) -> dict[str, Any]:
    return {
        "test": [
            {"seed": seed, "method": method, "task": task, "accuracy": value + 0.001 * seed}
            for method, value in accuracies.items()
            for seed in range(3)
            for task in "ab"
        ]
    }


def test_the_order_of_methods_is_judged_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    ladder = {"average": 0.5, "task_arithmetic": 0.55, "ties": 0.52, "consensus": 0.6, "cart": 0.7}
    monkeypatch.setattr(results, "load_result", lambda _: order_table(ladder))
    table, checks = judge(CLAIMS[:1])
    assert table["verdict"].tolist() == ["partly"]
    assert len(checks) == 3 * 2 * 4
    steps = pd.DataFrame(checks).groupby(checks["what"].str.split(": ").str[1])["value"].first()
    assert steps["ties above task_arithmetic"] == pytest.approx(-3)
    assert steps["cart above consensus"] == pytest.approx(10)


def test_a_result_that_is_missing_is_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> dict[str, Any]:
        raise ValueError(f"no result {name!r}")

    monkeypatch.setattr(results, "load_result", missing)
    table, checks = judge([*CLAIMS, *frank_wolfe.CLAIMS, *cogram.CLAIMS])
    assert set(table["verdict"]) == {"not tested"}
    assert checks.empty


def pooled(accuracies: dict[str, tuple[float, float]]) -> dict[str, Any]:
    return {
        "test": [
            {"seed": seed, "method": method, "count": count, "accuracy": value + 0.001 * seed}
            for method, pair in accuracies.items()
            for count, value in zip((0, 16), pair, strict=True)
            for seed in range(3)
        ]
    }


def test_the_number_of_tasks_is_judged_from_four_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leads over the average are 0, 4, 5 points, and over the others 8, 9, 6; CART loses 10."""
    normalised = {
        "cart": {2: 0.9, 4: 0.9, 20: 0.8},
        "average": {2: 0.9, 4: 0.86, 20: 0.75},
        "task_arithmetic": {2: 0.82, 4: 0.81, 20: 0.74},
    }
    normalised |= {
        "cart, scale searched": normalised["cart"],
        "ties": normalised["task_arithmetic"],
    }
    rows = [
        {"method": method, "count": count, "seed": seed, "normalised": value + 0.001 * seed * noise}
        for (method, each), noise in zip(normalised.items(), range(5), strict=True)
        for count, value in each.items()
        for seed in range(3)
    ]
    monkeypatch.setattr(results, "load_result", lambda _: {"test": rows})
    _, checks = judge([CLAIMS[6]])
    found = checks.set_index("what")["value"]
    assert found["cart loses less than average, 4 to 20 tasks"] == pytest.approx(1)
    assert found["cart loses less than ties, 4 to 20 tasks"] == pytest.approx(-3)
    assert found["cart is above average at every number from 4 tasks"] == pytest.approx(4 - 0.1)
    assert found["cart is above ties at every number from 4 tasks"] == pytest.approx(6 - 0.4)


def test_irrelevant_experts_must_hurt_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    others = dict.fromkeys(("average", "task_arithmetic", "ties", "adamerging"), (0.6, 0.5))
    steady = dict.fromkeys(("frank_wolfe", "frank_wolfe, labels"), (0.6, 0.599))
    found = {}
    for name, methods in (
        ("as claimed", {**others, **steady}),
        ("walk falls too", {**others, **steady, "frank_wolfe": (0.6, 0.4)}),
        ("nobody is hurt", {**dict.fromkeys(others, (0.6, 0.7)), **steady}),
    ):
        record = pooled(methods)
        monkeypatch.setattr(results, "load_result", lambda _, record=record: record)
        table, checks = judge([frank_wolfe.CLAIMS[1]])
        found[name] = (table["verdict"].item(), checks["outcome"].value_counts().to_dict())
    assert found["as claimed"] == ("holds", {"holds": 28})
    assert found["walk falls too"] == ("partly", {"holds": 18, "fails": 10})
    assert found["nobody is hurt"] == ("partly", {"holds": 4, "fails": 24})


def test_a_negative_coefficient_is_outside_the_hull(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(smallest: float) -> dict[str, Any]:
        rows = [
            {"seed": seed, "method": method, "smallest": value, "error": 1e-7 * (1 + seed)}
            for seed in range(3)
            for method, value in (("hard", smallest), ("soft, unconstrained", -1.0))
        ]
        return {"hull": rows}

    for smallest, expected in ((0.0, "holds"), (-0.1, "partly")):
        monkeypatch.setattr(results, "load_result", lambda _, s=smallest: record(s))
        assert judge([frank_wolfe.CLAIMS[3]])[0]["verdict"].item() == expected


def fused(values: dict[str, float], spread: dict[str, float]) -> dict[str, Any]:
    """A result of the study of pairs: means by level, and how much seeds vary around them."""
    rows: list[dict[str, Any]] = []
    for data, start in cogram.CASES:
        for seed in range(20):
            # no pattern of the one is a pattern of the other
            sway = {"layer": (-1) ** seed, "strength": (seed % 5 - 2) / 2}
            own = {"seed": seed, "data": data, "start": start}
            strength = 0.8 + 0.05 * sway["strength"]
            plain = {"a": strength, "b": strength, "fisher": 0.6 + 0.01 * sway["layer"]}
            rows += [
                {**own, "method": method, "accuracy": value, "levels": None, "prototypes": None}
                for method, value in plain.items()
            ]
            for levels, mean in values.items():
                moved = mean + spread[levels] * (sway["strength"] + 0.01 * sway["layer"])
                settings = {"levels": levels, "prototypes": "arithmetic", "iterations": 1}
                rows.append({**own, "method": "cogram", **settings, "accuracy": moved})
    return {"test": rows}


def test_levels_are_compared_by_mean_and_by_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"layer": 0.7, "layer, neuron": 0.65, "layer, neuron, weight": 0.6}
    spread = {"layer": 0.01, "layer, neuron": 0.1, "layer, neuron, weight": 0.1}
    record = fused(values, spread)
    monkeypatch.setattr(results, "load_result", lambda _: record)
    table, checks = judge([cogram.CLAIMS[1]])
    assert table["verdict"].item() == "holds"
    assert len(checks) == 2 * 4 * 2 * 2
    means = checks[checks["what"].str.contains("layer above layer, neuron, weight")]
    np.testing.assert_allclose(means["value"], 10, atol=0.2)
    own = pd.DataFrame(record["test"])
    mine = own[(own["data"] == "homogeneous") & (own["start"] == "own")]
    by = {each: 100 * mine.loc[mine["levels"] == each, "accuracy"] for each in values}
    found = checks.loc[checks["unit"] == "points²", "value"]
    expected = by["layer, neuron"].var(ddof=0) - by["layer"].var(ddof=0)
    np.testing.assert_allclose(found, expected)


def test_weak_networks_are_told_by_rank_correlation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slope above one, so that weak seeds lose more than strong ones."""
    record = fused({"layer": 0.7}, {"layer": 0.2})
    monkeypatch.setattr(results, "load_result", lambda _: record)
    table, checks = judge([cogram.CLAIMS[4]])
    assert table["verdict"].item() == "holds"
    ranks = checks[checks["unit"] == "Spearman's ρ"]
    assert (ranks["value"] > 0.9).all()
    assert (ranks["high"] <= 1).all()
    error = np.sqrt((1 + ranks["value"] ** 2 / 2) / 17)
    expected = np.tanh(np.arctanh(ranks["value"]) - 1.959964 * error)
    np.testing.assert_allclose(ranks["low"], expected, rtol=1e-5)
