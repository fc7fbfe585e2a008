"""What chapter 44 reads out of its studies: tables made by hand."""

from itertools import product

import pandas as pd
import pytest

from mergebook.stability.read.remedies import (
    by_matching,
    by_way,
    errors,
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
