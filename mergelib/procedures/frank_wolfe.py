"""Frank-Wolfe merging: minimise a loss over the convex hull of the experts (Chen et al., 2025).

The merged weights θ move towards vertices of the hull, which are the experts' weights. The linear
minimisation oracle (LMO) names the vertex that a linear model of the loss ℓ likes best,
s = argmin_i ⟨∇ℓ(θ), θ_i⟩, and the gap g = ⟨∇ℓ(θ), θ − s⟩ bounds how much a convex ℓ can still fall.
The *hard* variant goes a part γ of the way to s. The *soft* one takes the k best vertices and looks
for the best convex combination of them. Either by whole models or tensor by tensor ("layer"), where
the hull is the product of the tensors' hulls.

Experts are read tensor by tensor, so they may be `mergelib.io.Checkpoint`s larger than memory.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergelib.linalg import simplex_projection
from mergelib.procedures.calibration import CalibrationLoss, Tensors, calibration_data
from mergelib.procedures.common import (
    Adapted,
    Transform,
    check_choice,
    check_labels,
    check_tasks,
    complete,
    precise,
)
from mergelib.progress import progress
from mergelib.registry import procedure
from mergelib.statedict import Experts, StateDict, check_compatible, name_experts

if TYPE_CHECKING:
    import pandas as pd

START = "start"  # the row of the coefficients that belongs to the starting point
ARMIJO = 1e-4  # the share of the predicted decrease that a step must bring


class Objective(Protocol):
    """A differentiable function of tensors by name."""

    def value(self, parameters: Tensors) -> float: ...

    def gradient(self, parameters: Tensors) -> tuple[float, Tensors]:
        """The value, and the gradient by name."""


@procedure(
    paper="chen2025fwmerging",
    data="model, heads, labelled examples of every task (100; unlabelled for the entropy)",
)
def frank_wolfe(
    experts: Experts,
    pretrained: StateDict,
    *,
    model: nn.Module,
    heads: Mapping[str, nn.Module],
    data: Mapping[str, Any],
    variant: Literal["soft", "hard"] = "soft",
    granularity: Literal["task", "layer"] = "task",
    score: Literal["inner", "cosine"] = "inner",
    loss: Literal["cross_entropy", "entropy"] = "cross_entropy",
    start: StateDict | None = None,
    steps: int = 15,
    step: Literal["quadratic", "armijo", "diminishing"] | float = "quadratic",
    top_k: int = 3,
    keep_current: bool = True,
    constraint: Literal["simplex", "none"] = "simplex",
    inner_steps: int = 8,
    tolerance: float = 0.0,
    batch_size: int = 200,
    transform: Transform | None = None,
) -> Adapted:
    """Frank-Wolfe merging: go towards the expert, or the best mixture of a few, that lowers a loss.

    Args:
        experts: mapping of name to state dict, or a list; the vertices of the hull.
        pretrained: the first point when no ``start`` is given, and the order of keys.
        model: the architecture, run in evaluation mode.
        heads: task to what turns the model's output into logits; for every task of ``data``.
        data: task to a pair of calibration inputs and labels; for the entropy, inputs are enough.
        variant: ``"hard"``, Algorithm 1, or ``"soft"``, Theorem 1.
        granularity: one vertex for the whole model, or one for each tensor.
        score: what the LMO minimises: the inner product, or the sum of the tensors' cosines, as in
            the authors' released code. The gap is of the inner product in both cases.
        loss: on the calibration data.
        start: the first point; it keeps a share of its own in the coefficients.
        steps: how many, at most.
        step: of the hard variant: ``"quadratic"``, the minimum of the parabola through ℓ, its slope
            and ℓ at the vertex, exact where ℓ is quadratic, and halved until ℓ falls; ``"armijo"``,
            from 1 halved until ℓ falls; ``"diminishing"``, 2/(t+2); or a fixed γ in 0..1.
        top_k: of the soft variant: vertices to mix, at most as many as there are.
        keep_current: the current point is one of them, as otherwise it would be forgotten
            (Proposition 1 with Σ λ = 1).
        constraint: of the soft variant: ``"simplex"`` keeps the mixture in the hull; ``"none"``
            lets λ take any value, as the authors' released code does, in θ + Σ λ_j (s_j − θ), so
            that coefficients still sum to one but may be negative: the model can leave the hull.
        inner_steps: of projected gradient for the mixture.
        tolerance: stop at a gap of at most this; not without a constraint, where the gap, which is
            about the hull, does not tell what is left to gain.
        batch_size: inputs at once.
        transform: from a batch of inputs to the model's, e.g. the testbed's `normalise`.

    Returns:
        The merged state; ``coefficients`` with a row a vertex, and one for the ``start``, a column
        a parameter: they sum to one, and θ = Σ coefficient · vertex. Unless the ``constraint`` is
        ``"none"`` they are not negative, which proves that θ lies in the hull of vertices and
        start. ``history``, a row a step: ``step``, the ``loss`` before it, the ``gap``, the chosen
        ``vertex`` (the most frequent one by layer) and ``moved``, one minus the weight that the
        current point kept.

    Raises:
        ValueError: a setting out of range, a task without head or labels, a label that is no class,
            a loss or an expert's tensor that is not finite.
    """
    named = name_experts(experts)
    check_compatible(pretrained, named, "pretrained")
    first = pretrained if start is None else start
    check_compatible(pretrained, {START: first}, "pretrained")
    _check(variant, granularity, score, loss, constraint, step, steps, top_k)
    check_tasks(data, heads, "head")
    keys = [key for key, _ in model.named_parameters()]
    begin = {key: precise(first[key]) for key in keys}
    fixed = {key: each for key, each in first.items() if key not in begin}
    pairs = calibration_data(data, loss, "frank_wolfe")
    check_labels(pairs, model, first, heads, transform)
    objective = CalibrationLoss(model, fixed, heads, pairs, batch_size, transform)
    theta, table, history = minimise(
        objective,
        begin,
        named,
        variant=variant,
        granularity=granularity,
        score=score,
        steps=steps,
        step=step,
        top_k=top_k,
        keep_current=keep_current,
        constraint=constraint,
        inner_steps=inner_steps,
        tolerance=tolerance,
    )
    buffers = _mixed_buffers(fixed, table.mean(axis=1).tolist(), named)
    state = {key: each.to(pretrained[key].dtype) for key, each in {**buffers, **theta}.items()}
    return Adapted(complete(state, pretrained), table, history)


def minimise(
    objective: Objective,
    start: Tensors,
    experts: Mapping[str, StateDict],
    *,
    variant: Literal["soft", "hard"] = "soft",
    granularity: Literal["task", "layer"] = "task",
    score: Literal["inner", "cosine"] = "inner",
    steps: int = 15,
    step: Literal["quadratic", "armijo", "diminishing"] | float = "quadratic",
    top_k: int = 3,
    keep_current: bool = True,
    constraint: Literal["simplex", "none"] = "simplex",
    inner_steps: int = 8,
    tolerance: float = 0.0,
) -> tuple[Tensors, "pd.DataFrame", "pd.DataFrame"]:
    """The loop of `frank_wolfe` for any objective: last point, coefficients and history.

    Args:
        objective: what to minimise, a function of the tensors that ``start`` has.
        start: the first point.
        experts: the vertices; they may have further tensors.
        **options: as for `frank_wolfe`.
    """
    import pandas as pd

    keys, names = list(start), list(experts)
    theta = {key: each.clone() for key, each in start.items()}
    weights = torch.zeros(len(names) + 1, len(keys), dtype=torch.float64)
    weights[-1] = 1
    rows = []
    for t in progress(range(steps), desc=f"frank-wolfe {variant}", leave=False):
        value, slope = objective.gradient(theta)
        products, cosines = _products(experts, slope, keys)
        here = torch.tensor([float((slope[key] * theta[key]).sum()) for key in keys]).double()
        gap = _gap(products, here, granularity)
        liked = products if score == "inner" else cosines
        if granularity == "task":
            liked = liked.sum(1, keepdim=True).expand_as(liked)
        vertex = names[int(liked.argmin(0).mode().values)]
        rows.append({"step": t, "loss": value, "gap": gap, "vertex": vertex, "moved": 0.0})
        if gap <= tolerance and (constraint == "simplex" or variant == "hard"):
            break
        at = _Place(objective, theta, value, slope, experts, granularity)
        if variant == "hard":
            mixture = _hard(at, liked, step, t)
        else:
            mixture = _soft(at, liked, top_k, keep_current, constraint, inner_steps)
        theta = _mixed(theta, mixture, experts)
        weights = weights * mixture[-1] + torch.cat([mixture[:-1], torch.zeros(1, len(keys))])
        rows[-1]["moved"] = float(1 - mixture[-1].mean())
        if bool((mixture[-1] == 1).all()):  # nothing better was found, nor will be
            break
    table = pd.DataFrame(weights.numpy(), index=[*names, START], columns=keys)
    return theta, table, pd.DataFrame(rows, columns=["step", "loss", "gap", "vertex", "moved"])


@dataclass(frozen=True)
class _Place:
    """A point, and what is known of the objective there."""

    objective: Objective
    theta: Tensors
    value: float
    slope: Tensors
    experts: Mapping[str, StateDict]
    granularity: str


def _hard(at: _Place, liked: Tensor, step: str | float, t: int) -> Tensor:
    """What the next point is made of: a row an expert, the last one the current point."""
    theta = at.theta
    keys = list(theta)
    vertex = F.one_hot(liked.argmin(0), len(at.experts)).T.double()
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
    slant = sum(float((at.slope[key] * (target[key] - theta[key])).sum()) for key in keys)
    gamma = 1.0
    if step == "quadratic":
        bend = at.objective.value(target) - at.value - slant
        gamma = min(1.0, -slant / (2 * bend)) if bend > 0 else 1.0
    for _ in range(20):
        tried = at.objective.value(
            {key: each + gamma * (target[key] - each) for key, each in theta.items()}
        )
        if tried <= at.value + ARMIJO * gamma * min(slant, 0.0):
            return towards(gamma)
        gamma /= 2
    return stay


def _soft(
    at: _Place, liked: Tensor, top_k: int, keep_current: bool, constraint: str, inner_steps: int
) -> Tensor:
    """The best mixture of the liked vertices found by projected gradient, as for `_hard`.

    The start is the current point, or without it the liked vertices in equal shares. A step that
    does not lower the loss is shortened, so a mixture that keeps the current point is never worse.
    """
    project = simplex_projection if constraint == "simplex" else _sum_to_one
    theta, value, slope = at.theta, at.value, at.slope
    keys, names = list(theta), list(at.experts)
    order = liked.argsort(0)[: min(top_k, len(names))]  # (k, keys): which expert in which place
    places = len(order)
    vertices = {
        key: torch.stack([at.experts[names[i]][key].to(theta[key]) for i in order[:, c].tolist()])
        for c, key in enumerate(keys)
    }
    if keep_current:
        vertices = {key: torch.cat([v, theta[key][None]]) for key, v in vertices.items()}
    shares = torch.zeros(len(next(iter(vertices.values()))), len(keys), dtype=torch.float64)
    if keep_current:
        shares[-1] = 1
    else:
        shares[:] = 1 / places
        value, slope = at.objective.gradient(_blend(vertices, shares))
    pull = _pull(slope, vertices, at.granularity)
    rate = 1 / float((pull - pull.mean(0)).abs().amax().clamp(min=1e-30))
    for _ in range(inner_steps):
        for _ in range(6):
            tried = project((shares - rate * pull).T).T
            point = _blend(vertices, tried)
            if at.objective.value(point) < value:
                break
            rate /= 4
        else:
            break
        found, slope = at.objective.gradient(point)
        turned = _pull(slope, vertices, at.granularity)
        moved, bent = tried - shares, float(((tried - shares) * (turned - pull)).sum())
        if bent > 0:  # the step of Barzilai and Borwein (1988)
            rate = float(moved.square().sum()) / bent
        shares, value, pull = tried, found, turned
    mixture = torch.zeros(len(names) + 1, len(keys), dtype=torch.float64)
    mixture.scatter_add_(0, order, shares[:places])
    if keep_current:
        mixture[-1] = shares[-1]
    return mixture


def _pull(slope: Tensors, vertices: Mapping[str, Tensor], granularity: str) -> Tensor:
    """∂ℓ/∂shares, ``(vertices, keys)``; by whole models all columns are the same."""
    pull = torch.tensor(
        [[float((slope[key] * each).sum()) for each in stack] for key, stack in vertices.items()]
    ).T.double()
    return pull.sum(1, keepdim=True).expand_as(pull) if granularity == "task" else pull


def _sum_to_one(values: Tensor) -> Tensor:
    """The nearest point whose last dimension sums to one: affine coefficients, of any sign."""
    return values + (1 - values.sum(-1, keepdim=True)) / values.shape[-1]


def _blend(vertices: Mapping[str, Tensor], shares: Tensor) -> Tensors:
    """Σ shares · vertices of every parameter, from stacked vertices."""
    return {
        key: torch.tensordot(shares[:, c].to(each), each, 1)
        for c, (key, each) in enumerate(vertices.items())
    }


def _mixed(theta: Tensors, mixture: Tensor, experts: Mapping[str, StateDict]) -> Tensors:
    """The point that a mixture of experts and the current point stands for."""
    columns = mixture.T.tolist()
    return {
        key: _combination(column, each, experts, key)
        for column, (key, each) in zip(columns, theta.items(), strict=True)
    }


def _mixed_buffers(
    fixed: StateDict, weights: Sequence[float], experts: Mapping[str, StateDict]
) -> Tensors:
    """Floating buffers in the proportions that the parameters have on average."""
    return {
        key: _combination(weights, each.float(), experts, key)
        for key, each in fixed.items()
        if each.is_floating_point()
    }


def _combination(
    weights: Sequence[float], current: Tensor, experts: Mapping[str, StateDict], key: str
) -> Tensor:
    """Σ weight · tensor, the last weight for the current one; what weighs nothing is not read."""
    total = weights[-1] * current
    for weight, expert in zip(weights[:-1], experts.values(), strict=True):
        if weight:
            total.add_(expert[key].to(total), alpha=weight)
    return total


def _products(
    experts: Mapping[str, StateDict], slope: Tensors, keys: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """⟨∇ℓ, θ_i⟩ and its cosine, both ``(experts, keys)``; one tensor of one expert at a time."""
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


def _gap(products: Tensor, here: Tensor, granularity: str) -> float:
    """max_s ⟨∇ℓ, θ − s⟩ over the hull, or over the product of the tensors' hulls."""
    if granularity == "task":
        return float(here.sum() - products.sum(1).min())
    return float((here - products.amin(0)).sum())


def _check(
    variant: str,
    granularity: str,
    score: str,
    loss: str,
    constraint: str,
    step: str | float,
    steps: int,
    top_k: int,
) -> None:
    for name, value, known in (
        ("variant", variant, ("soft", "hard")),
        ("granularity", granularity, ("task", "layer")),
        ("score", score, ("inner", "cosine")),
        ("loss", loss, ("cross_entropy", "entropy")),
        ("constraint", constraint, ("simplex", "none")),
    ):
        check_choice(name, value, known)
    if isinstance(step, str):
        if step not in ("quadratic", "armijo", "diminishing"):
            raise ValueError(f"step is {step!r}, expected quadratic, armijo, diminishing or 0..1")
    elif not (math.isfinite(step) and 0 <= step <= 1):
        raise ValueError(f"step is {step}, expected 0..1")
    if steps < 0 or top_k < 1:
        raise ValueError(f"steps is {steps} and top_k is {top_k}, expected at least 0 and 1")
