"""Truncated SVDs: the Eckart–Young theorem, hard spectra, degenerate matrices."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mergelib.numerics.linalg import left_factors, low_rank, simplex_projection, truncated_svd

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
DTYPES = list(TOLERANCE)
SPECTRA: dict[str, Callable[[Tensor], Tensor]] = {
    "1/i": lambda i: 1 / i,
    "1/√i": lambda i: i**-0.5,
    "1/i²": lambda i: i**-2,
    "exp(−i/5)": lambda i: torch.exp(-i / 5),
    "outlier": lambda i: torch.where(i == 1, 1e4, 1 / i),
}


def with_spectrum(rows: int, columns: int, spectrum: str, seed: int = 0) -> Tensor:
    """A float64 matrix with the singular values of that law and random singular vectors."""
    generator = torch.Generator().manual_seed(seed)
    size = min(rows, columns)
    u, v = (
        torch.linalg.qr(torch.randn(n, size, generator=generator, dtype=torch.float64)).Q
        for n in (rows, columns)
    )
    matrix: Tensor = (u * SPECTRA[spectrum](torch.arange(1, size + 1).double())) @ v.T
    return matrix


def best(matrix: Tensor, rank: int) -> Tensor:
    """SVD_k in float64 through a full decomposition."""
    u, s, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    product: Tensor = (u[:, :rank] * s[:rank]) @ vh[:rank]
    return product


def relative_error(approximation: Tensor, reference: Tensor) -> float:
    return float((approximation.double() - reference).norm() / reference.norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(96, 96), (288, 96), (96, 384)])
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("share", [0.08, 0.5])
def test_low_rank_is_the_truncated_svd(
    spectrum: str, shape: tuple[int, int], share: float, dtype: torch.dtype
) -> None:
    matrix = with_spectrum(*shape, spectrum).to(dtype)
    rank = math.ceil(share * min(shape))
    assert relative_error(low_rank(matrix, rank), best(matrix, rank)) < TOLERANCE[dtype]


@pytest.mark.parametrize("spectrum", ["1/i", "1/√i"])
def test_sum_over_experts_at_the_width_of_a_transformer(spectrum: str) -> None:
    matrices = [with_spectrum(768, 768, spectrum, seed).float() for seed in range(2)]
    rank = math.ceil(0.08 * 768)
    update = low_rank(matrices[0], rank) + low_rank(matrices[1], rank)
    reference = best(matrices[0], rank) + best(matrices[1], rank)
    assert relative_error(update, reference) < 1e-4


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    rank=st.integers(0, 45),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e25]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**31),
)
def test_eckart_young(
    rows: int, columns: int, rank: int, scale: float, dtype: torch.dtype, seed: int
) -> None:
    """The error of the best approximation is what the dropped singular values leave."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, columns, generator=generator, dtype=dtype)
    values = torch.linalg.svdvals(matrix.double())
    error = (low_rank(matrix * scale, rank).double() / scale - matrix.double()).norm()
    assert float(error) == pytest.approx(
        float(values[rank:].norm()), rel=1e-4, abs=1e-5 * float(values[0])
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(30, 70), (70, 30), (50, 50)])
def test_factors(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrix = with_spectrum(*shape, "1/√i").to(dtype)
    u, s, vh = truncated_svd(matrix, 7)
    assert (u.shape, s.shape, vh.shape) == ((shape[0], 7), (7,), (7, shape[1]))
    assert u.dtype == s.dtype == vh.dtype == dtype
    tolerance = 100 * torch.finfo(dtype).eps
    identity = torch.eye(7, dtype=dtype)
    torch.testing.assert_close(u.T @ u, identity, rtol=0, atol=tolerance)
    torch.testing.assert_close(vh @ vh.T, identity, rtol=0, atol=tolerance)
    torch.testing.assert_close(s, torch.linalg.svdvals(matrix)[:7], rtol=tolerance, atol=0)
    torch.testing.assert_close((u * s) @ vh, low_rank(matrix, 7), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(40, 60), (60, 40)])
def test_rank_deficient_matrix_is_recovered(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(n, 3, generator=generator) for n in shape)
    matrix = left @ right.T
    torch.testing.assert_close(low_rank(matrix, 5), matrix, rtol=0, atol=1e-5)
    _, s, _ = truncated_svd(matrix, 5)
    assert float(s[3:].max()) < 1e-5 * float(s[0])


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_vectors_beyond_the_rank_are_finite(shape: tuple[int, int]) -> None:
    """A matrix of zeros and one 2, whose further singular values come out as exact zeros."""
    matrix = torch.zeros(shape)
    matrix[1, 2] = 2
    u, s, vh = truncated_svd(matrix, 3)
    assert s.tolist() == [2, 0, 0]
    assert bool(u.isfinite().all())
    assert bool(vh.isfinite().all())
    assert torch.equal(low_rank(matrix, 3), matrix)


