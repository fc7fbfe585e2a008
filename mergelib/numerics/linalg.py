"""Truncated singular value decompositions, several times faster than full ones.

SVD_k(D) is built from the r × r Gram matrix of the smaller side, by one product and one symmetric
eigendecomposition, which unlike subspace iteration do not depend on the decay of the spectrum.
Squaring D costs half the digits and blurs singular vectors around the k-th; a Rayleigh–Ritz step
with D on a slightly larger subspace separates them again.

Symbols: D of shape (m, n), r = min(m, n), SVD_k(D) = U diag(S) Vh.
"""

import math

import torch
from torch import Tensor

OVERSAMPLING = 16  # directions beyond the k-th that the Rayleigh–Ritz step may choose from
SAFE = (1e-20, 1e30)  # where Σ D_ij² may lie for squares to be trusted in float32
STRIP = 128  # rows of a Gram matrix computed at once
RESOLUTION = 300.0  # σ_k² must exceed this many machine epsilons times σ_1², else float64 is used


@torch.no_grad()
def truncated_svd(
    matrix: Tensor, rank: int, *, exact: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ``rank`` largest singular values and their vectors.

    The product of the factors is the best rank-k approximation (Eckart and Young, 1936), up to a
    relative Frobenius error of about 3e-4 in float32 and 1e-8 in float64.

    Args:
        matrix: D, shape ``(m, n)``, float32 or float64, on any device, finite (else
            ``ValueError``).
        rank: k, at least 0; it is cut at min(m, n).
        exact: compute a full SVD and cut it.

    Returns:
        U ``(m, k)``, S ``(k,)`` in descending order, and Vh ``(k, n)``. Vectors of the smaller side
        are orthonormal; those of the other side are too while S is well above machine epsilon times
        S[0], and are zero where S is.
    """
    if matrix.dim() != 2 or matrix.dtype not in (torch.float32, torch.float64):
        kind = f"{matrix.dtype} of shape {tuple(matrix.shape)}"
        raise ValueError(f"expected a float32 or float64 matrix, got {kind}")
    if rank < 0:
        raise ValueError(f"rank is {rank}, expected at least 0")
    rows, columns = matrix.shape
    rank = min(rank, rows, columns)
    if rank == 0:
        return matrix.new_empty(rows, 0), matrix.new_empty(0), matrix.new_empty(0, columns)
    if exact or rank == min(rows, columns):
        _check_finite(matrix)
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        return u[:, :rank], s[:rank], vh[:rank]
    if rows > columns:
        v, s, uh = truncated_svd(matrix.T, rank)
        return uh.T, s, v.T
    gram = _gram(matrix)
    if not SAFE[0] < gram.trace().item() < SAFE[1]:  # squares over- or underflow, or there is NaN
        largest = _check_finite(matrix)
        if largest == 0:
            return truncated_svd(matrix, rank, exact=True)
        u, s, vh = truncated_svd(matrix / largest, rank)
        return u, s * largest, vh
    basis = _leading_subspace(matrix, gram, rank)
    projected = basis.T @ matrix
    # Rayleigh–Ritz: the singular vectors of the small matrix, whose square is taken in float64.
    small = projected.double()
    rotation = torch.linalg.eigh(small @ small.T).eigenvectors[:, -rank:].flip(1).to(matrix.dtype)
    vectors = rotation.T @ projected
    values = torch.linalg.vector_norm(vectors, dim=1)
    tiny = torch.finfo(matrix.dtype).tiny
    return basis @ rotation, values, vectors / values.clamp(min=tiny)[:, None]


def low_rank(matrix: Tensor, rank: int, *, exact: bool = False) -> Tensor:
    """Return the nearest matrix of rank ``rank`` in the Frobenius norm; see `truncated_svd`.

    From rank min(m, n) on it is a copy of the matrix; at rank 0 it is zero.
    """
    if rank >= min(matrix.shape):
        return matrix.clone()
    u, s, vh = truncated_svd(matrix, rank, exact=exact)
    product: Tensor = (u * s) @ vh
    return product


@torch.no_grad()
def polar_factor(matrix: Tensor, *, tolerance: float = 1e-5) -> Tensor:
    """Return the matrix with nonzero singular values set to one: U Vᵀ of A = U S Vᵀ ``(m, n)``.

    It is computed as A (AᵀA)^(−1/2), in A's precision if A is well conditioned and else in double;
    the relative Frobenius error is below 1e-3 for singular values down to 1e-4 of the largest.
    Those below ``tolerance`` times the largest count as zero and stay zero.
    """
    rows, columns = matrix.shape
    if rows > columns:
        return polar_factor(matrix.T, tolerance=tolerance).T
    gram = _gram(matrix.double())
    rounded = gram.to(matrix.dtype)
    values, vectors = torch.linalg.eigh(rounded if _well_conditioned(rounded) else gram)
    top = values[-1].clamp(min=torch.finfo(values.dtype).tiny)
    inverse = torch.where(values > tolerance**2 * top, values.clamp(min=top * 1e-30).rsqrt(), 0)
    vectors, inverse = vectors.to(matrix.dtype), inverse.to(matrix.dtype)
    factor: Tensor = ((vectors * inverse) @ vectors.T) @ matrix
    return factor


def left_factors(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return U ``(m, r)`` and S Vh ``(r, n)`` of A, the smallest singular values first.

    They come from the Gram matrix of the smaller side in double. Unlike a full SVD in float32, it
    is also decomposed where many singular values are equal.
    """
    rows, columns = matrix.shape
    wide = rows <= columns
    gram = _gram((matrix if wide else matrix.T).double())
    vectors = torch.linalg.eigh(gram).eigenvectors.to(matrix.dtype)
    if wide:
        return vectors, vectors.T @ matrix
    u = matrix @ vectors
    sizes = torch.linalg.vector_norm(u, dim=0, dtype=gram.dtype).to(u.dtype)
    sizes = sizes.clamp(min=torch.finfo(u.dtype).tiny)
    return u / sizes, sizes[:, None] * vectors.T


def simplex_projection(values: Tensor) -> Tensor:
    """Return the nearest point of the probability simplex, along the last dimension of ``(…, n)``.

    Sort, then subtract the threshold at which the positive part sums to one (Held et al., 1974).
    """
    values = values - values.amax(-1, keepdim=True)  # changes nothing, and no 1 drowns in them
    ordered = values.sort(dim=-1, descending=True).values
    counts = torch.arange(1, values.shape[-1] + 1, dtype=values.dtype, device=values.device)
    thresholds = (ordered.cumsum(-1) - 1) / counts
    last = (ordered > thresholds).sum(-1, keepdim=True) - 1  # the last one that stays positive
    return (values - thresholds.gather(-1, last)).clamp(min=0)


def _gram(matrix: Tensor) -> Tensor:
    """Return ``matrix @ matrix.T``: the lower half in strips, the rest mirrored."""
    rows = len(matrix)
    gram = matrix.new_empty(rows, rows)
    for low in range(0, rows, STRIP):
        part = slice(low, low + STRIP)
        gram[part, : low + STRIP] = matrix[part] @ matrix[: low + STRIP].T
        gram[:low, part] = gram[part, :low].T
    return gram


def _well_conditioned(gram: Tensor) -> bool:
    """Whether the smallest eigenvalue exceeds 1e-3 of the largest, by a cheap sufficient test."""
    shift = 1e-3 * torch.linalg.matrix_norm(gram)  # not below 1e-3 of the largest
    shifted = gram - shift * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return not torch.linalg.cholesky_ex(shifted).info.item()


def _leading_subspace(matrix: Tensor, gram: Tensor, rank: int) -> Tensor:
    """Return orthonormal columns that nearly span the leading left singular vectors."""
    values, vectors = torch.linalg.eigh(gram)
    blind = RESOLUTION * torch.finfo(matrix.dtype).eps
    if matrix.dtype == torch.float32 and values[-rank] < blind * values[-1]:
        vectors = torch.linalg.eigh(_gram(matrix.double())).eigenvectors.float()
    leading: Tensor = vectors[:, -min(rank + OVERSAMPLING, len(values)) :]
    return leading


def _check_finite(matrix: Tensor) -> float:
    """Return the largest magnitude of a matrix; raise ``ValueError`` if it is not finite."""
    largest = matrix.abs().max().item()
    if not math.isfinite(largest):
        raise ValueError("the matrix holds NaN or Inf")
    return largest
