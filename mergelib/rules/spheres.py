"""Spherical rules on weights, or on task vectors τ_t = θ_t − θ_0 if a pretrained model is given."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mergelib.merging.reading import PerTensor
from mergelib.messages.kinds import Count, PerExpert, Positive
from mergelib.registry import rule
from mergelib.rules.arithmetic import average, gram, task_arithmetic
from mergelib.settings import normalised, per_expert

NEARLY = 1e-3  # lengths and angles that inner products in float32 do not tell from 0


@rule(paper="goddard2024arcee", rowwise=True, prepare=PerTensor("products", gram))
def nuslerp(
    experts: Sequence[Tensor],
    pretrained: Tensor | None = None,
    *,
    weights: PerExpert[float] = 1.0,
    along: Literal["tensor", "rows"] = "tensor",
    products: Tensor | None = None,
) -> Tensor:
    """NuSLERP: spherical interpolation of two models or task vectors, by tensor or by row.

    With Ω the angle between v_1 and v_2: [sin((1−t)Ω) v_1 + sin(tΩ) v_2] / sin Ω.

    Hyperparameters:
        weights: w_1 and w_2; t is w_2 / (w_1 + w_2).
        along: v_1 and v_2 are whole tensors, or their ``"rows"``.
        products: inner products of v_1 and v_2, (2, 2); computed from these tensors by default.
    """
    if len(experts) != 2:
        raise ValueError(f"nuslerp merges exactly 2 experts, got {len(experts)}")
    _, t = normalised("weights", per_expert("weights", weights, 2))
    vectors = torch.stack([e if pretrained is None else e - pretrained for e in experts])
    if along == "rows":
        products = torch.einsum("i...n,j...n->ij...", vectors, vectors).unsqueeze(-1)
    elif products is None:
        products = gram(experts, pretrained)
    lengths = [products[i, i].sqrt().clamp(min=1e-7) for i in range(2)]
    angle = (products[0, 1] / lengths[0] / lengths[1]).clamp(-1, 1).acos()
    sine = angle.sin()
    first, second = (torch.where(sine > 1e-8, (s * angle).sin() / sine, s) for s in (1 - t, t))
    merged = vectors[0] * first + vectors[1] * second
    return merged if pretrained is None else merged + pretrained


def sphere_mean(
    experts: Sequence[Tensor],
    pretrained: Tensor | None,
    weights: PerExpert[float],
    normalise: bool,
    steps: int,
    tolerance: float,
) -> list[float]:
    """Return the factors of the v_t that give their mean: all points are sums of v_t / |v_t|."""
    values, products = per_expert("weights", weights, len(experts)), gram(experts, pretrained)
    w = products.new_tensor(normalised("weights", values) if normalise else values)
    lengths = products.diagonal().sqrt()
    inverse = torch.where(lengths > 0, 1 / lengths, 0)
    cosines = products * inverse * inverse[:, None]

    def norm(point: Tensor) -> Tensor:
        return (point @ cosines @ point).clamp(min=0).sqrt()

    shares = w * (lengths > 0)  # a vector of zeros has no direction
    if norm(shares) <= NEARLY * w.abs().sum():
        return w.tolist()
    mean = shares / norm(shares)
    for _ in range(steps):
        dots = (cosines @ mean).clamp(-1, 1)
        angles = dots.acos()
        pulls = shares / shares.sum() * torch.where(angles.sin() > NEARLY, angles / angles.sin(), 1)
        step = pulls - (pulls @ dots) * mean
        if (length := norm(step)) < tolerance:
            break
        mean = length.cos() * mean + length.sin() / length * step
    return ((w @ lengths) * mean * inverse).tolist()


@rule(
    paper="karcher1977riemannian",
    elementwise=True,
    linear=True,
    prepare=PerTensor("factors", sphere_mean),
)
def karcher(
    experts: Sequence[Tensor],
    pretrained: Tensor | None = None,
    *,
    weights: PerExpert[float] = 1.0,
    normalise: bool = True,
    steps: Count = 10,
    tolerance: Positive = 1e-5,
    factors: Sequence[float] | None = None,
) -> Tensor:
    """The mean direction of models or task vectors on the sphere, times their mean length.

    The mean direction has the least Σ_t w_t Ω_t², with Ω_t the angle to v_t. The search starts at
    the normalised Σ_t w_t v_t / |v_t| and moves along the sphere. If this sum is nearly 0, the
    result is Σ_t w_t v_t.

    Hyperparameters:
        weights: w_t.
        normalise: divide the weights by their sum.
        steps: the largest number of steps; 0 is mergekit's ``multislerp``, whose own step is 0.
        tolerance: the length of a step, in radians, below which the search ends.
        factors: of the v_t, T numbers; computed from these tensors by default.
    """
    if factors is None:
        factors = sphere_mean(experts, pretrained, weights, normalise, steps, tolerance)
    if pretrained is None:
        return average(experts, weights=factors)
    return task_arithmetic(experts, pretrained, scale=factors)
