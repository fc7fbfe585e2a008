"""CART against full SVDs in numpy, its bell curve's ends, and the rank that a ratio stands for."""

import math
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mergelib import merge
from mergelib.rules.low_rank import cart, low_rank_task_arithmetic, rank_of


def truncated(matrix: np.ndarray, rank: int) -> np.ndarray:
    u, s, vh = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    s[rank:] = 0
    product: np.ndarray = (u * s) @ vh
    return product


def matrices(seed: int, count: int, rows: int, columns: int) -> list[np.ndarray]:
    """Spectra that decay, as those of task vectors do, with no two values alike."""
    generator = np.random.default_rng(seed)
    size = min(rows, columns)
    matrices = []
    for _ in range(count):
        u = np.linalg.qr(generator.normal(size=(rows, size)))[0]
        v = np.linalg.qr(generator.normal(size=(columns, size)))[0]
        matrices.append((u * (1 / np.arange(1, size + 1))) @ v.T)
    return matrices


def to_torch(arrays: list[np.ndarray], dtype: torch.dtype) -> list[Tensor]:
    return [torch.from_numpy(array).to(dtype) for array in arrays]


@given(
    seed=st.integers(0, 1000),
    count=st.integers(2, 4),
    rows=st.integers(2, 24),
    columns=st.integers(2, 24),
    ratio=st.floats(0, 1),
    scale=st.floats(0, 3),
    exact=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_both_against_full_svds(
    seed: int,
    count: int,
    rows: int,
    columns: int,
    ratio: float,
    scale: float,
    exact: bool,
    dtype: torch.dtype,
) -> None:
    base, *arrays = matrices(seed, count + 1, rows, columns)
    k = math.ceil(round(ratio * min(rows, columns), 9))
    centre = sum(arrays) / count
    experts, (pretrained,) = to_torch(arrays, dtype), to_torch([base], dtype)
    bound = 2e-3 if dtype == torch.float32 else 1e-7  # singular values may lie close together
    merged = cart(experts, rank_ratio=ratio, scale=scale, exact=exact)
    expected = centre + scale * sum(truncated(array - centre, k) for array in arrays)
    np.testing.assert_allclose(merged, expected, atol=bound)
    merged = low_rank_task_arithmetic(
        experts, pretrained, rank_ratio=ratio, scale=scale, exact=exact
    )
    expected = base + scale * sum(truncated(array - base, k) for array in arrays)
    np.testing.assert_allclose(merged, expected, atol=bound)


def test_cart_by_hand() -> None:
    """Experts diag(4, 0) and diag(0, 2): centre diag(2, 1), task vectors ±diag(2, -1).

    At rank 1 each keeps ±diag(2, 0), and they cancel. A third expert diag(2, 1) changes nothing
    but the count; three that do not cancel are below.
    """
    pair = [torch.diag(torch.tensor(row)) for row in ([4.0, 0.0], [0.0, 2.0])]
    expected = torch.diag(torch.tensor([2.0, 1.0]))
    torch.testing.assert_close(cart(pair, rank_ratio=0.5, scale=2.0), expected)
    # Centre diag(3, 2). Task vectors diag(3, -2), diag(-3, -2), diag(0, 4) keep 3, -3 and 4.
    three = [torch.diag(torch.tensor(row)) for row in ([6.0, 0.0], [0.0, 0.0], [3.0, 6.0])]
    expected = torch.diag(torch.tensor([3.0, 2 + 1.5 * 4]))
    torch.testing.assert_close(cart(three, rank_ratio=0.5, scale=1.5), expected)


def test_low_rank_task_arithmetic_by_hand() -> None:
    """Task vectors diag(3, -2) and diag(1, 5) keep 3 and 5."""
    base = torch.ones(2, 2)
    experts = [base + torch.diag(torch.tensor(row)) for row in ([3.0, -2.0], [1.0, 5.0])]
    merged = low_rank_task_arithmetic(experts, base, rank_ratio=0.5, scale=0.5)
    torch.testing.assert_close(merged, base + torch.diag(torch.tensor([1.5, 2.5])))


@given(seed=st.integers(0, 1000), rows=st.integers(7, 12), columns=st.integers(7, 12))
def test_the_merged_update_has_the_rank_it_may_have(seed: int, rows: int, columns: int) -> None:
    """Rank 2 of each of three experts: at most 6 in all."""
    base, *experts = to_torch(matrices(seed, 4, rows, columns), torch.float64)
    ratio = 2 / min(rows, columns)
    for merged, origin in (
        (cart(experts, rank_ratio=ratio), sum(experts) / 3),
        (low_rank_task_arithmetic(experts, base, rank_ratio=ratio), base),
    ):
        assert (torch.linalg.svdvals(merged - origin) > 1e-9).sum() == 6


@given(seed=st.integers(0, 1000), ratio=st.floats(0, 1), scale=st.floats(0, 3))
def test_of_two_experts_cart_makes_the_average(seed: int, ratio: float, scale: float) -> None:
    """Their centred vectors are opposite, and so is every truncation of them."""
    experts = to_torch(matrices(seed, 2, 8, 6), torch.float64)
    merged = cart(experts, rank_ratio=ratio, scale=scale)
    torch.testing.assert_close(merged, (experts[0] + experts[1]) / 2)


def test_between_the_ends_cart_is_not_the_average() -> None:
    """The bell curve: the update grows from nothing and vanishes again at full rank."""
    experts = to_torch(matrices(0, 3, 10, 10), torch.float64)
    average = sum(experts) / 3
    sizes = [
        torch.linalg.matrix_norm(cart(experts, rank_ratio=k / 10) - average).item()
        for k in range(11)
    ]
    assert sizes[0] == sizes[10] == pytest.approx(0, abs=1e-12)
    assert max(sizes) > 0.1
    assert sizes[9] < sizes[4], "near full rank the kept parts nearly cancel"


@pytest.mark.parametrize(
    ("ratio", "rounding", "rank"),
    [
        (0, "ceil", 0),
        (0, "floor", 0),
        (0.001, "ceil", 1),
        (0.001, "floor", 1),
        (0.07, "ceil", 7),  # in floating point 0.07 · 100 is a little more than 7
        (0.07, "floor", 7),
        (0.08, "ceil", 8),
        (0.085, "ceil", 9),
        (0.085, "floor", 8),
        (1, "ceil", 100),
        (1, "floor", 100),
    ],
)
def test_rank_of(ratio: float, rounding: Literal["ceil", "floor"], rank: int) -> None:
    assert rank_of((100, 300), ratio, rounding) == rank
    assert rank_of((300, 100), ratio, rounding) == rank


@given(ratio=st.floats(0, 1), size=st.integers(2, 5000))
def test_ranks_stay_in_range_and_floor_is_below_ceil(ratio: float, size: int) -> None:
    ceil, floor = (rank_of((size, size), ratio, rounding) for rounding in ("ceil", "floor"))
    assert 0 <= ceil <= size
    assert ceil - 1 <= floor <= max(ceil, 1)


def test_rounding_reaches_the_rule() -> None:
    experts = [{"w": m} for m in to_torch(matrices(0, 3, 10, 10), torch.float32)]
    ceil = merge("cart", experts, rank_ratio=0.25)["w"]
    floor = merge("cart", experts, rank_ratio=0.25, rounding="floor")["w"]
    torch.testing.assert_close(ceil, merge("cart", experts, rank_ratio=0.3)["w"])
    torch.testing.assert_close(floor, merge("cart", experts, rank_ratio=0.2)["w"])
    assert not torch.allclose(ceil, floor)
