"""KnOTS (Stoica et al., 2025): TIES in a basis that the task matrices of all experts share.

Task matrices τ_t = θ_t − θ_0 of LoRA adapters are of low rank and point to different directions.
The left singular vectors of [τ_1, …, τ_T] are a basis for all. The merge has no larger rank than
they have together.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mergelib.merging.applying import CHUNK
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
    triangle = pretrained.new_zeros(0, len(pretrained))  # R of [τ_1, …, τ_T]ᵀ, expert by expert
    for t in range(len(experts)):
        rows = torch.cat([triangle, (experts[t] - pretrained).T])
        triangle = torch.linalg.qr(rows, mode="r").R
    u, s, _ = torch.linalg.svd(triangle.T, full_matrices=False)
    present = s > NEGLIGIBLE * s.amax()
    if not present.any():
        return pretrained.clone()
    u, s = u[:, present], s[present]
    basis = (u / s).T
    columns = torch.arange(pretrained.shape[1]).split(max(1, 64 * CHUNK // len(pretrained)))

    def aligned() -> Iterator[tuple[list[Tensor], None]]:
        for own in columns:
            part = slice(int(own[0]), int(own[-1]) + 1)
            pairs = ((experts[t], pretrained) for t in range(len(experts)))
            yield [basis @ (expert[:, part] - base[:, part]) for expert, base in pairs], None

    thresholds = magnitude_thresholds(aligned, density)
    parts = [
        elect_and_reduce(trimmed(v, torch.zeros_like(v[0]), thresholds), reduce, weights)
        for v, _ in aligned()
    ]
    merged: Tensor = pretrained + (scale * u * s) @ torch.cat(parts, 1)
    return merged
