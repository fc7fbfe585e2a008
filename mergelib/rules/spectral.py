"""Spectral rules on task matrices τ_t = θ_t − θ_0 of shape (m, n), r = min(m, n).

TSV (Gargiulo et al., 2025) keeps r/T singular components per task and orthogonalises them across
tasks. Iso-C (Marczak et al., 2025) flattens the spectrum of Σ τ_t; Iso-CTS reserves part of it for
directions of single tasks. Instead of T + 2 full decompositions, we use `truncated_svd` and
`polar_factor`. Tensors that are not matrices are averaged.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mergelib.messages.kinds import Density, Share
from mergelib.numerics.linalg import polar_factor, truncated_svd
from mergelib.registry import rule
from mergelib.rules.arithmetic import average

NEGLIGIBLE = 1e-5  # singular values below this share of a matrix's largest count as zero


@rule(paper="gargiulo2025task", elsewhere=average, affine_in="scale")
def tsv(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    rank_ratio: Density | None = None,
    scale: float = 1.0,
) -> Tensor:
    """TSV-Merge: θ_0 + scale · Û S V̂ᵀ, the tasks' top directions, orthogonalised.

    U, S and V hold max(1, floor(rank_ratio · r)) singular components per task, without numerically
    zero ones; Û and V̂ are the nearest orthonormal matrices.

    Hyperparameters:
        rank_ratio: fraction of directions that each task keeps; 1/T by default, as in the paper.
            More cannot all be orthogonal. A mapping gives layers their own.
        scale: λ on the merged task matrix.
    """
    share = 1 / len(experts) if rank_ratio is None else rank_ratio
    rank = max(1, int(round(share * min(pretrained.shape), 9)))
    left, right = task_directions(experts, pretrained, rank)
    return pretrained + scale * left @ right


def task_directions(
    experts: Sequence[Tensor], pretrained: Tensor, rank: int
) -> tuple[Tensor, Tensor]:
    """Return Û S ``(m, T·rank)`` and V̂ᵀ ``(T·rank, n)`` of `tsv`, one expert after another."""
    parts = [truncated_svd(experts[t] - pretrained, rank) for t in range(len(experts))]
    u, s, vh = _side_by_side(parts)
    return polar_factor(u) * s, polar_factor(vh)


@rule(paper="marczak2025task", elsewhere=average, affine_in="scale")
def iso_c(experts: Sequence[Tensor], pretrained: Tensor, *, scale: float = 1.0) -> Tensor:
    """Iso-C: θ_0 + scale · σ̄ U Vᵀ, with Σ τ_t = U S Vᵀ and σ̄ the mean of S.

    Directions with a numerically zero singular value stay zero, but count in the mean.

    Hyperparameters:
        scale: λ on the merged task matrix.
    """
    return torch.add(pretrained, isotropic(_total(experts, pretrained)), alpha=scale)


@rule(paper="marczak2025task", elsewhere=average, affine_in="scale")
def iso_cts(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    common_fraction: Share = 0.8,
    scale: float = 1.0,
) -> Tensor:
    """Iso-CTS: an isotropic matrix on common directions and on directions of single tasks.

    Every task gets round((r − floor(common_fraction · r)) / T) directions: the top ones of τ_t
    without the common left directions, which are the top ones of Σ τ_t and fill the rest of r. All
    are orthogonalised as in `tsv` and get the mean of their singular values.

    Hyperparameters:
        common_fraction: fraction of common directions, in 0..1; 1 is Iso-C.
        scale: λ on the merged task matrix.
    """
    full = min(pretrained.shape)
    count = round((full - int(common_fraction * full)) / len(experts))
    count = min(count, full // len(experts))  # rounding up may ask for more than there are
    if not count:
        return iso_c(experts, pretrained, scale=scale)
    common = truncated_svd(_total(experts, pretrained), full - count * len(experts))
    parts = [common]
    for t in range(len(experts)):
        task_matrix = experts[t] - pretrained
        task_matrix -= common[0] @ (common[0].T @ task_matrix)
        parts.append(truncated_svd(task_matrix, count))
    u, s, vh = _side_by_side(parts)
    return pretrained + scale * s.mean() * polar_factor(u) @ polar_factor(vh)


def isotropic(matrix: Tensor) -> Tensor:
    """Return σ̄ U Vᵀ of U S Vᵀ ``(m, n)``, with σ̄ the mean of all min(m, n) singular values."""
    factor = polar_factor(matrix)
    mean = torch.dot(factor.flatten(), matrix.flatten()) / min(matrix.shape)
    return factor * mean  # ⟨UVᵀ, USVᵀ⟩ is the trace of S


def _side_by_side(parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Concatenate factors U, S, Vh of several decompositions, zeroing vectors of zero values."""
    us, values, vhs = zip(*parts, strict=True)
    nonzero = torch.cat([s > NEGLIGIBLE * s.amax() if len(s) else s > 0 for s in values])
    return torch.cat(us, dim=1) * nonzero, torch.cat(values), torch.cat(vhs) * nonzero[:, None]


def _total(experts: Sequence[Tensor], pretrained: Tensor) -> Tensor:
    total = experts[0] - pretrained
    for t in range(1, len(experts)):
        total.add_(experts[t]).sub_(pretrained)
    return total
