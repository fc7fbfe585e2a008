"""Chapter 02: lines between networks, the chord by hand; rules of thumb, and shipped records."""

import math

import pandas as pd
import pytest
import torch

from mergebook.chapters.averaging import (
    cost_of_rules,
    loss_barrier,
    recorded_sweeps,
    train_trio,
    walk,
)
from mergebook.lab.comparison import only
from mergebook.suites.models import scale_pixels
from mergebook.suites.training import Recipe
from mergebook.suites.zoo import Zoo
from mergelib.align import activation_matching
from mergelib.evaluation.loops import evaluate
from mergelib.evaluation.tasks import Suite

QUICK = Recipe(learning_rate=3e-3, epochs=2)


def test_the_barrier_is_the_height_above_the_chord() -> None:
    path = pd.DataFrame({"position": [0.0, 0.25, 1.0], "loss": [1.0, 3.0, 5.0]})
    assert loss_barrier(path) == pytest.approx(3.0 - 2.0)
    assert loss_barrier(path.assign(loss=[1.0, 0.0, 5.0])) == 0.0
    with pytest.raises(ValueError, match=r"runs from 0.0 to 0.25"):
        loss_barrier(path[:2])


def test_a_line_begins_and_ends_at_its_ends(tiny_zoo: Zoo) -> None:
    a, b = tiny_zoo.experts.values()
    path = walk(tiny_zoo.model, a, b, tiny_zoo.heads, tiny_zoo.suite, positions=(0, 0.5, 1))
    assert len(path) == 3 * len(tiny_zoo.suite.tasks)
    for position, state in ((0, a), (1, b)):
        table = evaluate(tiny_zoo.model, state, tiny_zoo.heads, tiny_zoo.suite)
        rows = path[path["position"] == position]
        assert rows["loss"].to_numpy() == pytest.approx(table["loss"].to_numpy(), rel=1e-5)


def test_a_trio_shares_what_it_should(digits: Suite) -> None:
    trio = train_trio(digits, QUICK, draw=3)
    again = train_trio(digits, QUICK, draw=3, stranger=False)
    assert again.stranger is None
    assert trio.stranger is not None
    for key in trio.one:
        assert torch.equal(trio.one[key], again.one[key])
    near, far = (
        (trio.one["2.weight"] - other["2.weight"]).norm() for other in (trio.sibling, trio.stranger)
    )
    assert 0 < near < 0.7 * far


def test_matching_lowers_the_strangers_barrier(digits: Suite) -> None:
    suite = only(digits, list(digits.tasks)[:1])
    (task,) = suite.tasks.values()
    trio = train_trio(suite, Recipe(learning_rate=3e-3, epochs=12))
    assert trio.stranger is not None
    matched = activation_matching(
        trio.one, trio.stranger, trio.model, scale_pixels(task.train.inputs)
    )
    before, after = (loss_barrier(trio.walk(end)) for end in (trio.stranger, matched.state))
    assert after < 0.6 * before


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
