"""What chapter 44 reads out of its studies: tables made by hand."""

from itertools import product
from typing import Any, Literal

import pandas as pd
import pytest

from mergelib.studies.analysis.stability.remedies import (
    by_matching,
    by_way,
    correlations,
    errors,
    growth,
    training_gains,
    way_gains,
)


@pytest.fixture
def merged() -> pd.DataFrame:
    """Two draws, in which tasks a and b change places; per step, long ones lose 0.1."""
    rows = []
    for optimiser, seed, draw, task in product(("adam", "sgd"), (0, 1), (0, 1), ("a", "b")):
        steps = 1 if (task == "a") == (draw == 0) else 8
        kept = {"optimiser": optimiser, "seed": seed, "draw": draw, "task": task, "steps": steps}
        kept |= {"few": 1, "many": 8, "method": "average"}
        accuracy = 0.5 + 0.01 * seed
        for way, gain in (
            ("as they are", 0.0),
            ("per step", 0.3 if steps == 1 else -0.1),
            ("per length", 0.0),
        ):
            rows.append({**kept, "way": way, "accuracy": accuracy + gain, "loss": 1 - gain})
        if draw == 0:
            own = {"way": "equal steps", "steps": 4}
            rows.append({**kept, **own, "accuracy": 0.7, "loss": 0.0})
    return pd.DataFrame(rows)


def test_ways_are_averaged_over_draws(merged: pd.DataFrame) -> None:
    chosen: dict[str, Any] = {"optimiser": "adam", "few": 1, "method": "average"}
    found = by_way(merged, **chosen).set_index(["method", "seed", "task"])["accuracy"]
    assert found["per step", 1, "b"] == pytest.approx(0.51 + 0.1)
    assert found["equal steps", 0, "a"] == pytest.approx(0.7)
    short = by_way(merged, own="few", **chosen).set_index(["method", "seed", "task"])
    assert short["accuracy"]["per step", 0, "a"] == pytest.approx(0.8)
    assert "equal steps" not in short.index.unique("method")


def test_gains_are_in_points(merged: pd.DataFrame) -> None:
    cases: dict[Literal["few", "many"] | None, float] = {None: 10.0, "few": 30.0, "many": -10.0}
    for own, expected in cases.items():
        table = way_gains(merged, own=own, few=1, method="average")
        assert list(table.index) == [
            f"{name}, {way}" for name in ("Adam", "SGD") for way in ("per step", "per length")
        ]
        assert table["mean"]["SGD, per step"] == pytest.approx(expected)
        assert table["mean"]["Adam, per length"] == pytest.approx(0)


def test_training_gains_are_against_plain_training() -> None:
    kinds = {"plain": 0.5, "plain, half as long": 0.4, "linearised": 0.6}
    kinds |= {"sharpness-aware, 0.05": 0.45, "sharpness-aware, 0.2": 0.3}
    rows = [
        {"kind": kind, "method": method, "seed": seed, "task": "a", "accuracy": value, "loss": 1}
        for kind, value in kinds.items()
        for method in ("average", "individual")
        for seed in (0, 1)
    ]
    rows.append({**rows[0], "method": "ties", "accuracy": 9.0})
    gains = training_gains(pd.DataFrame(rows), "average")["mean"]
    assert gains.to_dict() == pytest.approx(
        {kind: value - 0.5 for kind, value in kinds.items() if kind != "plain"}
    )
    half = training_gains(pd.DataFrame(rows), "average", base="plain, half as long")["mean"]
    assert half["linearised"] == pytest.approx(0.2)
    assert len(half) == 3


def test_growth_finds_the_power() -> None:
    rows = [
        {"seed": seed, "optimiser": name, "task": task, "steps": steps, "distance": far * steps**p}
        for seed in (0, 1)
        for name, p in (("adam", 0.5), ("sgd", 1.0))
        for task, far in (("a", 1.0), ("b", 3.0))
        for steps in (1, 10, 100)
    ]
    table = growth(pd.DataFrame(rows))
    assert table["adam"].tolist() == pytest.approx([0.5, 0.5])
    assert table["sgd"].tolist() == pytest.approx([1.0, 1.0])


def test_correlations_are_by_seed_and_granularity() -> None:
    coefficients = [(0, "task", [1, 2, 3]), (1, "task", [3, 1, 2]), (0, "layer", [3, 2, 1])]
    rows = [
        {"seed": seed, "granularity": fine, "coefficient": value, "heterogeneity": place}
        for seed, fine, values in coefficients
        for place, value in enumerate(values)
    ]
    found = correlations(pd.DataFrame(rows), "task", "heterogeneity")
    assert found.to_dict() == pytest.approx({0: 1.0, 1: -0.5})


def test_errors_add_up_to_the_test_loss() -> None:
    rows = [
        {"method": "surgery", "of": "train", "loss": 0.9, "train_loss": 0.5},
        {"method": "average", "of": "", "loss": 1.5, "train_loss": 1.2},
    ]
    table = errors(pd.DataFrame(rows))
    assert table["method"].tolist() == ["surgery, train", "average"]
    assert table["generalisation"].tolist() == pytest.approx([0.4, 0.3])
    assert (table["optimisation"] + table["generalisation"]).tolist() == pytest.approx([0.9, 1.5])


def test_pairs_are_told_apart_by_matching() -> None:
    rows = [
        {"pair": pair, "matched": matched, "loss": 1.0}
        for pair in ("same task", "two tasks")
        for matched in (False, True)
    ]
    assert by_matching(pd.DataFrame(rows), "two tasks")["method"].tolist() == [
        "as trained",
        "matched",
    ]
