"""Row-space interference and reconstruction error of task matrices (Choi et al., 2025).

Take the task matrices D_t of one layer, either uncentred, τ_t = θ_t − θ_0, or centred, θ_t − θ_avg.
With D_t = U_t S_t V_tᵀ and its k strongest directions, the paper's Eq. 5 is

    I(k) = Σ_{i≠j} ‖ Σ̃_i V_iᵀ V_j Σ̃_j ‖_F,

where Σ̃_t is the diagonal matrix of the k largest singular values, divided by an ℓ2 norm. Over which
values this norm goes is not said: over the k ``"kept"`` ones, or over ``"all"``; both are here. Its
Eq. 7 is R(k) = Σ_t ‖ D_t − SVD_k(D_t) ‖_F², the squares of the singular values that are cut.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from mergelib.rules.arithmetic import average
from mergelib.rules.low_rank import rank_of
from mergelib.statedict import StateDict, is_matrix

if TYPE_CHECKING:
    import pandas as pd

Spectrum = tuple[Tensor, Tensor]  # singular values (r,), right singular vectors as rows (r, n)


def spectrum(matrix: Tensor) -> Spectrum:
    """All singular values of a matrix, descending, and its right singular vectors, in float64."""
    _, values, vectors = torch.linalg.svd(matrix.double(), full_matrices=False)
    return values, vectors


def interference(spectra: Sequence[Spectrum], *, norm: Literal["kept", "all"] = "kept") -> Tensor:
    """I(k) for k = 1 … r at once.

    Args:
        spectra: of T task matrices of one layer.
        norm: the singular values that Σ̃ is divided by the norm of.

    Returns:
        Shape ``(r,)``; each of the T (T − 1) ordered pairs adds between 0 and 1. With ``"all"`` it
        rises with k by construction.

    Raises:
        ValueError: for another ``norm``.
    """
    if norm not in ("kept", "all"):
        raise ValueError(f"norm is {norm!r}, expected 'kept' or 'all'")
    total = torch.zeros_like(spectra[0][0])
    for (values, vectors), (others, their_vectors) in combinations(spectra, 2):
        # Entry (a, b) of the product is σ_a σ_b v_a · v_b; its top-left k × k block counts.
        overlap = (values[:, None] * (vectors @ their_vectors.T) * others).square()
        blocks = overlap.cumsum(0).cumsum(1).diagonal().sqrt()
        total += 2 * blocks / (_norms(values, norm) * _norms(others, norm))
    return total


def _norms(values: Tensor, norm: str) -> Tensor:
    norms = values.square().cumsum(0).sqrt()
    norms = norms if norm == "kept" else norms[-1].expand_as(norms)
    return norms.clamp(min=torch.finfo(values.dtype).tiny)


def reconstruction_error(spectra: Sequence[Spectrum]) -> Tensor:
    """R(k) for k = 0 … r, shape ``(r + 1,)``: squares of the singular values beyond the k-th."""
    squares = torch.stack([values.square() for values, _ in spectra]).sum(0)
    tails = squares.flip(0).cumsum(0).flip(0)
    return torch.cat([tails, tails.new_zeros(1)])


def task_matrices(experts: Sequence[Tensor], pretrained: Tensor, *, centred: bool) -> list[Tensor]:
    """θ_t − θ_avg of every expert where ``centred``, else θ_t − θ_0."""
    origin = average(experts) if centred else pretrained
    return [expert - origin for expert in experts]


@torch.no_grad()
def interference_curves(
    experts: Mapping[str, StateDict], pretrained: StateDict, rank_ratios: Sequence[float]
) -> "pd.DataFrame":
    """I(k) and R(k) of every matrix, centred and not, at some shares of the full rank.

    Args:
        experts: task to state dict.
        pretrained: θ_0.
        rank_ratios: k = ceil(ratio · r), in 0..1; I(0) counts as 0.

    Returns:
        A row a layer, ratio and centring: ``layer``, ``rank_ratio``, ``k``, ``centred``,
        ``interference`` (norm over the kept values), ``interference_all`` (over all), and
        ``reconstruction`` (relative to R(0) of the same vectors).
    """
    import pandas as pd

    rows = []
    for layer, origin in pretrained.items():
        if not is_matrix(layer, origin):
            continue
        for centred in (False, True):
            tuned = [expert[layer].float() for expert in experts.values()]
            spectra = [
                spectrum(each) for each in task_matrices(tuned, origin.float(), centred=centred)
            ]
            kept, whole = (interference(spectra, norm=norm) for norm in ("kept", "all"))
            cut = reconstruction_error(spectra)
            for ratio in rank_ratios:
                k = rank_of(origin.shape, ratio, "ceil")
                row = {"layer": layer, "rank_ratio": ratio, "k": k, "centred": centred}
                row["interference"] = float(kept[k - 1]) if k else 0.0
                row["interference_all"] = float(whole[k - 1]) if k else 0.0
                rows.append({**row, "reconstruction": float(cut[k] / cut[0])})
    return pd.DataFrame(rows)
