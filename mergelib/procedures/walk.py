"""The walk of Frank-Wolfe merging, for any objective over the convex hull of experts.

The hull's vertices are the experts' weights. The linear minimisation oracle (LMO) returns the
vertex with the smallest linear model of the loss ℓ, s = argmin_i ⟨∇ℓ(θ), θ_i⟩, and the gap g =
⟨∇ℓ(θ), θ − s⟩ bounds how far a convex ℓ can still fall. The *hard* variant moves a fraction γ
towards s. The *soft* variant seeks the best convex combination of the k best vertices. Both work on
whole models or tensor by tensor ("layer"), where the hull is the product of the tensors' hulls.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from mergelib.messages.kinds import Count, Share, Size, annotations_of, check_fits
from mergelib.numerics.linalg import simplex_projection
from mergelib.progress import progress
from mergelib.statedict import StateDict

if TYPE_CHECKING:
    import pandas as pd

Tensors = dict[str, Tensor]
START = "start"  # the row of the coefficients that belongs to the starting point
ARMIJO = 1e-4  # the share of the predicted decrease that a step must bring


class Objective(Protocol):
    """A differentiable function of tensors by name."""

    def value(self, parameters: Tensors) -> float: ...

    def gradient(self, parameters: Tensors) -> tuple[float, Tensors]:
        """Return the value, and the gradient by name."""


@dataclass(frozen=True)
class Walk:
    """Settings of the walk.

    Attributes:
        variant: ``"hard"``, Algorithm 1, or ``"soft"``, Theorem 1.
        granularity: one vertex for the whole model, or one per tensor.
        score: what the LMO minimises: the inner product, or the sum of the tensors' cosines, as in
            the authors' code. The gap always uses the inner product.
        steps: the largest number of steps.
        step: of the hard variant: ``"quadratic"``, the minimum of the parabola through ℓ, its slope
            and ℓ at the vertex, halved until ℓ falls; ``"armijo"``, from 1 halved until ℓ falls;
            ``"diminishing"``, 2/(t+2); or a fixed γ in 0..1. If ℓ rises all the way to a vertex
            that the cosine chose, the first two stay at the current point, which ends the walk
            (``moved`` is 0).
        top_k: of the soft variant: the largest number of vertices to mix.
        keep_current: the current point joins the mixture (Proposition 1 with Σ λ = 1).
        constraint: of the soft variant: ``"simplex"`` stays in the hull; ``"none"`` allows any λ in
            θ + Σ λ_j (s_j − θ), as in the authors' code, so coefficients sum to one but may be
            negative.
        inner_steps: projected gradient steps for the mixture.
        tolerance: stop at a gap of at most this; ignored without a constraint.
    """

    variant: Literal["soft", "hard"] = "soft"
    granularity: Literal["task", "layer"] = "task"
    score: Literal["inner", "cosine"] = "inner"
    steps: Count = 15
    step: Literal["quadratic", "armijo", "diminishing"] | Share = "quadratic"
    top_k: Size = 3
    keep_current: bool = True
    constraint: Literal["simplex", "none"] = "simplex"
    inner_steps: Count = 8
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        check_fits(annotations_of(type(self)), vars(self))


def minimise(
    objective: Objective,
    start: Tensors,
    experts: Mapping[str, StateDict],
    walk: Walk | None = None,
    **settings: Any,
) -> tuple[Tensors, "pd.DataFrame", "pd.DataFrame"]:
    """Walk the hull of experts; return the last point, coefficients and history.

    The objective is a function of ``start``'s tensors; the experts, which are the vertices, may
    have further ones. Pass a `Walk` or its settings. The coefficients that make the last point have
    one row per vertex and one for the start, and one column per tensor; the history has one row per
    step.
    """
    import pandas as pd

    walk = Walk(**settings) if walk is None else walk
    keys, names = list(start), list(experts)
    theta = {key: tensor.clone() for key, tensor in start.items()}
    weights = torch.zeros(len(names) + 1, len(keys), dtype=torch.float64)
    weights[-1] = 1
    rows = []
    for t in progress(range(walk.steps), desc=f"frank-wolfe {walk.variant}", leave=False):
        value, slope = objective.gradient(theta)
        products, cosines = _products(experts, slope, keys)
        at_theta = torch.tensor([float((slope[key] * theta[key]).sum()) for key in keys]).double()
        scores = products if walk.score == "inner" else cosines
        # The gap: max ⟨∇ℓ, θ − s⟩ over the hull, or over the product of the tensors' hulls.
        if walk.granularity == "task":
            scores = scores.sum(1, keepdim=True).expand_as(scores)
            gap = float(at_theta.sum() - products.sum(1).min())
        else:
            gap = float((at_theta - products.amin(0)).sum())
        vertex = names[int(scores.argmin(0).mode().values)]
        rows.append({"step": t, "loss": value, "gap": gap, "vertex": vertex, "moved": 0.0})
        if gap <= walk.tolerance and (walk.constraint == "simplex" or walk.variant == "hard"):
            break
        point = _Point(objective, theta, value, slope, experts)
        if walk.variant == "hard":
            mixture = _hard(point, scores, walk.step, t)
        else:
            mixture = _soft(point, scores, walk)
        theta = _mixed(theta, mixture, experts)
        weights = weights * mixture[-1] + torch.cat([mixture[:-1], torch.zeros(1, len(keys))])
        rows[-1]["moved"] = float(1 - mixture[-1].mean())
        if bool((mixture[-1] == 1).all()):  # no step lowers the loss, nor will one
            break
    table = pd.DataFrame(weights.numpy(), index=[*names, START], columns=keys)
    return theta, table, pd.DataFrame(rows, columns=["step", "loss", "gap", "vertex", "moved"])


@dataclass(frozen=True)
class _Point:
    """A point, and the objective's value and gradient there."""

    objective: Objective
    theta: Tensors
    value: float
    slope: Tensors
    experts: Mapping[str, StateDict]


