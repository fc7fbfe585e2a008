"""Frank-Wolfe on the hull of experts: its rates, and the constants they need (Chen et al., 2025).

D is the diameter of the hull M; ℓ is L-smooth on it; the gap is g = max_{s ∈ M} ⟨∇ℓ(θ), θ − s⟩, and
h_0 = ℓ(θ_0) − min_M ℓ. Each function bounds the smallest gap in S steps: `soft_bound` is Theorem 1,
`classical_bound` that of Lacoste-Julien (2016), `convex_bound` holds for convex ℓ only.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from mergelib.messages.brief import Brief
from mergelib.procedures.walk import Objective
from mergelib.statedict import StateDict, flatten

NEGLIGIBLE = 1e-9  # directions below this share of the largest eigenvalue of a Gram matrix


@dataclass(frozen=True, repr=False)
class SquaredDistance(Brief):
    """½ ‖θ − target‖²: a convex objective whose L is 1 and whose minimum is a projection."""

    target: StateDict  # by name, like the parameters that the objective is asked about

    def value(self, parameters: StateDict) -> float:
        return _inner(*[self._offset(parameters)] * 2) / 2

    def gradient(self, parameters: StateDict) -> tuple[float, dict[str, Tensor]]:
        offset = self._offset(parameters)
        return _inner(offset, offset) / 2, offset

    def _offset(self, parameters: StateDict) -> dict[str, Tensor]:
        return {key: tensor - self.target[key] for key, tensor in parameters.items()}


def diameter(experts: Mapping[str, StateDict], keys: Collection[str]) -> float:
    """D: the largest distance of two experts, which is that of any two points of their hull."""
    if not experts:
        raise ValueError("no experts: their hull is empty")
    points = [flatten({key: expert[key].double() for key in keys}) for expert in experts.values()]
    pairs = combinations(points, 2)
    return math.sqrt(max((float((a - b).square().sum()) for a, b in pairs), default=0.0))


def smoothness(
    objective: Objective, point: StateDict, experts: Mapping[str, StateDict], *, step: float = 0.02
) -> float:
    """The largest |dᵀ H d| / dᵀd at a point for the experts' differences to the first; ≤ L."""
    first, *others = experts.values()
    directions = [
        {key: other[key].to(tensor) - first[key].to(tensor) for key, tensor in point.items()}
        for other in others
    ]

    def slope(direction: StateDict, s: float) -> dict[str, Tensor]:
        moved = {key: tensor + s * direction[key] for key, tensor in point.items()}
        return objective.gradient(moved)[1]

    changes = []
    for direction in directions:
        ahead, behind = slope(direction, step), slope(direction, -step)
        changes.append({key: (ahead[key] - behind[key]) / (2 * step) for key in point})
    values, vectors = torch.linalg.eigh(_table(directions, directions))
    kept = values > NEGLIGIBLE * values[-1]
    if not kept.any():  # all experts are equal
        return 0.0
    basis = vectors[:, kept] / values[kept].sqrt()
    curvature = basis.T @ _table(directions, changes) @ basis
    return float(torch.linalg.eigvalsh((curvature + curvature.T) / 2).abs().max())


def printed_gaps(corners: Tensor, point: Tensor, top_k: int, steps: int = 60) -> list[float]:
    """Gaps of the soft step as printed, for one or two vertices, on ½ ‖θ‖²: it drops the point."""
    if top_k not in (1, 2):
        raise ValueError(f"top_k is {top_k}, expected 1 or 2: only these have a closed form here")
    gaps = []
    for _ in range(steps):
        products = corners @ point
        gaps.append(float(point @ point - products.min()))
        first, *others = corners[products.argsort()[:top_k]]
        point = first
        for other in others:
            share = first @ (first - other) / (first - other).square().sum()
            point = first + share.clamp(0, 1) * (other - first)
    return gaps


def soft_bound(excess: float, smoothness: float, diameter: float, steps: int) -> float:
    """h_0/S + L D²/2, Theorem 1 of FW-Merging (Chen et al., 2025), for ``steps`` S ≥ 1."""
    _check(excess, smoothness, diameter, steps)
    return excess / steps + smoothness * diameter**2 / 2


def classical_bound(excess: float, smoothness: float, diameter: float, steps: int) -> float:
    """max(2 h_0, L D²)/√(S+1), Theorem 1 of Lacoste-Julien (2016) for line search, S ≥ 1."""
    _check(excess, smoothness, diameter, steps)
    return max(2 * excess, smoothness * diameter**2) / math.sqrt(steps + 1)


def convex_bound(smoothness: float, diameter: float, steps: int) -> float:
    """4 L D²/(S+2) for convex ℓ and line search, S ≥ 2; as in Jaggi (2013), who has 27/4 for 4."""
    _check(0.0, smoothness, diameter, steps, fewest=2)
    return 4 * smoothness * diameter**2 / (steps + 2)


def _check(
    excess: float, smoothness: float, diameter: float, steps: int, *, fewest: int = 1
) -> None:
    if steps < fewest:
        raise ValueError(f"steps is {steps}, expected at least {fewest}")
    given = {"excess": excess, "smoothness": smoothness, "diameter": diameter}
    for name, value in given.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value}, expected a finite number of at least 0")


def _inner(a: StateDict, b: StateDict) -> float:
    return sum(float((tensor.double() * b[key]).sum()) for key, tensor in a.items())


def _table(rows: Sequence[StateDict], columns: Sequence[StateDict]) -> Tensor:
    return torch.tensor([[_inner(a, b) for b in columns] for a in rows], dtype=torch.float64)
