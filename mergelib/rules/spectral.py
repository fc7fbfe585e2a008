"""Spectral rules: Task Singular Vectors and isotropic merging.

All act on task matrices τ_t = θ_t − θ_0 of shape (m, n), r = min(m, n), and average what is no
matrix. TSV (Gargiulo et al., 2025) keeps r/T singular components of each task and makes the
directions of different tasks orthogonal. Iso-C (Marczak et al., 2025) flattens the spectrum of
Σ τ_t; Iso-CTS gives part of it to directions that only one task has.

Public implementations take T + 2 full decompositions of every matrix. None is needed here: few
components come from `truncated_svd`, and orthogonalising is a `polar_factor`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mergelib.numerics.linalg import polar_factor, truncated_svd
from mergelib.registry import rule
from mergelib.rules.arithmetic import average

NEGLIGIBLE = 1e-5  # singular values below this share of a matrix's largest count as zero


@rule(paper="gargiulo2025task", elsewhere=average, affine_in="scale")
def tsv(experts: Sequence[Tensor], pretrained: Tensor, *, scale: float = 1.0) -> Tensor:
    """TSV-Merge: θ_0 + scale · Û S V̂ᵀ, tasks' top directions side by side, orthogonalised.

    U, S and V hold floor(r/T) singular components of every task matrix, at least one (where there
    are more experts than directions, some cannot be orthogonal); Û and V̂ are the orthonormal
    matrices nearest to U and V. Components of numerically zero value are left out.

    Args:
        experts: T matrices of shape ``(m, n)``.
        pretrained: θ_0, of the same shape.
        scale: λ on the merged task matrix.
    """
    rank = max(1, min(pretrained.shape) // len(experts))
    parts = [truncated_svd(experts[t] - pretrained, rank) for t in range(len(experts))]
    u, s, vh = _side_by_side(parts)
    return pretrained + scale * (polar_factor(u) * s) @ polar_factor(vh)


@rule(paper="marczak2025task", elsewhere=average, affine_in="scale")
def iso_c(experts: Sequence[Tensor], pretrained: Tensor, *, scale: float = 1.0) -> Tensor:
    """Iso-C: the sum of the task matrices with all singular values set to their mean.

    θ_0 + scale · σ̄ U Vᵀ with Σ τ_t = U S Vᵀ and σ̄ the mean of S. Directions in which the sum is
    numerically zero have no U and V of their own and stay zero; they do count in the mean.

    Args:
        experts: T matrices of shape ``(m, n)``.
        pretrained: θ_0, of the same shape.
        scale: λ on the merged task matrix.
    """
    total = _total(experts, pretrained)
    factor = polar_factor(total)
    mean = torch.dot(factor.flatten(), total.flatten()) / min(total.shape)
    return torch.addcmul(pretrained, factor, scale * mean)  # ⟨UVᵀ, USVᵀ⟩ is the trace of S


@rule(paper="marczak2025task", elsewhere=average, affine_in="scale")
def iso_cts(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    common_fraction: float = 0.8,
    scale: float = 1.0,
) -> Tensor:
    """Iso-CTS: an isotropic matrix on common directions and on directions that tasks have alone.

    Of the r directions, round((r − floor(common_fraction · r)) / T) go to every task: the top ones
    of τ_t without the common left directions, which are the top ones of Σ τ_t and take what is
    left of r. All are orthogonalised as in `tsv` and get the mean of their singular values.

    Args:
        experts: T matrices of shape ``(m, n)``.
        pretrained: θ_0, of the same shape.
        common_fraction: share of common directions, in 0..1; 1 is Iso-C.
        scale: λ on the merged task matrix.

    Raises:
        ValueError: for a fraction outside 0..1.
    """
    if not 0 <= common_fraction <= 1:
        raise ValueError(f"common_fraction is {common_fraction}, expected 0..1")
    full = min(pretrained.shape)
    own = round((full - int(common_fraction * full)) / len(experts))
    own = min(own, full // len(experts))  # rounding up may ask for more than there are
    if not own:
        return iso_c(experts, pretrained, scale=scale)
    shared = truncated_svd(_total(experts, pretrained), full - own * len(experts))
    parts = [shared]
    for t in range(len(experts)):
        task_matrix = experts[t] - pretrained
        task_matrix -= shared[0] @ (shared[0].T @ task_matrix)
        parts.append(truncated_svd(task_matrix, own))
    u, s, vh = _side_by_side(parts)
    return pretrained + scale * s.mean() * polar_factor(u) @ polar_factor(vh)


def _side_by_side(parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """The factors U, S, Vh of several decompositions as those of their sum.

    Vectors that belong to no value are arbitrary: they become zero, lest they push others aside.
    """
    us, values, vhs = zip(*parts, strict=True)
    kept = torch.cat([s > NEGLIGIBLE * s.amax() if len(s) else s > 0 for s in values])
    return torch.cat(us, dim=1) * kept, torch.cat(values), torch.cat(vhs) * kept[:, None]


def _total(experts: Sequence[Tensor], pretrained: Tensor) -> Tensor:
    total = experts[0] - pretrained
    for t in range(1, len(experts)):
        total.add_(experts[t]).sub_(pretrained)
    return total
