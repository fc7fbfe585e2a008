"""Rules of thumb by hand, and the shipped records."""

import math

import pandas as pd
import pytest

from mergebook.chapters.task_vectors import cost_of_rules, recorded_sweeps


def test_costs_of_rules_by_hand() -> None:
    sweep = pd.DataFrame({"scale": [0.2, 0.4, 0.8], "accuracy": [0.5, 0.7, 0.3]})
    sweep = sweep.assign(tasks=4, run=0)
    table = cost_of_rules(sweep, {"0.3": 0.3, "2/T": "2/T", "1/T": "1/T", "4/T": "4/T"})
    assert (table["best"] == 0.4).all()
    costs = table.set_index("rule")["cost"]
    assert costs[["0.3", "2/T", "1/T"]].tolist() == pytest.approx([10.0, 10.0, 15.0])
    assert math.isnan(costs["4/T"])


def test_records_hold_sweeps_of_five_seeds() -> None:
    sweeps = recorded_sweeps()
    assert set(sweeps["tasks"]) == {8, 14, 20}
    assert (sweeps.groupby(["suite", "scale"])["run"].nunique() == 5).all()
    assert sweeps["accuracy"].between(0, 1).all()
