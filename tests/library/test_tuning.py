"""The search of hyperparameters, by scores with a known maximum."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mergelib as ml

BASE = {"w": torch.zeros(6, 4), "b": torch.zeros(6)}
State = dict[str, Tensor]


@pytest.fixture
def experts() -> list[State]:
    generator = torch.Generator().manual_seed(0)
    return [{k: torch.randn(v.shape, generator=generator) for k, v in BASE.items()} for _ in "ab"]


def nearest(experts: list[State], scale: float) -> Any:
    """Minus the squared distance to the sum of the task vectors at a scale."""

    def score(state: State) -> float:
        return -float(
            sum(
                (state[k] - scale * (a + experts[1][k])).square().sum()
                for k, a in experts[0].items()
            )
        )

    return score


def test_the_best_of_a_grid(experts: list[State]) -> None:
    grid = {"scale": [0.1, 0.7, 1.5]}
    found = ml.search(
        "task_arithmetic", experts, score=nearest(experts, 0.8), grid=grid, pretrained=BASE
    )
    assert found.best == {"scale": 0.7}
    assert found.table["scale"].tolist() == grid["scale"]
    expected = ml.merge("task_arithmetic", experts, pretrained=BASE, scale=0.7)
    assert all(torch.equal(found.state[key], expected[key]) for key in expected)
    assert found.score == pytest.approx(nearest(experts, 0.8)(expected), rel=1e-4)


@pytest.mark.parametrize(("scale", "best"), [(0.3, 0.3), (1.8, 1.7), (0.02, 0.0371)])
def test_the_usual_grid_is_continued(experts: list[State], scale: float, best: float) -> None:
    """Five values around 0.3 by √2, and at most four more."""
    found = ml.search("task_arithmetic", experts, score=nearest(experts, scale), pretrained=BASE)
    assert found.best["scale"] == pytest.approx(best, rel=0.02)
    assert len(found.table) <= 9
    assert found.table["scale"].head(5).tolist() == [0.15, 0.212, 0.3, 0.424, 0.6]


def test_sixteen_bits_are_merged_one_by_one(experts: list[State]) -> None:
    """Between two merges that are rounded to bfloat16, a third would be off by more."""
    short = [{k: v.bfloat16() for k, v in each.items()} for each in (BASE, *experts)]
    seen: list[State] = []

    def score(state: State) -> float:
        seen.append(state)
        return 0.0

    grid = {"scale": [0.0, 0.37, 0.9]}
    ml.search("task_arithmetic", short[1:], score=score, grid=grid, pretrained=short[0])
    for state, scale in zip(seen, grid["scale"], strict=True):
        expected = ml.merge("task_arithmetic", short[1:], pretrained=short[0], scale=scale)
        assert all(torch.equal(state[key], expected[key]) for key in expected)


def test_two_axes_and_a_figure(experts: list[State]) -> None:
    pytest.importorskip("matplotlib").use("agg")
    grid = {"scale": [0.5, 1.0], "density": [0.2, 1.0]}
    found = ml.search("ties", experts, score=nearest(experts, 0.5), grid=grid, pretrained=BASE)
    assert len(found.table) == 4
    assert found.best["density"] == 1.0
    assert len(found.plot().lines) == 2
    one = ml.search("cart", experts, score=lambda state: float(state["w"].sum()))
    assert len(one.plot().lines) == 1


@pytest.mark.parametrize(
    "scales",
    [
        [0.2, [0.3, 0.4], [0.5, 0.6]],
        [{"w": 0.5, "*": 0.1}, {"w": 0.1, "*": 0.5}, {"w": 0.2, "*": 0.2}],
        [[{"w": 0.3, "*": 0.1}, 0.2], 0.7, {"w": 0.4, "*": 0.6}],
        [-1.0, -0.5, 0.3],
    ],
)
def test_values_per_expert_and_key(experts: list[State], scales: list[Any]) -> None:
    """They are candidates as they are: no axis of them is continued, and none taken as affine."""
    pytest.importorskip("matplotlib").use("agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    for best in scales:
        expected = ml.merge("task_arithmetic", experts, pretrained=BASE, scale=best)

        def near(state: State, expected: State = expected) -> float:
            return -float(sum((state[k] - v).square().sum() for k, v in expected.items()))

        for rest in ({}, {"method": "breadcrumbs", "gamma": [0.0], "density": [0.5, 1.0]}):
            options: dict[str, Any] = {"method": "task_arithmetic", **rest}
            method, grid = options.pop("method"), {"scale": scales, **options}
            found = ml.search(method, experts, score=near, grid=grid, pretrained=BASE)
            assert found.best["scale"] == best
            assert len(found.table) == 3 * (2 if rest else 1)
            assert len(found.plot().lines) == (2 if rest else 1)
    pyplot.close("all")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": {"scale": []}}, "the grid has no values for 'scale'"),
        ({"grid": {"scal": [1.0]}}, "has no hyperparameter 'scal'; it has: scale"),
        ({"grid": {"scale": [0.1, "x"]}}, "scale is 'x'"),
        ({"method": "average"}, "average has no number as default scale: pass grid={name: values}"),
        ({"score": lambda _: float("nan")}, "the score is nan at {'scale': "),
        ({"pretrained": None}, "task_arithmetic needs the pretrained model"),
        ({"method": "adamerging"}, "adamerging"),
    ],
)
def test_what_is_refused_before_or_at_the_first_candidate(
    experts: list[State], options: dict[str, Any], message: str
) -> None:
    usual = {"method": "task_arithmetic", "score": nearest(experts, 1.0), "pretrained": BASE}
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        ml.search(experts=experts, **{**usual, **options})


def test_files(experts: list[State], tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for path, state in zip(paths, (BASE, *experts), strict=True):
        ml.save_state_dict(state, path)
    options = {"score": nearest(experts, 0.5)}
    there = ml.search("task_arithmetic", paths[1:], pretrained=paths[0], **options)
    here = ml.search("task_arithmetic", experts, pretrained=BASE, **options)
    assert there.best == here.best
