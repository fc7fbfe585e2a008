"""Learned coefficients at known points, and the oracle's picks against cosines by hand."""

from typing import Any

import pytest
import torch

from mergebook.frank_wolfe.measure.learned import contribution, learned, picked
from mergebook.lab.comparison import problem_of
from mergebook.suites.types import Zoo
from mergelib.procedures.objectives import loss_gradients


@pytest.mark.parametrize("granularity", ["tensor", "model"])
def test_no_step_gives_the_start(tiny_zoo: Zoo, granularity: str) -> None:
    problem, names = problem_of(tiny_zoo, 8), list(tiny_zoo.experts)[:2]
    state = learned(
        problem, problem.data, tiny_zoo.pretrained, names, steps=0, granularity=granularity
    )
    for key, tensor in tiny_zoo.pretrained.items():
        moved = sum(tiny_zoo.experts[name][key] - tensor for name in names)
        torch.testing.assert_close(state[key], tensor + 0.3 * moved)


@pytest.mark.parametrize("granularity", ["tensor", "model"])
def test_the_simplex_holds(tiny_zoo: Zoo, granularity: str) -> None:
    """All coefficients 0.8 of two experts project to one half each, and leave nothing of θ."""
    problem, names = problem_of(tiny_zoo, 8), list(tiny_zoo.experts)[:2]
    options: dict[str, Any] = {"granularity": granularity, "constraint": "simplex", "start": 0.8}
    state = learned(problem, problem.data, tiny_zoo.pretrained, names, steps=0, **options)
    for key in tiny_zoo.pretrained:
        mean = sum(tiny_zoo.experts[name][key] for name in names) / 2
        torch.testing.assert_close(state[key], mean)


def test_learning_lowers_the_loss(tiny_zoo: Zoo) -> None:
    problem, names = problem_of(tiny_zoo, 8), list(tiny_zoo.experts)
    keys = [key for key, _ in problem.model.named_parameters()]

    def loss(steps: int) -> float:
        state = learned(problem, problem.data, tiny_zoo.pretrained, names, steps=steps)
        values, _ = loss_gradients(problem, {key: state[key] for key in keys}, keys, problem.data)
        return sum(values.values())

    assert loss(20) < loss(0)


def test_picks_differ_and_follow_the_cosine(tiny_zoo: Zoo) -> None:
    problem = problem_of(tiny_zoo, 8)
    names = picked(problem, tiny_zoo.pretrained)
    assert len({*names}) == len(names) == len(problem.data)
    keys = [key for key, _ in problem.model.named_parameters()]
    merged = {key: tiny_zoo.pretrained[key].clone() for key in keys}
    task = next(iter(problem.data))
    _, slope = loss_gradients(problem, merged, keys, {task: problem.data[task]})
    cosines = {
        name: sum(
            torch.nn.functional.cosine_similarity(slope[k].flatten(), state[k].flatten(), dim=0)
            for k in keys
        )
        for name, state in problem.experts.items()
    }
    assert names[0] == min(cosines, key=lambda name: float(cosines[name]))


def test_every_cell_is_judged(tiny_zoo: Zoo) -> None:
    tables = contribution(tiny_zoo, targets=2, examples=4, steps=1, rounds=2)
    cells = {(row["picks"], row["data"], row["granularity"]) for row in tables["test"]}
    assert ("released", "entropy", "tensor") in cells
    assert ("random", "labels", "model") in cells
    assert len(tables["test"]) == 2 * (1 + 4 * 6 + 2)
    assert len(tables["picked"]) == 2 * 2 * 2
    assert all(row["labels"] in (0, 4) for row in tables["heads"])


def test_key_cells_alone(tiny_zoo: Zoo) -> None:
    tables = contribution(tiny_zoo, targets=2, examples=4, steps=1, whole=False)
    cells = [(r["picks"], r["granularity"], r["constraint"]) for r in tables["test"][::2]]
    free = [(pick, "tensor", "free") for pick in ("oracle", "all", "own", "random")]
    others = [("oracle", "tensor", "simplex"), ("oracle", "model", "free")]
    assert cells == [("none", "", ""), *free, *others]
    assert not tables["picked"]
