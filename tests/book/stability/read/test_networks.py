"""What chapter 40 reads from measurements, on records with known answers."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mergebook.stability.read.networks import (
    fits,
    moves_with_laws,
    sweeps,
    theorem_3,
)

SETTINGS = [
    *((0.02, 8, 128, "drawn"), (0.02, 8, 128, "epochs")),
    *((0.01, 8, 128, "drawn"), (0.02, 2, 128, "drawn"), (0.02, 8, 64, "drawn")),
]


def retrained(powers: dict[str, float], noise: float = 4.0) -> dict[str, Any]:
    """Two tasks, two seeds; s is a product of powers, the first seed's twice the second's."""
    names = ("rate", "batch", "examples", "sampling")
    rows = []
    for seed, task, setting, steps in product((0, 1), "ab", SETTINGS, (4, 8, 16, 32, 64)):
        row: dict[str, Any] = {**dict(zip(names, setting, strict=True)), "steps": steps}
        value = float(np.prod([float(row[name]) ** power for name, power in powers.items()]))
        rest = {"stability": value / (1 + seed), "chaos": 0.0, "progress": 1.0}
        rows.append({"seed": seed, "task": task, **row, **rest})
    known = [
        {"seed": seed, "task": task, "noise": noise, "heterogeneity": 1.0}
        for seed, task in product((0, 1), "ab")
    ]
    return {"moves": rows, "noise": known}


def test_slopes_of_powers_are_the_powers() -> None:
    powers = {"steps": 1.3, "rate": 2.0, "batch": -0.5, "examples": -1.5}
    table = fits(moves_with_laws(retrained(powers)))
    for sweep, row in table.droplevel(1).iterrows():
        assert row["stability"] == pytest.approx(powers[str(sweep).split(",")[0]])


def test_what_rounding_may_do_is_left_out() -> None:
    record = retrained({"steps": 1.3, "rate": 2.0})
    for row in record["moves"]:
        if row["steps"] == 16:
            row["stability"], row["chaos"] = 1e-9, 2e-9
    table = fits(moves_with_laws(record))["stability"]
    assert table["steps, later passes"].tolist() == pytest.approx([1.3, 1.3])
    assert table["rate"].tolist() == pytest.approx([2.0, 2.0])


def test_laws_have_the_slopes_that_they_are_said_to_have() -> None:
    table = fits(moves_with_laws(retrained({"rate": 2.0}))).groupby("sweep").mean()
    printed, repaired = table["printed"], table["repaired"]
    assert printed[["steps, first pass", "steps, later passes"]].tolist() == pytest.approx([1, 1])
    assert repaired["steps, whole epochs"] == pytest.approx(2)
    assert [printed["rate"], repaired["rate"]] == pytest.approx([2, 2])
    # σ² + 3bζ² from 4 + 6 to 4 + 24 over two octaves
    assert printed["batch, many"] == pytest.approx(np.log(28 / 10) / np.log(4))
    assert repaired["batch, one pass"] < repaired["batch, many"] < 0
    assert repaired["examples, many"] < repaired["examples, one pass"] < printed["examples, many"]
    assert 1 < repaired["steps, first pass"] < repaired["steps, later passes"] < 2


def test_sweeps_hold_all_else_fixed() -> None:
    parts = sweeps(moves_with_laws(retrained({"rate": 2.0})))
    found = {name: sorted(set(part[column])) for name, (column, part) in parts.items()}
    assert found == {
        "steps, first pass": [4, 8, 16],
        "steps, later passes": [16, 32, 64],
        "steps, whole epochs": [16, 32, 64],
        "rate": [0.01, 0.02],
        "batch, one pass": [2, 8],
        "batch, many": [2, 8],
        "examples, one pass": [64, 128],
        "examples, many": [64, 128],
    }
    for column, part in parts.values():
        fixed = {"rate", "batch", "examples", "sampling", "steps"} - {column}
        assert all(part[name].nunique() == 1 for name in fixed)


def measured(smoothness: float) -> dict[str, Any]:
    """Two seeds; what differs between places and tasks is easily averaged by hand."""
    tables: dict[str, Any] = {"curvature": [], "gradients": [], "points": []}
    for seed, (i, point) in product((0, 1), enumerate(("pretrained", "average", "a", "b"))):
        where = {"seed": seed, "point": point}
        tables["points"].append({**where, "loss": 4.0 - i, "squared": 8.0, "unbiased": 7.0 + i})
        for j, task in enumerate("ab"):
            own = {"noise": 1.0 + i, "heterogeneity": 3.0 + j, "plugged_in": 5.0}
            tables["gradients"].append({**where, "task": task, **own})
            value = smoothness * (1 + j) / (1 + seed)
            tables["curvature"].append({**where, "of": "example", "smoothness": value})
        kind = "task" if point in ("a", "b") else "mean"
        tables["curvature"].append({**where, "of": kind, "smoothness": smoothness / 8})
    return tables


@pytest.mark.parametrize("smoothness", [0.01, 1.0, 1000.0])
def test_theorem_3_is_vacuous(smoothness: float) -> None:
    record = measured(smoothness)
    assert min(theorem_3(record)) >= 32
    for row in record["gradients"]:
        row |= {"noise": 1e-20, "heterogeneity": 0.0}
    for row in record["points"]:  # the least C that smoothness allows
        row["squared"] = 1e9
    for row in record["curvature"]:
        row["smoothness"] = smoothness
    assert theorem_3(record) == pytest.approx([32] * 2)
    assert pd.Series(theorem_3(record)).notna().all()
