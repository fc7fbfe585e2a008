"""Row-space interference and reconstruction error of task matrices (Choi et al., 2025).

For the task matrices D_t = U_t S_t V_tᵀ of one layer, τ_t or centred, Eq. 5 is, with the k largest
singular values Σ̃_t over an ℓ2 norm, of the ``"kept"`` values or of ``"all"`` (the paper is
silent),

    I(k) = Σ_{i≠j} ‖ Σ̃_i V_iᵀ V_j Σ̃_j ‖_F.

Eq. 7 is R(k) = Σ_t ‖ D_t − SVD_k(D_t) ‖_F². Its theorems bound what the other tasks add to a
layer's outputs on inputs x_{t,i}, L = Σ_t Σ_i ‖ Σ_{s≠t} D_s x_{t,i} ‖², by a multiple of I(r)².
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import pandas as pd
import torch
from torch import Tensor

from mergelib.merging import IsMatrix
from mergelib.rules.arithmetic import average
from mergelib.rules.low_rank import rank_of
from mergelib.statedict import StateDict, is_matrix

NEGLIGIBLE = 1e-6  # singular values below this fraction of the largest count as zero
Spectrum = tuple[Tensor, Tensor]  # singular values (r,), right singular vectors as rows (r, n)


def spectrum(matrix: Tensor) -> Spectrum:
    """All singular values of a matrix, descending, and its right singular vectors, in float64."""
    _, values, vectors = torch.linalg.svd(matrix.double(), full_matrices=False)
    return values, vectors


def interference(spectra: Sequence[Spectrum], *, norm: Literal["kept", "all"] = "kept") -> Tensor:
    """I(k) for k = 1 … r, ``(r,)``; each of the T (T − 1) ordered pairs adds between 0 and 1."""
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


@dataclass(frozen=True)
class Bound:
    """The right side of Theorem 2 (appendix A), n (k3 I + T (T − 1) k4 η)², and what it is made of.

    With the largest singular value s of all task matrices, the smallest one α that is not zero,
    their largest rank r, and c s the longest input in row space, k3 is c r s⁴/α² and k4 is s.
    """

    value: float  # the bound on L
    interference: float  # I(r), with the norm over all values
    k3: float
    k4: float
    noise: float  # η, the longest part of an input outside its task's row space


def task_interference(matrices: Sequence[Tensor], inputs: Sequence[Tensor]) -> float:
    """L: the squared length of what other tasks add to a task's outputs, summed over all inputs."""
    total = torch.stack(list(matrices)).sum(0)
    others = [(total - own) @ x.T for own, x in zip(matrices, inputs, strict=True)]
    return float(sum(outputs.square().sum() for outputs in others))


def interference_bound(matrices: Sequence[Tensor], inputs: Sequence[Tensor]) -> Bound:
    """The bound that Theorem 2 puts on `task_interference`, from the same arguments."""
    spectra = [spectrum(matrix) for matrix in matrices]
    kept = [values[values > NEGLIGIBLE * values[0]] for values, _ in spectra]
    longest, noise = 0.0, 0.0
    for (_, vectors), values, rows in zip(spectra, kept, inputs, strict=True):
        basis = vectors[: len(values)]
        within = rows.double() @ basis.T
        longest = max(longest, float(within.norm(dim=1).max()))
        noise = max(noise, float((rows.double() - within @ basis).norm(dim=1).max()))
    largest = max(float(values[0]) for values in kept)
    smallest = min(float(values[-1]) for values in kept)
    overlap = float(interference(spectra, norm="all")[-1])
    k3 = longest * largest**3 * max(map(len, kept)) / smallest**2
    pairs = len(spectra) * (len(spectra) - 1)
    value = max(map(len, inputs)) * (k3 * overlap + pairs * largest * noise) ** 2
    return Bound(value, overlap, k3, largest, noise)


@torch.no_grad()
def interference_curves(
    experts: Mapping[str, StateDict],
    pretrained: StateDict,
    rank_ratios: Sequence[float],
    *,
    is_matrix: IsMatrix = is_matrix,
) -> pd.DataFrame:
    """I(k) and R(k) of every matrix, centred and not, at some fractions of the full rank.

    ``interference`` has the norm over the kept values, ``interference_all`` that over all, and
    ``reconstruction`` is relative to R(0) of the same vectors.
    """
    rows = []
    for layer, centred, matrices in _layers(experts, pretrained, is_matrix):
        spectra = list(map(spectrum, matrices))
        kept, whole = (interference(spectra, norm=norm) for norm in ("kept", "all"))
        cut = reconstruction_error(spectra)
        for ratio in rank_ratios:
            k = rank_of(matrices[0].shape, ratio, "ceil")
            row = {"layer": layer, "rank_ratio": ratio, "k": k, "centred": centred}
            row["interference"] = float(kept[k - 1]) if k else 0.0
            row["interference_all"] = float(whole[k - 1]) if k else 0.0
            rows.append({**row, "reconstruction": float(cut[k] / cut[0])})
    return pd.DataFrame(rows)


def _layers(
    experts: Mapping[str, StateDict], pretrained: StateDict, is_matrix: IsMatrix
) -> Iterator[tuple[str, bool, list[Tensor]]]:
    """Every matrix by name, uncentred and centred, with every expert's θ_t − θ_0 or θ_t − θ_avg."""
    for layer, start in pretrained.items():
        if is_matrix(layer, start):
            tuned = [expert[layer].float().flatten(1) for expert in experts.values()]
            origins = {False: start.float().flatten(1), True: average(tuned)}
            for centred, origin in origins.items():
                yield layer, centred, [expert - origin for expert in tuned]


@torch.no_grad()
def output_interference(
    experts: Mapping[str, StateDict],
    pretrained: StateDict,
    inputs: Mapping[str, Mapping[str, Tensor]],
    rank_ratios: Sequence[float],
) -> pd.DataFrame:
    """L of every matrix on inputs that it really gets, as a share of what a task's own part adds.

    ``joint`` is L over Σ_t Σ_i ‖D_t x_{t,i}‖²; and ``pairwise`` the same without the products
    between different tasks, Σ_{s≠t} ‖D_s x_{t,i}‖² in place of ‖Σ_{s≠t} D_s x_{t,i}‖².
    """
    rows = []
    for layer, centred, matrices in _layers(experts, pretrained, is_matrix):
        grams = [inputs[task][layer].T @ inputs[task][layer] for task in experts]
        factors = [torch.linalg.svd(matrix, full_matrices=False) for matrix in matrices]
        for ratio in rank_ratios:
            k = rank_of(matrices[0].shape, ratio, "ceil")
            cut = [(u[:, :k] * s[:k]) @ vh[:k] for u, s, vh in factors]
            pairs = list(zip(cut, grams, strict=True))
            total, everything = torch.stack(cut).sum(0), torch.stack(grams).sum(0)
            own = sum(_length(matrix, gram) for matrix, gram in pairs)
            joint = sum(_length(total - matrix, gram) for matrix, gram in pairs)
            pairwise = sum(_length(matrix, everything) for matrix in cut) - own
            row = {"layer": layer, "rank_ratio": ratio, "centred": centred}
            rows.append({**row, "joint": joint / own, "pairwise": pairwise / own})
    return pd.DataFrame(rows)


def _length(matrix: Tensor, moment: Tensor) -> float:
    """Σ_i ‖D x_i‖² = ⟨D Σ_i x_i x_iᵀ, D⟩."""
    return float(((matrix @ moment) * matrix).sum())
