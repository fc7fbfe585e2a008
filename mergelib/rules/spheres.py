"""Rules that treat a tensor's direction and length apart: NuSLERP and the mean on the sphere.

Both merge the weights θ_t themselves, or task vectors θ_t − θ_0 if there is a pretrained model.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from mergelib.merging import Group
from mergelib.messages.kinds import Count, PerExpert, Positive
from mergelib.registry import rule
from mergelib.rules.arithmetic import average, gram, task_arithmetic
from mergelib.settings import normalised, per_expert


@rule(paper="goddard2024arcee")
def nuslerp(
    experts: Sequence[Tensor],
    pretrained: Tensor | None = None,
    *,
    weights: PerExpert[float] = 1.0,
    along: Literal["tensor", "rows", "columns"] = "tensor",
) -> Tensor:
    """NuSLERP: spherical interpolation of two models or task vectors, tensor by tensor or by row.

    With Ω the angle between v_1 and v_2: [sin((1−t)Ω) v_1 + sin(tΩ) v_2] / sin Ω, and the line
    between them where sin Ω is below 1e-8.

    Hyperparameters:
        weights: w_1 and w_2, which give t = w_2 / (w_1 + w_2).
        along: the vectors are the whole ``"tensor"``, or ``"rows"`` along the last dimension, or
            ``"columns"`` along the first.
    """
    if len(experts) != 2:
        raise ValueError(f"nuslerp merges exactly 2 experts, got {len(experts)}")
    _, t = normalised("weights", per_expert("weights", weights, 2))
    shape, dim = experts[0].shape, 0 if along == "columns" else -1
    a, b = (expert if pretrained is None else expert - pretrained for expert in experts)
    if along == "tensor" or not shape:
        a, b = a.reshape(-1), b.reshape(-1)
    norms = torch.linalg.vector_norm(a, dim=dim).clamp_(min=1e-7)
    norms *= torch.linalg.vector_norm(b, dim=dim).clamp_(min=1e-7)
    angle = (torch.linalg.vecdot(a, b, dim=dim) / norms).clamp_(-1, 1).acos_().unsqueeze(dim)
    parallel = angle.sin() <= 1e-8
    first, second = (
        torch.where(parallel, share, (share * angle).sin() / angle.sin()) for share in (1 - t, t)
    )
    merged = (a * first).addcmul_(b, second).view(shape)
    return merged if pretrained is None else merged.add_(pretrained)


def mean_on_sphere(
    products: Tensor, weights: PerExpert[float], steps: int, tolerance: float
) -> list[float]:
    """Return the factors c_t with which Σ c_t v_t is the mean of the v_t on the sphere.

    All of it happens in the span of the unit vectors u_t = v_t / |v_t|, whose inner products follow
    from those of the v_t, ``(T, T)``: a vector is its T factors of the u_t. Where the u_t cancel,
    the mean is Σ w_t v_t.
    """
    w = products.new_tensor(normalised("weights", per_expert("weights", weights, len(products))))
    lengths = products.diagonal().sqrt()
    inverse = torch.where(lengths > 0, 1 / lengths, 0)
    cosines = products * inverse * inverse[:, None]

    def norm(vector: Tensor) -> Tensor:
        return (vector @ cosines @ vector).clamp(min=0).sqrt()

    shares = w * (lengths > 0)  # a vector of zeros has no direction
    if norm(shares) < 1e-8:
        return w.tolist()
    mean = shares / norm(shares)
    for _ in range(steps):
        dots = (cosines @ mean).clamp(-1, 1)
        angles = dots.acos()
        pulls = shares / shares.sum() * torch.where(angles.sin() > 1e-7, angles / angles.sin(), 1)
        tangent = pulls - (pulls @ dots) * mean
        length = norm(tangent)
        if length < tolerance:
            break
        mean = length.cos() * mean + length.sin() / length * tangent
        mean /= norm(mean)
    return ((w @ lengths) * mean * inverse).tolist()


def _factors(
    tensors: Callable[[], Iterable[tuple[str, Group]]], at: Mapping[str, dict[str, Any]]
) -> Mapping[str, dict[str, Any]]:
    """First pass of the mean on the sphere: the factors of every tensor."""
    return {key: {"factors": mean_on_sphere(gram(*group), **at[key])} for key, group in tensors()}


@rule(
    paper="karcher1977riemannian",
    elementwise=True,
    linear=True,
    prepare=_factors,
    prepared=("factors",),
)
def karcher(
    experts: Sequence[Tensor],
    pretrained: Tensor | None = None,
    *,
    weights: PerExpert[float] = 1.0,
    steps: Count = 10,
    tolerance: Positive = 1e-5,
    factors: Sequence[float] | None = None,
) -> Tensor:
    """The mean direction of models or task vectors on the sphere, times their mean length.

    The mean direction has the least Σ_t w_t Ω_t², with Ω_t the angle to tensor t (Karcher, 1977).
    It starts from the normalised Σ_t w_t v_t / |v_t| and takes steps along the sphere. With 0 steps
    this start is the result, to which mergekit's ``multislerp`` amounts.

    Hyperparameters:
        weights: w_t, divided by their sum.
        steps: the largest number of steps.
        tolerance: length of a step, in radians, that is the last one.
        factors: T numbers by which tensors or task vectors are multiplied; computed from these
            tensors by default.
    """
    if factors is None:
        products = gram(experts, pretrained)
        factors = mean_on_sphere(products, weights, steps, tolerance)
    if pretrained is None:
        return average(experts, weights=factors)
    return task_arithmetic(experts, pretrained, scale=factors)