@pytest.mark.parametrize("exact", [False, True])
def test_edge_ranks(exact: bool) -> None:
    matrix = with_spectrum(12, 20, "1/i").float()
    assert torch.equal(low_rank(matrix, 0, exact=exact), torch.zeros(12, 20))
    for rank in (12, 20, 99):
        full = low_rank(matrix, rank, exact=exact)
        assert torch.equal(full, matrix)
        assert full.data_ptr() != matrix.data_ptr()
    u, s, vh = truncated_svd(matrix, 99, exact=exact)
    torch.testing.assert_close((u * s) @ vh, matrix)


def test_zero_matrix_stays_zero() -> None:
    assert torch.equal(low_rank(torch.zeros(20, 30), 4), torch.zeros(20, 30))


def test_exact_cuts_the_full_decomposition() -> None:
    matrix = with_spectrum(20, 30, "1/i").float()
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    for ours, theirs in zip(
        truncated_svd(matrix, 4, exact=True), (u[:, :4], s[:4], vh[:4]), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_deterministic_and_without_side_effects() -> None:
    matrix = with_spectrum(64, 96, "1/√i").float()
    before = matrix.clone()
    assert torch.equal(low_rank(matrix, 8), low_rank(matrix, 8))
    assert torch.equal(matrix, before)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_not_finite_is_refused(value: float) -> None:
    matrix = torch.ones(4, 5)
    matrix[2, 3] = value
    with pytest.raises(ValueError, match="NaN or Inf"):
        low_rank(matrix, 2)


@pytest.mark.parametrize(
    ("matrix", "rank"),
    [
        (torch.ones(3), 1),
        (torch.ones(2, 3, 4), 1),
        (torch.ones(3, 3, dtype=torch.int64), 1),
        (torch.ones(3, 3, dtype=torch.float16), 1),
        (torch.ones(3, 3), -1),
    ],
)
def test_what_is_no_matrix_or_rank_is_refused(matrix: Tensor, rank: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        truncated_svd(matrix, rank)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_the_cpu() -> None:
    matrix = with_spectrum(96, 200, "1/i").float()
    on_gpu = low_rank(matrix.cuda(), 9)
    assert on_gpu.is_cuda
    torch.testing.assert_close(on_gpu.cpu(), low_rank(matrix, 9), rtol=0, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_simplex_projection_is_the_nearest_point(values: list[float]) -> None:
    """Against a general solver of quadratic programmes."""
    goal = torch.tensor(values, dtype=torch.float64)
    point = simplex_projection(goal)
    assert float(point.sum()) == pytest.approx(1)
    assert (point >= 0).all()
    solved = pytest.importorskip("scipy.optimize").minimize(
        lambda w: float(np.square(w - goal.numpy()).sum()),
        np.full(len(values), 1 / len(values)),
        method="SLSQP",
        bounds=[(0, 1)] * len(values),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    np.testing.assert_allclose(point.numpy(), solved.x, atol=1e-4)  # as well as SLSQP solves it


def test_simplex_projection_along_the_last_dimension() -> None:
    rows = torch.tensor([[0.2, 0.8], [3.0, 0.0], [-1.0, -1.0]])
    torch.testing.assert_close(
        simplex_projection(rows), torch.tensor([[0.2, 0.8], [1.0, 0.0], [0.5, 0.5]])
    )


@pytest.mark.parametrize("shape", [(7, 30), (30, 7), (8, 8), (1, 5), (5, 1)])
@pytest.mark.parametrize("kind", ["any", "isotropic", "deficient", "zero", "large", "small"])
def test_left_factors_are_a_decomposition(shape: tuple[int, int], kind: str) -> None:
    torch.manual_seed(0)
    u, s, vh = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    s = {"isotropic": torch.ones_like(s), "zero": 0 * s}.get(kind, s)
    s[-len(s) // 2 :] *= kind != "deficient"
    s *= {"large": 1e25, "small": 1e-25}.get(kind, 1)
    matrix = (u * s) @ vh
    left, right = left_factors(matrix)
    size = float(s.amax().clamp(min=1e-30))
    assert left.shape == u.shape
    torch.testing.assert_close(left @ right / size, matrix / size, rtol=0, atol=2e-6)
    gram = (right / size) @ (right / size).T
    squares = (s.flip(0) / size).square().diag()
    torch.testing.assert_close(gram, squares, rtol=0, atol=2e-6)
    some = s.flip(0) > 1e-3 * size
    torch.testing.assert_close(left[:, some].T @ left[:, some], torch.eye(int(some.sum())))