def _hard(at: _Point, scores: Tensor, step: str | float, t: int) -> Tensor:
    """Return the next point's mixture: one row per expert, and a last one for the current point."""
    theta = at.theta
    keys = list(theta)
    vertex = F.one_hot(scores.argmin(0), len(at.experts)).T.double()
    corner = torch.cat([vertex, torch.zeros(1, len(keys))])
    stay = torch.zeros_like(corner)
    stay[-1] = 1

    def towards(gamma: float) -> Tensor:
        return stay + gamma * (corner - stay)

    if step == "diminishing":
        return towards(2 / (t + 2))
    if not isinstance(step, str):
        return towards(step)
    target = _mixed(theta, corner, at.experts)
    descent = sum(float((at.slope[key] * (target[key] - theta[key])).sum()) for key in keys)
    gamma = 1.0
    if step == "quadratic":
        curvature = at.objective.value(target) - at.value - descent
        if curvature > 0:  # the minimum within the hull: the cosine's vertex may lie uphill
            gamma = min(1.0, max(0.0, -descent / (2 * curvature)))
    for _ in range(20):
        trial = at.objective.value({key: x + gamma * (target[key] - x) for key, x in theta.items()})
        if trial <= at.value + ARMIJO * gamma * min(descent, 0.0):
            return towards(gamma)
        gamma /= 2
    return stay


