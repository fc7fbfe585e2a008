"""Task vectors on the tiny zoo, rules of thumb by hand, and the shipped records."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from mergebook.chapters.task_vectors import (
    cosines,
    cost_of_rules,
    disturbance,
    forget,
    lowest,
    recorded_sweeps,
    sweep_scales,
    task_vectors,
)
from mergebook.lab.comparison import score_grid
from mergebook.suites.zoo import Zoo
from mergelib.evaluation.loops import evaluate
from mergelib.statedict import add, flatten


def test_a_task_vector_leads_to_the_expert(tiny_zoo: Zoo) -> None:
    for name, vector in task_vectors(tiny_zoo).items():
        back = flatten(add(tiny_zoo.pretrained, vector))
        assert torch.allclose(back, flatten(tiny_zoo.experts[name]), atol=1e-6)


def test_relations_of_task_vectors(tiny_zoo: Zoo) -> None:
    angles, moved = cosines(tiny_zoo), disturbance(tiny_zoo, 20)
    a, b = (flatten(vector) for vector in task_vectors(tiny_zoo).values())
    assert np.diag(angles) == pytest.approx(1.0)
    assert angles.iloc[0, 1] == pytest.approx(torch.cosine_similarity(a, b, 0).item(), abs=1e-5)
    assert np.diag(moved) == pytest.approx(1.0)
    assert (moved.to_numpy() > 0).all()


def test_sweeps_agree_with_the_grid_of_all_tasks(tiny_zoo: Zoo) -> None:
    names, scales = list(tiny_zoo.experts), [0.0, 0.5, 1.0]
    sweep = sweep_scales(tiny_zoo, [names, names[:1]], scales)
    assert sweep["tasks"].tolist() == [2, 2, 2, 1, 1, 1]
    grid = score_grid(tiny_zoo, "task_arithmetic", {"scale": scales})
    assert sweep["accuracy"][:3].tolist() == pytest.approx(grid["accuracy"].tolist())
    own = evaluate(
        tiny_zoo.model,
        tiny_zoo.experts[names[0]],
        tiny_zoo.heads,
        tiny_zoo.suite,
        split="validation",
        tasks=names[:1],
    )
    assert sweep["loss"].iloc[-1] == pytest.approx(own["loss"].item(), rel=1e-4)


def test_the_vertex_of_a_parabola_between_two_points() -> None:
    positions = [0.1, 0.2, 0.4, 0.9]
    curve = pd.Series([(x - 0.33) ** 2 + 1 for x in positions], index=positions)
    assert lowest(curve) == pytest.approx(0.33)
    assert math.isnan(lowest(-curve))


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


def test_forgetting_takes_the_largest_scale_that_the_others_bear(tiny_zoo: Zoo) -> None:
    free = forget(tiny_zoo, [0.1, 0.2], keep=0.0)
    assert (free["scale"] == 0.2).all()
    none = forget(tiny_zoo, [0.1, 0.2], keep=2.0)
    assert (none["scale"] == 0).all()
    assert none["target after"].tolist() == none["target before"].tolist()
    name, vector = next(iter(task_vectors(tiny_zoo).items()))
    state = add(tiny_zoo.pretrained, vector, -0.2)
    table = evaluate(tiny_zoo.model, state, tiny_zoo.heads, tiny_zoo.suite).set_index("task")
    assert free.loc[name, "target after"] == pytest.approx(table.loc[name, "accuracy"])
    assert free.loc[name, "control after"] == pytest.approx(
        table.drop(index=name)["accuracy"].mean()
    )
