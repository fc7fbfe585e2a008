"""KnOTS (Stoica et al., 2025): TIES in a basis that the task matrices of all experts share.

Task matrices τ_t = θ_t − θ_0 of LoRA adapters are of low rank and point to different directions.
The left singular vectors of [τ_1, …, τ_T] are a basis for all. The merge has no larger rank than
they have together.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mergelib.merging.applying import LONG
from mergelib.messages.kinds import Density, PerExpert
from mergelib.numerics.selection import magnitude_thresholds
from mergelib.registry import rule
from mergelib.rules.arithmetic import average
from mergelib.rules.sparse import Reduce, elect_and_reduce, trimmed
from mergelib.rules.spectral import NEGLIGIBLE


@rule(paper="stoica2025model", elsewhere=average, affine_in="scale")
def knots(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    density: PerExpert[Density] = 0.2,
    weights: PerExpert[float] | None = None,
    scale: float = 1.0,
    reduce: Reduce = "mean",
) -> Tensor:
    """KnOTS: θ_0 + scale · U S TIES(V_1, …, V_T), with [τ_1, …, τ_T] = U S [V_1, …, V_T].

    Each V_t is trimmed by itself, matrix by matrix. Directions with numerically zero singular
    values are left out.

    Hyperparameters:
        density: fraction of the entries of V_t that trimming keeps, in (0, 1], or one per expert.
        weights: w_t, factors of the trimmed V_t, as in `ties`.
        scale: λ on the merged task matrix.
        reduce: ``"mean"`` or ``"sum"`` of the entries that agree in sign.
    """
    rows, columns = pretrained.shape
    triangle = pretrained.new_zeros(0, rows)  # R of [τ_1, …, τ_T]ᵀ, some columns at a time
    for t in range(len(experts)):
        for part in _slices(columns, rows // 2):
            block = (experts[t][:, part] - pretrained[:, part]).T
            triangle = torch.linalg.qr(torch.cat([triangle, block]), mode="r").R
    u, s, _ = torch.linalg.svd(triangle.T, full_matrices=False)
    del triangle
    present = s > NEGLIGIBLE * s.amax()
    merged = pretrained.clone()
    if not present.any():
        return merged
    u, s = u[:, present], s[present]

    def aligned(part: slice) -> list[Tensor]:
        return [
            u.T @ (experts[t][:, part] - pretrained[:, part]) / s[:, None]
            for t in range(len(experts))
        ]

    parts = _slices(columns, LONG // rows)
    thresholds = magnitude_thresholds(lambda: ((aligned(part), None) for part in parts), density)
    for part in parts:
        vectors = aligned(part)
        kept = trimmed(vectors, torch.zeros_like(vectors[0]), thresholds)
        merged[:, part] += scale * u @ (s[:, None] * elect_and_reduce(kept, reduce, weights))
    return merged


def _slices(count: int, width: int) -> list[slice]:
    width = max(1, width)
    return [slice(start, start + width) for start in range(0, count, width)]
