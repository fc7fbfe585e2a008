"""Calibrations: corrections of merged matrices, called as part of a method's name, ``"ties+svc"``.

A calibration is a function of the merged matrix, followed by the experts', before it is rounded.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mergelib.messages.kinds import Positive, Share
from mergelib.numerics.linalg import left_factors
from mergelib.registry import rule
from mergelib.rules.spectral import NEGLIGIBLE


def unchanged(models: Sequence[Tensor]) -> Tensor:
    """Return the merged tensor, which comes before the experts'."""
    return models[0]


@rule(paper="li2026when", family="calibration", elsewhere=unchanged)
def svc(
    models: Sequence[Tensor], pretrained: Tensor, *, svc_alpha: Positive | None = None
) -> Tensor:
    """SVC: shrink singular values of the merged task matrix in directions that experts share.

    U S Vᵀ of the merged task matrix becomes U diag(γ) S Vᵀ. With T experts, γ_r = T / Σ_t max(α,
    s_rt). The projection coefficient s_rt = ⟨a_r, a_rt⟩ / ‖a_rt‖² compares the merged response a_r
    = σ_r v_r with the expert's, a_rt = u_rᵀ τ_t (Li et al., 2026, Algorithm 1). An expert without a
    response counts as α. Where singular values are equal, as all are after `iso_c`, u_r and thus
    the result depend on rounding.

    Args:
        models: the merged matrix and those of T experts, ``(m, n)``.
        pretrained: θ_0.

    Hyperparameters:
        svc_alpha: α, the smallest coefficient; 1 only shrinks, and a smaller one also enlarges
            directions that the merge has weakened. None is 1/T, which the authors take; with
            `tsv` they take 1.
    """
    count = len(models) - 1
    least = 1 / count if svc_alpha is None else svc_alpha
    u, merged = left_factors(models[0] - pretrained)
    total = torch.zeros_like(merged[:, 0])
    for t in range(1, count + 1):  # free each cast copy before the next is made
        task_matrix = models[t] - pretrained
        responses = u.T @ task_matrix
        squares = responses.square().sum(1)
        responds = squares > NEGLIGIBLE**2 * task_matrix.square().sum()
        coefficients = (merged * responses).sum(1) / squares
        total += torch.where(responds, coefficients, 0).clamp(min=least)
    return torch.addmm(pretrained, u * (count / total), merged)


@rule(paper="skorobogat2025subspace", family="calibration", elsewhere=unchanged)
def subspace_boosting(
    models: Sequence[Tensor], pretrained: Tensor, *, boosting_beta: Share = 0.01
) -> Tensor:
    """Subspace boosting: raise small singular values of the merged task matrix.

    U S Vᵀ of the merged task matrix becomes U max(S, σ_c) Vᵀ, with c the least number of singular
    values whose sum is at least β of the sum of all (Skorobogat et al., 2025). Where c = 1, all
    become the largest; `iso_c` gives all the mean. Those that are zero stay so, up to rounding.

    Args:
        models: the merged matrix and those of the experts, ``(m, n)``.
        pretrained: θ_0.

    Hyperparameters:
        boosting_beta: β; 1 changes nothing. The authors' code has a larger one, 0.1, for the joint
            queries, keys and values of attention: ``{"*in_proj*": 0.1, "*": 0.01}``.
    """
    u, merged = left_factors(models[0] - pretrained)
    sizes = torch.linalg.vector_norm(merged, dim=1)  # the smallest first
    largest = sizes.flip(0)
    sums = largest.cumsum(0)
    cutoff = largest[(sums >= boosting_beta * sums[-1]).int().argmax()]
    factors = (cutoff / sizes).clamp(min=1).where(sizes > NEGLIGIBLE * largest[0], 0)
    return torch.addmm(pretrained, u * factors, merged)
