"""Low-rank rules: CART (Choi et al., 2025) and its uncentred control.

CART centres task vectors on the weight average, τ̄_t = θ_t − θ_avg, and keeps the top k singular
directions of each. At k = 0 and at full rank it *is* the average, because the centred vectors sum
to zero; between them lies the bell curve of the paper's Figure 1.
"""

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from mergelib.messages.kinds import PerExpert, Share
from mergelib.numerics.linalg import truncated_svd
from mergelib.registry import rule
from mergelib.rules.arithmetic import average, task_arithmetic
from mergelib.settings import per_expert


def rank_of(shape: Sequence[int], rank_ratio: float, rounding: Literal["ceil", "floor"]) -> int:
    """Return the rank k for a fraction of the full rank r = min(m, n).

    ``"ceil"`` is ceil(ratio · r) (Algorithm 1), ``"floor"`` is max(1, floor(ratio · r)) (released
    code); a ratio of 0 gives 0.
    """
    share = rank_ratio * min(shape)
    if rounding == "ceil":
        return math.ceil(round(share, 9))  # 0.07 · 100 is 7.000000000000001
    return max(1, int(share)) if rank_ratio > 0 else 0


def _add_low_rank(total: Tensor, matrix: Tensor, rank: int, scale: float, exact: bool) -> None:
    """Add scale · SVD_k(matrix) to ``total`` from its factors, without another full matrix."""
    if rank >= min(matrix.shape):
        total.add_(matrix, alpha=scale)
    else:
        u, s, vh = truncated_svd(matrix, rank, exact=exact)
        total.addmm_(u * s, vh, alpha=scale)


@rule(paper="choi2025revisiting", elsewhere=average, affine_in="scale")
def cart(
    experts: Sequence[Tensor],
    *,
    rank_ratio: Share = 0.08,
    scale: float = 1.0,
    rounding: Literal["ceil", "floor"] = "ceil",
    exact: bool = False,
) -> Tensor:
    """CART: θ_avg + scale · Σ_t SVD_k(θ_t − θ_avg) on matrices, the average elsewhere.

    Equation 4 and Algorithm 1 of the paper.

    Hyperparameters:
        rank_ratio: k = ceil(rank_ratio · min(m, n)), in 0..1.
        scale: λ; the paper searches 1.0..3.0.
        rounding: ``"ceil"`` as in the paper, ``"floor"`` as in its released code.
        exact: use full SVDs instead of the faster `mergelib.numerics.linalg.truncated_svd`.
    """
    centre = average(experts)
    rank = rank_of(centre.shape, rank_ratio, rounding)
    merged = centre.clone()
    if 0 < rank < min(centre.shape):  # at full rank the centred vectors sum to zero
        for t in range(len(experts)):  # free each cast copy before the next is made
            _add_low_rank(merged, experts[t] - centre, rank, scale, exact)
    return merged


@rule(paper="choi2025revisiting", elsewhere=task_arithmetic, affine_in="scale")
def low_rank_task_arithmetic(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    rank_ratio: PerExpert[Share] = 0.08,
    scale: PerExpert[float] = 0.3,
    rounding: Literal["ceil", "floor"] = "ceil",
    exact: bool = False,
) -> Tensor:
    """CART's uncentred control: θ_0 + Σ_t scale_t · SVD_k(θ_t − θ_0); elsewhere task arithmetic.

    Hyperparameters:
        rank_ratio: k = ceil(rank_ratio · min(m, n)), in 0..1, or one per expert; full rank is task
            arithmetic.
        scale: λ, or λ_t of every expert.
        rounding: as in `cart`.
        exact: as in `cart`.
    """
    ratios = per_expert("rank_ratio", rank_ratio, len(experts))
    factors = per_expert("scale", scale, len(experts))
    merged = pretrained.clone()
    for t, (ratio, factor) in enumerate(zip(ratios, factors, strict=True)):  # as in `cart`
        rank = rank_of(pretrained.shape, ratio, rounding)
        _add_low_rank(merged, experts[t] - pretrained, rank, factor, exact)
    return merged
