"""Linear rules: averages of weights, and sums of task vectors τ_t = θ_t − θ_0."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from mergelib.merging.applying import CHUNK, precision
from mergelib.merging.reading import PerTensor
from mergelib.messages.kinds import PerExpert, Positive
from mergelib.registry import rule
from mergelib.settings import normalised, per_expert


@rule(paper="wortsman2022model", elementwise=True, linear=True)
def average(
    experts: Sequence[Tensor],
    *,
    weights: PerExpert[float] | None = None,
    normalise: bool = False,
) -> Tensor:
    """Weight averaging: Σ_t w_t θ_t, uniform by default.

    Hyperparameters:
        weights: w_t, one per expert, used as they are. `merge` averages running statistics by the
            positive ones, scaled to sum 1.
        normalise: divide the weights by their sum.
    """
    equal = 1 / len(experts) if weights is None else weights
    factors = per_expert("weights", equal, len(experts))
    if normalise:
        factors = normalised("weights", factors)
    total = experts[0] * factors[0]
    for expert, weight in zip(experts[1:], factors[1:], strict=True):
        total.add_(expert, alpha=weight)
    return total


@rule(paper="ilharco2023editing", elementwise=True, linear=True, affine_in="scale")
def task_arithmetic(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    scale: PerExpert[float] = 0.3,
    normalise: bool = False,
) -> Tensor:
    """Task arithmetic: θ_0 + Σ_t scale_t · (θ_t − θ_0).

    Hyperparameters:
        scale: λ, or λ_t of every expert. 0.3 suits about 8 tasks, 1/T is the average, and a
            negative scale with one expert removes its task.
        normalise: divide the λ_t by their sum.
    """
    factors = per_expert("scale", scale, len(experts))
    if normalise:
        factors = normalised("scale", factors)
    merged = pretrained * (1 - math.fsum(factors))
    for expert, factor in zip(experts, factors, strict=True):
        merged.add_(expert, alpha=factor)
    return merged


@rule(paper="wang2020tackling", elementwise=True, linear=True, affine_in="scale")
def fednova(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    steps: Sequence[Positive] | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Normalised averaging: θ_0 + scale · τ/T · Σ_t (θ_t − θ_0) / τ_t, with τ the mean of the τ_t.

    Dividing task vectors by their training steps removes the advantage of longer training (FedNova,
    Wang et al., 2020, with equal weights of the tasks).

    Hyperparameters:
        steps: τ_t, T positive numbers: steps, or their sum weighted by learning rates. Equal ones,
            the default, give the average at scale 1.
        scale: factor of the merged task vector.
    """
    lengths = per_expert("steps", 1.0 if steps is None else steps, len(experts))
    factors = [scale * math.fsum(lengths) / len(lengths) ** 2 / step for step in lengths]
    return task_arithmetic(experts, pretrained, scale=factors)


Decay = Literal["linear", "cosine", "1-sqrt"]
_DECAYS: dict[Decay, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "1-sqrt": lambda x: 1 - math.sqrt(x),
}


@rule(paper="tian2025wsm", elementwise=True, linear=True)
def wsm(experts: Sequence[Tensor], *, decay: Decay = "1-sqrt") -> Tensor:
    """Checkpoints of one run merged as if its learning rate had decayed: Σ_j (w_j − w_{j+1}) θ_j.

    Experts are T checkpoints in the order of training. The result is θ_0 plus the updates between
    them, the i-th scaled by w_i = d(i/T), with w_0 = 1 and w_T = 0 (WSM, Tian et al., 2025). They
    leave the points of d open; i/T is our choice, with which a linear decay gives the average.

    Hyperparameters:
        decay: d(x) is 1 − x, (1 + cos πx)/2 or 1 − √x.
    """
    kept = [_DECAYS[decay](i / len(experts)) for i in range(len(experts) + 1)]
    return average(experts, weights=[w - later for w, later in pairwise(kept)])


@rule(paper="shoemake1985animating")
def slerp(experts: Sequence[Tensor], *, t: float = 0.5) -> Tensor:
    """Spherical interpolation of two models, tensor by tensor.

    With Ω the angle between the flattened tensors: [sin((1−t)Ω) θ_1 + sin(tΩ) θ_2] / sin Ω. It is
    linear if they are nearly parallel or opposite (|cos Ω| > 0.9995) or one is zero.

    Hyperparameters:
        t: position on the path; 0 is the first expert, 1 the second.
    """
    if len(experts) != 2:
        raise ValueError(f"slerp merges exactly 2 experts, got {len(experts)}")
    a, b = experts
    norms = torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b)
    cosine = torch.ones_like(norms)
    if norms > 0:
        cosine = (torch.sum(a * b) / norms).clamp(-1, 1)
    if cosine.abs() > 0.9995:
        return torch.lerp(a, b, t)
    angle = torch.arccos(cosine).item()
    merged = a * (math.sin((1 - t) * angle) / math.sin(angle))
    return merged.add_(b, alpha=math.sin(t * angle) / math.sin(angle))


def pieces(experts: Sequence[Tensor], pretrained: Tensor | None) -> Iterator[Tensor]:
    """Yield task vectors, or weights if there is no θ_0, some entries at a time: ``(T, n)``."""
    models = [*experts] if pretrained is None else [*experts, pretrained]
    dtype = precision(experts, pretrained)
    for start in range(0, models[0].numel(), CHUNK):
        parts = [model.reshape(-1)[start : start + CHUNK].to(dtype) for model in models]
        vectors = torch.stack(parts[: len(experts)])
        yield vectors if pretrained is None else vectors.sub_(parts[-1])


def gram(experts: Sequence[Tensor], pretrained: Tensor | None) -> Tensor:
    """Return the inner products of all pairs of `pieces`, ``(T, T)`` in float64."""
    products = torch.zeros(len(experts), len(experts), dtype=torch.float64)
    for vectors in pieces(experts, pretrained):
        products += (vectors @ vectors.T).double().cpu()
    return products


def agreement(experts: Sequence[Tensor], pretrained: Tensor) -> float:
    """Return Model Stock's ratio T cos θ / (1 + (T − 1) cos θ), in 0..1.

    cos θ is the mean cosine between task vectors, at least 0. For one expert the ratio is 1.
    """
    count, products = len(experts), gram(experts, pretrained)
    norms = products.diagonal().sqrt().clamp(min=1e-30)
    cosines = products / norms / norms[:, None]
    others = float(cosines.sum() - cosines.diagonal().sum())
    cosine = max(0.0, others / (count * (count - 1))) if count > 1 else 1.0
    return count * cosine / (1 + (count - 1) * cosine)


@rule(paper="jang2024model", elementwise=True, linear=True, prepare=PerTensor("share", agreement))
def model_stock(
    experts: Sequence[Tensor], pretrained: Tensor, *, share: float | None = None
) -> Tensor:
    """Model Stock: t · θ_avg + (1 − t) · θ_0 per tensor, with t from the experts' `agreement`.

    Hyperparameters:
        share: t; computed from these tensors by default.
    """
    if share is None:
        share = agreement(experts, pretrained)
    return average(experts).mul_(share).add_(pretrained, alpha=1 - share)
