"""KnOTS against NumPy's SVD of the concatenation, and what its basis promises."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mergelib.rules.aligned import knots
from mergelib.rules.sparse import ties


def updates(ranks: tuple[int, ...], shape: tuple[int, int] = (9, 14)) -> list[Tensor]:
    """Task matrices of these ranks."""
    pairs = ((torch.randn(shape[0], r), torch.randn(r, shape[1])) for r in ranks)
    return [b.double() @ a.double() for b, a in pairs]


def by_numpy(vectors: list[Tensor], density: float) -> Any:
    """U S TIES(V_1, …) from one SVD of the concatenation in float64, TIES entry by entry."""
    wide = np.concatenate([v.numpy() for v in vectors], axis=1)
    u, s, vh = np.linalg.svd(wide, full_matrices=False)
    rank = int((s > 1e-9 * s[0]).sum())
    parts = np.split(vh[:rank], len(vectors), axis=1)
    kept = []
    for part in parts:
        count = int(np.ceil(density * part.size))
        least = np.sort(np.abs(part), axis=None)[-count]
        kept.append(np.where(np.abs(part) >= least, part, 0))
    merged = np.zeros_like(kept[0])
    for place in np.ndindex(merged.shape):
        entries = np.array([k[place] for k in kept])
        agreeing = entries[entries * entries.sum() > 0]
        merged[place] = agreeing.mean() if len(agreeing) else 0
    return (u[:, :rank] * s[:rank]) @ merged


@pytest.mark.parametrize("shape", [(9, 14), (14, 9), (30, 4)])
@pytest.mark.parametrize("density", [0.3, 1.0])
def test_equals_one_decomposition_of_all(
    shape: tuple[int, int], density: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mergelib.rules.aligned.LONG", 1)  # some columns at a time
    vectors = updates((2, 3, 1), shape)
    base = torch.randn(shape, dtype=torch.float64)
    merged = knots([base + v for v in vectors], base, density=density)
    np.testing.assert_allclose((merged - base).numpy(), by_numpy(vectors, density), atol=1e-9)


def test_the_rank_is_at_most_the_sum_of_ranks() -> None:
    zero = torch.zeros(9, 14, dtype=torch.float64)
    vectors = updates((2, 1, 2))
    assert torch.linalg.matrix_rank(knots(vectors, zero), rtol=1e-9) == 5
    assert torch.linalg.matrix_rank(ties(vectors, zero), rtol=1e-9) > 5


def test_outputs_may_be_rotated() -> None:
    """Another orthonormal basis of the outputs changes TIES, and not KnOTS."""
    zero, vectors = torch.zeros(9, 14, dtype=torch.float64), updates((2, 3))
    q = torch.linalg.qr(torch.randn(9, 9, dtype=torch.float64)).Q
    turned = [q @ v for v in vectors]
    torch.testing.assert_close(knots(turned, zero), q @ knots(vectors, zero))
    assert not torch.allclose(ties(turned, zero), q @ ties(vectors, zero), atol=0.1)


def test_by_hand() -> None:
    """One shared output direction (0.6, 0.8): TIES of the rows (4, 1) and (2, −3)."""
    direction = torch.tensor([[0.6], [0.8]])
    rows = [torch.tensor([[4.0, 1.0]]), torch.tensor([[2.0, -3.0]])]
    merged = knots([direction @ r for r in rows], torch.zeros(2, 2), density=1.0)
    torch.testing.assert_close(merged, direction @ torch.tensor([[3.0, -3.0]]))
    half = knots([direction @ r for r in rows], torch.zeros(2, 2), density=0.5)
    torch.testing.assert_close(half, direction @ torch.tensor([[4.0, -3.0]]))


def test_experts_that_did_not_change() -> None:
    base = torch.randn(3, 4)
    assert torch.equal(knots([base, base], base), base)
