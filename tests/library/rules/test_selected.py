"""SCE, RAM, NearSwap and Arcee Fusion against numbers worked out by hand and against numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import mergelib as ml
from mergelib.rules.arithmetic import average
from mergelib.rules.selected import arcee_fusion, nearswap, ram, sce


def tensors(*rows: list[float]) -> list[Tensor]:
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def family(*shape: int, count: int = 3) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    base, *experts = (torch.randn(shape, generator=generator) for _ in range(count + 1))
    return [base + expert for expert in experts], base


# Task vectors whose columns have the variances 9, 0, 0, 1 and 4; their sums are all positive.
VECTORS: tuple[list[float], ...] = ([4, 1, 2, 0, 5], [-2, 1, 2, 2, 1])


@pytest.mark.parametrize("base", [0.0, 10.0])
def test_sce_by_hand(base: float) -> None:
    """Squares add up to 46 and 14; with half of the three columns that vary, to 41 and 5."""
    origin = torch.full((5,), base, dtype=torch.float64)
    experts = [origin + vector for vector in tensors(*VECTORS)]
    whole = [4, 1, 2, 2, (5 * 46 + 1 * 14) / 60]
    assert (sce(experts, origin) - origin).tolist() == pytest.approx(whole)
    half = [4, 0, 0, 0, (5 * 41 + 1 * 5) / 46]
    assert (sce(experts, origin, density=0.5) - origin).tolist() == pytest.approx(half)


def test_sce_where_nothing_varies_or_changes() -> None:
    base, (expert,) = torch.zeros(3), tensors([1, 2, 3])
    assert torch.equal(sce([expert.float()], base), expert.float()), "all of one expert"
    assert torch.equal(sce([expert.float()] * 2, base, density=0.5), base), "no entry varies"
    assert torch.equal(sce([base, base], base), base)


def test_sce_selects_within_a_tensor_and_in_pieces() -> None:
    """More entries than the loop sees at a time: the same as on the whole tensor, with numpy."""
    experts, base = family(40_000, count=3)
    merged = ml.merge("sce", [{"w": e} for e in experts], pretrained={"w": base}, density=0.1)
    vectors = np.stack([(expert - base).double().numpy() for expert in experts])
    variances = vectors.var(0)
    vectors = vectors * (variances >= np.sort(variances)[-4000])
    weights = (vectors**2).sum(1, keepdims=True)
    agreeing = weights * (np.sign(vectors) == np.sign(vectors.sum(0))) * (vectors != 0)
    expected = (agreeing * vectors).sum(0) / np.maximum(agreeing.sum(0), 1e-30)
    np.testing.assert_allclose((merged["w"] - base).numpy(), expected, atol=2e-6)


def test_ram_by_hand() -> None:
    """Shared, alone in b, alone in a, changed by less than epsilon, alone in a."""
    base = torch.full((5,), 100.0, dtype=torch.float64)
    experts = [base + vector for vector in tensors([1, 0, 2, 1e-6, 6], [3, 4, 0, 0, 0])]
    assert (ram(experts, base) - base).tolist() == pytest.approx([2, 4, 2, 0, 6])
    # ρ is 1/2 for a, which has changed two entries alone, and 1 for b, limited to 0.6.
    changes = ram(experts, base, r=0.5, alpha=0.6) - base
    assert changes.tolist() == pytest.approx([2, 4 * 1.3, 2 * 1.25, 0, 6 * 1.25])


def test_ram_counts_over_the_whole_tensor() -> None:
    experts, base = family(3, 20_000, count=2)
    changed = [
        torch.where(torch.arange(20_000) % number == 0, e, base)
        for number, e in enumerate(experts, 2)
    ]
    states = [{"w": expert} for expert in changed]
    merged = ml.merge("ram", states, pretrained={"w": base}, r=1.0, alpha=10.0)["w"]
    # A sixth of the entries is shared; the first alone changed a third, the second a sixth.
    torch.testing.assert_close(
        merged[:, 2], base[:, 2] + (experts[0] - base)[:, 2] * 1.5, rtol=1e-3, atol=1e-3
    )
    torch.testing.assert_close(
        merged[:, 3], base[:, 3] + (experts[1] - base)[:, 3] * 2, rtol=1e-3, atol=1e-3
    )


def test_ram_of_dense_changes_is_the_average() -> None:
    experts, base = family(6, 7)
    torch.testing.assert_close(ram(experts, base), average(experts))


def test_nearswap_by_hand() -> None:
    base = torch.tensor([1.0, 1.0, 1.0])
    first, second = base + torch.tensor([0.5, -2.0, 0.125]), base + torch.tensor([0.5, 2.0, 0.0])
    assert nearswap([first], base, t=0.25).tolist() == [1.25, 0.75, 1.125]
    assert nearswap([first, second], base, t=0.25).tolist() == [1.25, 1.0, 1.0625]
    assert torch.equal(nearswap([first], base, t=0.0), base)
    assert torch.equal(nearswap([first], base, t=9.0), first)


def test_arcee_fusion_by_hand() -> None:
    """A vector is one row, so importance goes by size: quartiles 2, 4, 6, and a fence of 10."""
    base = torch.zeros(8)
    expert = torch.tensor([0.1, -0.2, 0.3, 0.4, -0.5, 0.6, 0.7, 4.0])
    assert arcee_fusion([expert], base).tolist() == [0, 0, 0, 0, 0, 0, 0, 4]
    other = torch.tensor([-3.0, -0.2, 0.3, 0.4, -0.5, 0.6, 0.7, 2.0])
    both = arcee_fusion([expert, other], base)
    assert both.tolist() == [-3, 0, 0, 0, 0, 0, 0, 3], "the mean where both select an entry"
    assert torch.equal(arcee_fusion([base], base), base)


def fusion_numpy(expert: np.ndarray, base: np.ndarray) -> np.ndarray:
    """With sorts and natural logarithms, row by row."""
    p, q = (np.exp(rows) / np.exp(rows).sum(1, keepdims=True) for rows in (expert, base))
    divergence = ((p + 1e-8) * np.log((p + 1e-8) / (q + 1e-8))).sum(1, keepdims=True)
    score = np.abs(expert - base) * divergence
    ordered, last = np.sort(score, axis=None), score.size - 1
    low, middle, high = (ordered[int(quarter * last)] for quarter in (0.25, 0.5, 0.75))
    return np.where(score >= middle + 1.5 * (high - low), expert, base)


@given(rows=st.integers(1, 9), width=st.integers(2, 9), seed=st.integers(0, 1000))
def test_arcee_fusion_against_numpy(rows: int, width: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    base, expert = generator.normal(size=(2, rows, width))
    found = arcee_fusion([torch.from_numpy(expert)], torch.from_numpy(base))
    np.testing.assert_allclose(found, fusion_numpy(expert, base), atol=1e-12)


def test_arcee_fusion_in_pieces() -> None:
    """Rows are read in blocks, in either pass."""
    (expert,), base = family(500, 90, count=1)
    merged = ml.merge("arcee_fusion", [{"w": expert}], pretrained={"w": base})["w"]
    expected = fusion_numpy(expert.double().numpy(), base.double().numpy())
    np.testing.assert_allclose(merged.numpy(), expected.astype(np.float32), atol=1e-6)
    assert 0 < int((merged != base).sum()) < merged.numel() / 4


@pytest.mark.parametrize(
    ("method", "options", "match"),
    [
        ("sce", {"density": 0.0}, "density is 0.0, expected above 0 and at most 1"),
        ("ram", {"epsilon": -1.0}, "epsilon is -1.0, expected at least 0"),
        ("ram", {"alpha": -1.0}, "alpha is -1.0, expected at least 0"),
        ("nearswap", {"t": -0.1}, "t is -0.1, expected at least 0"),
        ("karcher", {"steps": -1}, "steps is -1, expected an integer of at least 0"),
        ("nuslerp", {"along": "columns"}, "along is 'columns', expected 'tensor' or 'rows'"),
    ],
)
def test_out_of_range(method: str, options: dict[str, Any], match: str) -> None:
    experts, base = family(4, 5, count=2)
    with pytest.raises(ValueError, match=match):
        ml.merge(method, [{"w": expert} for expert in experts], pretrained={"w": base}, **options)
