"""Constants and bounds of Frank-Wolfe against closed forms, and the bounds against real runs."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mergebook.frank_wolfe.theory import (
    SquaredDistance,
    classical_bound,
    convex_bound,
    diameter,
    printed_gaps,
    smoothness,
    soft_bound,
)
from mergelib.procedures.walk import minimise, oracle_scores

State = dict[str, Tensor]


@dataclass(frozen=True)
class Bowl:
    """½ θᵀ A θ for one tensor ``w``."""

    matrix: Tensor

    def value(self, parameters: State) -> float:
        return float(parameters["w"] @ self.matrix @ parameters["w"]) / 2

    def gradient(self, parameters: State) -> tuple[float, State]:
        return self.value(parameters), {"w": self.matrix @ parameters["w"]}


def cloud(count: int, size: int, seed: int = 0) -> dict[str, State]:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, size, generator=generator, dtype=torch.float64)
    return {f"v{i}": {"w": point} for i, point in enumerate(points)}


def corners(vertices: dict[str, State]) -> Tensor:
    return torch.stack([each["w"] for each in vertices.values()])


def line(*places: float) -> dict[str, State]:
    return {f"v{i}": {"w": torch.tensor([x]).double()} for i, x in enumerate(places)}


def triangle() -> dict[str, State]:
    angles = torch.tensor([0.0, 2.0, 4.0]).double() * math.pi / 3
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    return {name: {"w": point} for name, point in zip("abc", points, strict=True)}


def test_diameter_is_the_largest_distance_and_sees_the_named_tensors_only() -> None:
    vertices = cloud(5, 7)
    others = {
        n: {**v, "mean": torch.full((2,), 9.0 * i)} for i, (n, v) in enumerate(vertices.items())
    }
    expected = float(torch.pdist(corners(vertices)).max())
    assert diameter(others, ["w"]) == pytest.approx(expected)
    assert diameter(others, ["w", "mean"]) > expected
    assert diameter({"only": vertices["v0"]}, ["w"]) == 0


def test_smoothness_is_the_largest_curvature_along_the_hull() -> None:
    """With vertices 0, e1 and e1 + e2 the directions are those of the first two axes."""
    axes = torch.eye(4).double()
    vertices = {"o": {"w": 0 * axes[0]}, "p": {"w": axes[0]}, "q": {"w": axes[0] + axes[1]}}
    matrix = torch.diag(torch.tensor([1.0, 3.0, 100.0, 100.0])).double()
    matrix[0, 1] = matrix[1, 0] = 1.0
    expected = 2 + math.sqrt(2)  # of the block (1, 1; 1, 3); the axes of 100 do not count
    for step in (0.02, 0.5):
        assert smoothness(Bowl(matrix), vertices["p"], vertices, step=step) == pytest.approx(
            expected
        )
    assert smoothness(Bowl(-matrix), vertices["p"], vertices) == pytest.approx(expected)


def test_smoothness_of_dependent_and_of_equal_experts() -> None:
    matrix = torch.diag(torch.tensor([2.0, 5.0])).double()
    along = {
        name: {"w": torch.tensor([x, 0.0]).double()} for name, x in [("a", 0), ("b", 1), ("c", 3)]
    }
    assert smoothness(Bowl(matrix), along["a"], along) == pytest.approx(2)
    assert smoothness(Bowl(matrix), along["a"], {"a": along["b"], "b": along["b"]}) == 0


def test_smoothness_belongs_to_the_point() -> None:
    """Cos has the second derivative −cos."""

    class Wave:
        def value(self, parameters: State) -> float:
            return float(parameters["w"].cos())

        def gradient(self, parameters: State) -> tuple[float, State]:
            return self.value(parameters), {"w": -parameters["w"].sin()}

    for x in (0.0, 0.7, math.pi / 2):
        found = smoothness(Wave(), {"w": torch.tensor([x]).double()}, line(0, 1), step=1e-3)
        assert found == pytest.approx(abs(math.cos(x)), abs=1e-5)


def test_bounds_by_hand() -> None:
    assert soft_bound(3.0, 2.0, 0.5, 4) == pytest.approx(3 / 4 + 2 * 0.25 / 2)
    assert classical_bound(3.0, 2.0, 0.5, 3) == pytest.approx(6 / 2)
    assert classical_bound(0.1, 2.0, 3.0, 8) == pytest.approx(18 / 3)
    assert convex_bound(2.0, 0.5, 6) == pytest.approx(4 * 0.5 / 8)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 25), st.sampled_from(["hard", "soft"]))
def test_bounds_hold_on_quadratics(seed: int, steps: int, variant: Any) -> None:
    """A bent bowl, or a saddle where the seed is odd: then the convex bound is not asked for."""
    vertices = cloud(6, 4, seed)
    signs = torch.tensor([1.0, 0.5, 2.0, -1.5 if seed % 2 else 1.5]).double()
    bowl = Bowl(torch.diag(signs))
    _, _, history = minimise(
        bowl, vertices["v0"], vertices, variant=variant, steps=steps + 1, inner_steps=20
    )
    wide, bend = diameter(vertices, ["w"]), 2.0
    assert smoothness(bowl, vertices["v1"], vertices) == pytest.approx(bend)
    excess = history["loss"][0] + 0.75 * float(corners(vertices).square().sum(1).max())
    smallest = history["gap"].min()
    assert smallest <= classical_bound(excess, bend, wide, steps) + 1e-9
    assert smallest <= soft_bound(excess, bend, wide, steps) + 1e-9
    if not seed % 2:
        assert smallest <= convex_bound(bend, wide, steps) + 1e-9


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_soft_steps_with_the_current_point_obey_the_descent_lemma(seed: int, top_k: int) -> None:
    """ℓ falls by (g/2) min(1, g/C) a step, C = L D²: what one line search to the vertex brings."""
    vertices = cloud(6, 4, seed)
    objective = SquaredDistance(cloud(1, 4, seed + 1)["v0"])
    theta, _, history = minimise(
        objective, vertices["v0"], vertices, steps=12, top_k=top_k, inner_steps=60
    )
    wide = diameter(vertices, ["w"]) ** 2
    losses = [*history["loss"], objective.value(theta)]
    for gap, (before, after) in zip(history["gap"], pairwise(losses), strict=True):
        assert after <= before - gap / 2 * min(1, gap / wide) + 1e-5  # the inner loop stops there


def test_without_the_current_point_the_floor_of_the_bound_is_met() -> None:
    """½ θ² on −1 … 1: one vertex at a time jumps from end to end, and L D²/2 = 2 is the gap."""
    ends, objective = line(-1, 1), SquaredDistance({"w": torch.zeros(1).double()})
    options: dict[str, Any] = {"steps": 50, "top_k": 1}
    _, _, history = minimise(objective, ends["v1"], ends, keep_current=False, **options)
    assert history["gap"].tolist() == [2.0] * 50
    assert soft_bound(0.5, 1.0, diameter(ends, ["w"]), 50) == pytest.approx(2 + 0.5 / 50)
    _, _, kept = minimise(objective, ends["v1"], ends, **options)
    assert kept["gap"].iloc[-1] < 1e-9


def test_without_the_current_point_two_of_three_vertices_circle_for_ever() -> None:
    """From the middle of one side of a triangle to the middle of the next, at a gap of 3/4."""
    vertices, objective = triangle(), SquaredDistance({"w": torch.zeros(2).double()})
    options: dict[str, Any] = {"steps": 30, "top_k": 2}
    _, _, history = minimise(objective, vertices["a"], vertices, keep_current=False, **options)
    assert history["gap"][1:].tolist() == pytest.approx([0.75] * 29)
    _, _, kept = minimise(objective, vertices["a"], vertices, **options)
    assert kept["gap"].min() < 1e-6


def test_squared_distance_projects() -> None:
    """The point of a square that is nearest to (3, 0.25) is (1, 0.25)."""
    square = {
        f"{x}{y}": {"w": torch.tensor([x, y]).double()} for x in (-1.0, 1.0) for y in (-1.0, 1.0)
    }
    objective = SquaredDistance({"w": torch.tensor([3.0, 0.25]).double()})
    value, slope = objective.gradient({"w": torch.tensor([1.0, 1.0]).double()})
    assert value == objective.value({"w": torch.tensor([1.0, 1.0]).double()})
    assert value == pytest.approx((4 + 0.75**2) / 2)
    assert slope["w"].tolist() == [-2, 0.75]
    theta, _, history = minimise(
        objective, square["-1.0-1.0"], square, steps=30, top_k=4, inner_steps=30
    )
    torch.testing.assert_close(theta["w"], torch.tensor([1.0, 0.25]).double(), atol=1e-4, rtol=0)
    assert history["loss"].iloc[-1] - history["gap"].iloc[-1] <= 2 + 1e-9


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="no experts"):
        diameter({}, ["w"])
    with pytest.raises(ValueError, match="steps is 0, expected at least 1"):
        soft_bound(1.0, 1.0, 1.0, 0)
    with pytest.raises(ValueError, match=r"excess is -1\.0"):
        classical_bound(-1.0, 1.0, 1.0, 3)
    with pytest.raises(ValueError, match="smoothness is nan"):
        soft_bound(1.0, math.nan, 1.0, 3)
    with pytest.raises(ValueError, match="steps is 1, expected at least 2"):
        convex_bound(1.0, 1.0, 1)
    with pytest.raises(ValueError, match="diameter is inf"):
        convex_bound(1.0, math.inf, 3)


def test_the_saved_step_needs_a_point_of_the_hull() -> None:
    """From 10, outside the hull of 0 and 1, ℓ − g + L D²/2 is below zero: no ½ θ² can be."""
    vertices = {"low": {"w": torch.zeros(1).double()}, "high": {"w": torch.ones(1).double()}}
    objective = SquaredDistance(vertices["low"])
    start = {"w": torch.full((1,), 10.0).double()}
    options: dict[str, Any] = {"top_k": 2, "keep_current": False, "steps": 2}
    theta, _, history = minimise(objective, start, vertices, **options)
    reach = diameter(vertices, ["w"]) ** 2 / 2
    assert history["loss"][0] - history["gap"][0] + reach == pytest.approx(50 - 100 + 0.5)
    assert objective.value(theta) >= 0 > history["loss"][0] - history["gap"][0] + reach
    assert 0 <= float(theta["w"]) <= 1, "one printed step leads into the hull"


def test_printed_gaps_are_those_of_the_walk() -> None:
    angles = 2 * torch.pi * torch.arange(3).double() / 3
    corners = torch.stack([angles.cos(), angles.sin()], 1)
    assert printed_gaps(corners, corners[-1], 2, steps=5)[1:] == pytest.approx([0.75] * 4)
    ends = torch.tensor([[-1.0], [1.0]]).double()
    assert printed_gaps(ends, ends[0], 1, steps=4) == pytest.approx([2.0] * 4)
    with pytest.raises(ValueError, match="top_k is 3"):
        printed_gaps(corners, corners[0], 3)


def test_scores_of_two_oracles_by_hand() -> None:
    """The bias decides by cosines what the matrix decides by inner products."""
    slope = {"w": torch.tensor([[10.0, 0.0]]), "b": torch.tensor([1.0])}
    one = {"w": torch.tensor([[-1.0, 0.0]]), "b": torch.tensor([2.0])}
    other = {"w": torch.tensor([[3.0, 4.0]]), "b": torch.tensor([-5.0])}
    products, cosines = oracle_scores(slope, [one, other])
    assert products == pytest.approx([-8, 25])
    assert cosines == pytest.approx([0, 0.6 - 1])