def _soft(at: _Point, scores: Tensor, walk: Walk) -> Tensor:
    """Return the best mixture of the best vertices by projected gradient, shaped as `_hard`'s."""
    project = simplex_projection if walk.constraint == "simplex" else _sum_to_one
    theta, value, slope = at.theta, at.value, at.slope
    keys, names = list(theta), list(at.experts)
    order = scores.argsort(0)[: walk.top_k]  # (k, keys): which expert in which place
    places = len(order)
    vertices = {
        key: torch.stack([at.experts[names[i]][key].to(theta[key]) for i in order[:, c].tolist()])
        for c, key in enumerate(keys)
    }
    if walk.keep_current:
        vertices = {key: torch.cat([v, theta[key][None]]) for key, v in vertices.items()}
    shares = torch.zeros(len(next(iter(vertices.values()))), len(keys), dtype=torch.float64)
    if walk.keep_current:
        shares[-1] = 1
    else:
        shares[:] = 1 / places
        value, slope = at.objective.gradient(_blend(vertices, shares))
    pull = _pull(slope, vertices, walk.granularity)
    rate = 1 / float((pull - pull.mean(0)).abs().amax().clamp(min=1e-30))
    for _ in range(walk.inner_steps):
        for _ in range(6):
            trial = project((shares - rate * pull).T).T
            point = _blend(vertices, trial)
            if at.objective.value(point) < value:
                break
            rate /= 4
        else:
            break
        new_value, slope = at.objective.gradient(point)
        new_pull = _pull(slope, vertices, walk.granularity)
        moved = trial - shares
        curvature = float((moved * (new_pull - pull)).sum())
        if curvature > 0:  # the step of Barzilai and Borwein (1988)
            rate = float(moved.square().sum()) / curvature
        shares, value, pull = trial, new_value, new_pull
    mixture = torch.zeros(len(names) + 1, len(keys), dtype=torch.float64)
    mixture.scatter_add_(0, order, shares[:places])
    if walk.keep_current:
        mixture[-1] = shares[-1]
    return mixture


def _pull(slope: Tensors, vertices: Mapping[str, Tensor], granularity: str) -> Tensor:
    """Return ∂ℓ/∂shares, ``(vertices, keys)``; with whole models all columns are equal."""
    pull = torch.tensor(
        [[float((slope[key] * x).sum()) for x in stack] for key, stack in vertices.items()]
    ).T.double()
    return pull.sum(1, keepdim=True).expand_as(pull) if granularity == "task" else pull


def _sum_to_one(values: Tensor) -> Tensor:
    """Return the nearest point whose last dimension sums to one: affine coefficients."""
    return values + (1 - values.sum(-1, keepdim=True)) / values.shape[-1]


def _blend(vertices: Mapping[str, Tensor], shares: Tensor) -> Tensors:
    """Return Σ shares · vertices of every parameter, from stacked vertices."""
    return {
        key: torch.tensordot(shares[:, c].to(stack), stack, 1)
        for c, (key, stack) in enumerate(vertices.items())
    }


def _mixed(theta: Tensors, mixture: Tensor, experts: Mapping[str, StateDict]) -> Tensors:
    """Return the point that a mixture of experts and the current point stands for."""
    columns = mixture.T.tolist()
    return {
        key: combination(column, current, experts, key)
        for column, (key, current) in zip(columns, theta.items(), strict=True)
    }


def combination(
    weights: Sequence[float], current: Tensor, experts: Mapping[str, StateDict], key: str
) -> Tensor:
    """Return Σ weight · tensor, the last for ``current``; experts of weight 0 are not read."""
    total = weights[-1] * current
    for weight, expert in zip(weights[:-1], experts.values(), strict=True):
        if weight:
            total.add_(expert[key].to(total), alpha=weight)
    return total


def oracle_scores(
    gradient: StateDict, states: Iterable[StateDict]
) -> tuple[list[float], list[float]]:
    """Return what the two oracles minimise: inner products, and sums of the tensors' cosines."""
    slope = {key: tensor.double() for key, tensor in gradient.items()}
    named = {str(i): state for i, state in enumerate(states)}
    products, cosines = _products(named, slope, list(slope))
    return products.sum(1).tolist(), cosines.sum(1).tolist()


def _products(
    experts: Mapping[str, StateDict], slope: Tensors, keys: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """Return ⟨∇ℓ, θ_i⟩ and its cosine, both ``(experts, keys)``, reading one tensor at a time."""
    products = torch.zeros(len(experts), len(keys), dtype=torch.float64)
    cosines = torch.zeros_like(products)
    for i, (name, expert) in enumerate(experts.items()):
        for c, key in enumerate(keys):
            weight = expert[key].to(slope[key])
            products[i, c] = float((slope[key] * weight).sum())
            if not math.isfinite(products[i, c]):
                raise ValueError(f"tensor {key!r} of expert {name!r} holds NaN or Inf")
            lengths = float(slope[key].norm() * weight.norm())
            cosines[i, c] = products[i, c] / max(lengths, 1e-30)
    return products, cosines
