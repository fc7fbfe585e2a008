"""What chapter 44 reads out of its studies: tables made by hand."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from mergebook.stability.read.remedies import (
    by_matching,
    by_way,
    errors,
    growth,
    longer,
    training_gains,
    way_gains,
)


@pytest.fixture
def merged() -> pd.DataFrame:
    """Two draws, in which tasks a and b change places; per step, the second kind loses 0.1."""
    rows = []
    for kind, seed, draw, task in product(
        ("adam, steps", "both optimisers"), (0, 1), (0, 1), ("a", "b")
    ):
        second = (task == "a") == (draw == 0)
        kept = {"kind": kind, "seed": seed, "draw": draw, "task": task, "second": second}
        kept["method"] = "average"
        ways = {"as they are": 0.0, "per length": 0.0}
        if kind == "adam, steps":
            ways["per step"] = -0.1 if second else 0.3
        if draw == 0:
            ways |= {"all first": 0.1, "all second": 0.3}
        for way, gain in ways.items():
            accuracy = 0.5 + 0.01 * seed + gain
            rows.append({**kept, "way": way, "accuracy": accuracy, "loss": 1 - gain})
    return pd.DataFrame(rows)


def test_ways_are_averaged_over_draws(merged: pd.DataFrame) -> None:
    table = by_way(merged, kind="adam, steps", method="average")
    found = table.set_index(["method", "seed", "task"])["accuracy"]
    assert found["per step", 1, "b"] == pytest.approx(0.51 + 0.1)
    assert found["alike", 0, "a"] == pytest.approx(0.5 + 0.2)
    other = by_way(merged, kind="both optimisers", method="average")
    assert set(other["method"]) == {"as they are", "per length", "alike"}


def test_gains_are_in_points(merged: pd.DataFrame) -> None:
    table = way_gains(merged, "per step", "as they are", method="average")["mean"]
    assert table["Adam, steps"] == pytest.approx(10)
    assert np.isnan(table["both optimisers"]), "amounts of two optimisers do not compare"
    table = way_gains(merged, "as they are", "alike", method="average")["mean"]
    assert table.to_dict() == pytest.approx({"Adam, steps": -20, "both optimisers": -20})


def test_longer_trainings_are_those_with_checkpoints() -> None:
    rows = [
        {"optimiser": "sgd", "learning_rate": rate, "momentum": 0.0, "pull": pull, "steps": steps}
        for rate, pull, lengths in ((0.1, 0.0, (2, 4)), (0.1, 0.5, (4,)), (0.2, 0.0, (4,)))
        for steps in lengths
    ]
    kept = longer(pd.DataFrame(rows))
    assert kept[["learning_rate", "pull", "steps"]].to_numpy().tolist() == [
        [0.1, 0, 2],
        [0.1, 0, 4],
    ]


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
