"""Chapter 02: lines between networks, rules for the scale by hand, and stored results."""

import math

import pandas as pd
import pytest
import torch

from mergebook.chapters.averaging import (
    cost_of_rules,
    loss_barrier,
    recorded_sweeps,
    train_perceptrons,
    walk,
)
from mergebook.lab.comparison import only
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


def test_a_line_starts_and_ends_at_its_networks(tiny_zoo: Zoo) -> None:
    a, b = tiny_zoo.experts.values()
    path = walk(tiny_zoo.model, a, b, tiny_zoo.heads, tiny_zoo.suite, positions=(0, 0.5, 1))
    assert len(path) == 3 * len(tiny_zoo.suite.tasks)
    for position, state in ((0, a), (1, b)):
        table = evaluate(tiny_zoo.model, state, tiny_zoo.heads, tiny_zoo.suite)
        rows = path[path["position"] == position]
        assert rows["loss"].to_numpy() == pytest.approx(table["loss"].to_numpy(), rel=1e-5)


def test_perceptrons_share_their_initial_weights(digits: Suite) -> None:
    networks = train_perceptrons(digits, QUICK, draw=3)
    again = train_perceptrons(digits, QUICK, draw=3, separate=False)
    assert again.separate is None
    assert networks.separate is not None
    for key in networks.first:
        assert torch.equal(networks.first[key], again.first[key])
    near, far = (
        (networks.first["1.weight"] - other["1.weight"]).norm()
        for other in (networks.same, networks.separate)
    )
    assert 0 < near < 0.7 * far


def test_matching_lowers_the_barrier_of_separate_initialisations(digits: Suite) -> None:
    suite = only(digits, list(digits.tasks)[:1])
    networks = train_perceptrons(suite, Recipe(learning_rate=3e-3, epochs=12))
    assert networks.separate is not None
    (task,) = networks.suite.tasks.values()
    matched = activation_matching(
        networks.first, networks.separate, networks.model, task.train.inputs
    )
    before, after = (loss_barrier(networks.walk(end)) for end in (networks.separate, matched.state))
    assert after < 0.6 * before


def test_costs_of_rules_by_hand() -> None:
    sweep = pd.DataFrame({"scale": [0.2, 0.4, 0.8], "accuracy": [0.5, 0.7, 0.3]})
    sweep = sweep.assign(tasks=4, run=0)
    table = cost_of_rules(sweep, {"0.3": 0.3, "2/T": "2/T", "1/T": "1/T", "4/T": "4/T"})
    assert (table["best"] == 0.4).all()
    costs = table.set_index("rule")["cost"]
    assert costs[["0.3", "2/T", "1/T"]].tolist() == pytest.approx([10.0, 10.0, 15.0])
    assert math.isnan(costs["4/T"])


def test_stored_sweeps_have_five_seeds() -> None:
    sweeps = recorded_sweeps()
    assert set(sweeps["tasks"]) == {8, 14, 20}
    assert (sweeps.groupby(["suite", "scale"])["run"].nunique() == 5).all()
    assert sweeps["accuracy"].between(0, 1).all()
