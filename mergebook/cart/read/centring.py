"""What chapter 10 computes on a zoo: how truncated centred vectors add up, and small models."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from mergelib.numerics.selection import magnitude_thresholds
from mergelib.rules.arithmetic import average
from mergelib.rules.sparse import trim_below
from mergelib.statedict import StateDict


def largest_gap(a: StateDict, b: StateDict) -> float:
    """The largest difference between two state dicts, in any entry."""
    return max(float((a[key] - b[key]).abs().max()) for key in a)


@torch.no_grad()
def energy_and_cancellation(matrices: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """What the k strongest directions of centred matrices hold, and what is left of their sum.

    Both come from the factors of the decomposition, for full rank too, so that C(r) = 0 is a
    result and not a convention.

    Returns:
        E(k) = Σ_{i≤k} σ_i² / Σ_i σ_i², mean over the experts; and C(k) = ‖Σ_t SVD_k(τ̄_t)‖_F over
        (Σ_t ‖SVD_k(τ̄_t)‖_F²)^½; for k = 1 … r, shape ``(r,)`` each.
    """
    centred = torch.stack(list(matrices)) - average(matrices)
    u, s, vh = torch.linalg.svd(centred, full_matrices=False)
    energy = (s.square().cumsum(1) / s.square().sum(1, keepdim=True)).mean(0)
    total = torch.zeros_like(centred[0])
    lengths = []
    for k in range(s.shape[1]):
        total += torch.einsum("t,tm,tn->mn", s[:, k], u[:, :, k], vh[:, k])
        lengths.append(total.norm())
    return energy, torch.stack(lengths) / s.square().cumsum(1).sum(0).sqrt()


def linear_model(
    angle: float,
    generator: torch.Generator,
    *,
    values: Sequence[float] = (1.0, 0.5, 0.2),
    tasks: int = 4,
    count: int = 400,
    noise: float = 0.01,
) -> tuple[list[Tensor], list[Tensor]]:
    """Task matrices whose row spaces stand at an angle, and inputs that lie near them.

    With r ``values``, each row space is spanned by cos φ times r directions that all tasks share
    plus sin φ times r of its own, so that V_sᵀ V_t = cos² φ · Id.

    Returns:
        T matrices of shape ``(n, n)``, n = r (T + 1); and inputs, shape ``(count, n)`` each.
    """
    sigma = torch.tensor(values)
    rank, size = len(values), len(values) * (tasks + 1)
    axes = torch.eye(size).split(rank)
    matrices, inputs = [], []
    for own in axes[1:]:
        rows = math.cos(angle) * axes[0] + math.sin(angle) * own
        left = torch.linalg.qr(torch.randn(size, rank, generator=generator)).Q
        matrices.append(left @ torch.diag(sigma) @ rows)
        x = torch.randn(count, size, generator=generator) @ matrices[-1] / sigma.norm()
        inputs.append(x + noise * torch.randn(count, size, generator=generator))
    return matrices, inputs


def centred_trim(
    experts: Mapping[str, StateDict], keys: Sequence[str], density: float, scale: float
) -> dict[str, Tensor]:
    """CART with the largest entries of each centred matrix in place of its strongest directions."""
    states = list(experts.values())
    merged = {key: average([state[key] for state in states]) for key in states[0]}
    for key in keys:
        parts, centre = [state[key] for state in states], merged[key]
        bounds = magnitude_thresholds(partial(list, [(parts, centre)]), density)
        kept = [trim_below(part - centre, bound) for part, bound in zip(parts, bounds, strict=True)]
        merged[key] = centre + scale * torch.stack(kept).sum(0)
    return merged
