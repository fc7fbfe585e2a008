"""TIES and DARE against numbers worked out by hand, and against plain numpy."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mergelib import merge
from mergelib.merging.applying import own_seed
from mergelib.rules.sparse import dare, drop_and_rescale, elect_and_reduce, ties, trim_below

State = dict[str, Tensor]

# Three experts, two tensors, six coordinates each:          |  by size over the whole model (12)
#   "a":                          "b":
# τ_1:  9 -1  4  1  0  2          8 -7  1  1  0  3           |  9 8 7 4 3 2 ...
# τ_2: -3  8  5  2  0 -2          1  9  6 -1  0  7           |  9 8 7 6 5 3 ...
# τ_3:  2  1 -9  3  0  8         -8  5  4  4  0  1           |  9 8 8 5 4 4 3 ...
TASK_VECTORS = {
    "a": [[9, -1, 4, 1, 0, 2], [-3, 8, 5, 2, 0, -2], [2, 1, -9, 3, 0, 8]],
    "b": [[8, -7, 1, 1, 0, 3], [1, 9, 6, -1, 0, 7], [-8, 5, 4, 4, 0, 1]],
}
# density 1/3 of the model keeps 4 of 12: τ_1 from 4 up, τ_2 from 6 up, τ_3 from 5 up.
# density 1/3 of a tensor keeps 2 of 6:
#   "a": τ_1 from 4 (9, 4), τ_2 from 5 (8, 5), τ_3 from 8 (-9, 8)
#   "b": τ_1 from 7 (8, -7), τ_2 from 7 (9, 7), τ_3 from 5 (-8, 5)
TRIMMED = {
    "model": {
        "a": [[9, 0, 4, 0, 0, 0], [0, 8, 0, 0, 0, 0], [0, 0, -9, 0, 0, 8]],
        "b": [[8, -7, 0, 0, 0, 0], [0, 9, 6, 0, 0, 7], [-8, 5, 0, 0, 0, 0]],
    },
    "tensor": {
        "a": [[9, 0, 4, 0, 0, 0], [0, 8, 5, 0, 0, 0], [0, 0, -9, 0, 0, 8]],
        "b": [[8, -7, 0, 0, 0, 0], [0, 9, 0, 0, 0, 7], [-8, 5, 0, 0, 0, 0]],
    },
}
# The third of "a": 4 - 9 elects minus when the model is trimmed as one; tensor by tensor 4 + 5 - 9
# sums to zero and elects nobody, as 8 - 8 in "b" does in either case.
MERGED = {
    ("model", "mean"): {"a": [9, 8, -9, 0, 0, 8], "b": [0, 7, 6, 0, 0, 7]},
    ("model", "sum"): {"a": [9, 8, -9, 0, 0, 8], "b": [0, 14, 6, 0, 0, 7]},
    ("tensor", "mean"): {"a": [9, 8, 0, 0, 0, 8], "b": [0, 7, 0, 0, 0, 7]},
    ("tensor", "sum"): {"a": [9, 8, 0, 0, 0, 8], "b": [0, 14, 0, 0, 0, 7]},
}
BASE = {"a": [10, 20, 30, 40, 50, 60], "b": [-6, -5, -4, -3, -2, -1]}


def family() -> tuple[State, list[State]]:
    pretrained = {key: torch.tensor(values).float() for key, values in BASE.items()}
    experts = [
        {key: pretrained[key] + torch.tensor(TASK_VECTORS[key][t]) for key in BASE}
        for t in range(3)
    ]
    return pretrained, experts


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("trim", ["model", "tensor"])
def test_ties_by_hand(trim: str, reduce: str, scale: float) -> None:
    pretrained, experts = family()
    options: dict[str, Any] = {"density": 1 / 3, "trim": trim, "reduce": reduce, "scale": scale}
    merged = merge("ties", experts, pretrained=pretrained, **options)
    for key, expected in MERGED[trim, reduce].items():
        change = torch.tensor(expected).float()
        assert merged[key].tolist() == (pretrained[key] + scale * change).tolist()


@pytest.mark.parametrize("trim", ["model", "tensor"])
def test_what_ties_trims_by_hand(trim: str) -> None:
    """One expert merged by itself shows what is left of it."""
    pretrained, experts = family()
    for t, expert in enumerate(experts):
        merged = merge("ties", [expert], pretrained=pretrained, density=1 / 3, trim=trim)
        for key in BASE:
            assert (merged[key] - pretrained[key]).tolist() == TRIMMED[trim][key][t]


def test_ties_defaults() -> None:
    """density=0.2 keeps 3 of 12; scale 1; the mean; the whole model."""
    pretrained, experts = family()
    merged = merge("ties", experts, pretrained=pretrained)
    # τ_1 keeps 9, 8, -7; τ_2 keeps 8, 9, 7; τ_3 keeps -9, 8, -8.
    assert (merged["a"] - pretrained["a"]).tolist() == [9, 8, -9, 0, 0, 8]
    assert (merged["b"] - pretrained["b"]).tolist() == [0, 9, 0, 0, 0, 7]


def test_entries_equal_to_the_threshold_are_all_kept() -> None:
    pretrained = {"w": torch.zeros(6)}
    expert = {"w": torch.tensor([5.0, -3, 3, 1, -3, 0])}
    for density, expected in ((1 / 6, [5, 0, 0, 0, 0, 0]), (2 / 6, [5, -3, 3, 0, -3, 0])):
        merged = merge("ties", [expert], pretrained=pretrained, density=density)
        assert merged["w"].tolist() == expected


def test_trimming_keeps_exactly_k_where_magnitudes_differ() -> None:
    """Counting from the smallest, as kthvalue does, is an easy way to keep k + 1."""
    pretrained, expert = {"w": torch.zeros(1000)}, {"w": torch.randperm(1000) + 1.0}
    for density, k in ((0.001, 1), (0.2, 200), (0.07, 70), (0.2001, 201), (1.0, 1000)):
        merged = merge("ties", [expert], pretrained=pretrained, density=density)
        assert merged["w"].count_nonzero() == k
        assert merged["w"][expert["w"] > 1000 - k].count_nonzero() == k


def test_trim_below_keeps_the_threshold_itself() -> None:
    third = torch.tensor(1 / 3)
    vector = torch.stack([third, -third, torch.nextafter(third, torch.tensor(0.0)), 0 * third])
    assert trim_below(vector, third.item()).tolist() == [third, -third, 0, 0]
    assert torch.equal(trim_below(vector, 0.0), vector)


def test_elect_and_reduce_by_hand() -> None:
    """Columns: agreement, a majority by size, one by number loses, zero sum, an idle zero, none."""
    votes = torch.tensor([[2.0, 5, 1, 3, 0, 0], [4, -1, 1, -3, 6, 0], [6, -1, -9, 0, 2, 0]])
    assert elect_and_reduce(votes, "mean").tolist() == [4, 5, -9, 0, 4, 0]
    assert elect_and_reduce(votes, "sum").tolist() == [12, 5, -9, 0, 8, 0]


def ties_numpy(
    stack: dict[str, np.ndarray], density: float, trim: str, reduce: str
) -> dict[str, np.ndarray]:
    """TIES straight from the paper, with sorts: arrays (T, n) to (n,)."""
    whole = np.concatenate(list(stack.values()), axis=1)
    merged = {}
    for key, vectors in stack.items():
        scope = whole if trim == "model" else vectors
        k = max(1, math.ceil(round(density * scope.shape[1], 6)))
        least = np.sort(np.abs(scope), axis=1)[:, -k]
        kept = np.where(np.abs(vectors) >= least[:, None], vectors, 0)
        elected = np.sign(kept.sum(0))
        agree = (np.sign(kept) == elected) & (kept != 0)
        total = np.where(agree, kept, 0).sum(0)
        merged[key] = total / np.maximum(agree.sum(0), 1) if reduce == "mean" else total
    return merged


@given(
    count=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    density=st.floats(0.01, 1),
    trim=st.sampled_from(["model", "tensor"]),
    reduce=st.sampled_from(["mean", "sum"]),
    seed=st.integers(0, 10_000),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_ties_against_numpy(
    count: int,
    sizes: list[int],
    density: float,
    trim: str,
    reduce: str,
    seed: int,
    dtype: torch.dtype,
) -> None:
    """Small integers, so that equal magnitudes and zero sums abound, and all but means is exact."""
    generator = np.random.default_rng(seed)
    stack = {f"w{i}": generator.integers(-5, 6, (count, size)) for i, size in enumerate(sizes)}
    base = {key: generator.integers(-20, 21, vectors.shape[1]) for key, vectors in stack.items()}
    expected = ties_numpy(stack, density, trim, reduce)
    pretrained = {key: torch.from_numpy(value).to(dtype) for key, value in base.items()}
    experts = [
        {key: torch.from_numpy(base[key] + stack[key][t]).to(dtype) for key in stack}
        for t in range(count)
    ]
    merged = merge(
        "ties", experts, pretrained=pretrained, density=density, trim=trim, reduce=reduce
    )
    for key, change in expected.items():
        exact = torch.from_numpy((base[key] + change).astype(np.float32)).to(dtype)
        torch.testing.assert_close(merged[key], exact, rtol=1e-6, atol=1e-6)


def test_the_rule_by_itself_trims_its_tensor() -> None:
    pretrained, experts = family()
    alone = ties([e["a"] for e in experts], pretrained["a"], density=1 / 3)
    assert (alone - pretrained["a"]).tolist() == MERGED["tensor", "mean"]["a"]


def test_dare_by_hand() -> None:
    """The masks of a known generator; kept entries of τ = (1 ... 6) and (-2 ... -12) double."""
    draws = torch.rand(2, 6, generator=torch.Generator().manual_seed(3))
    kept = (draws >= 0.5).float()
    assert 0 < kept.sum() < 12, "a seed worth testing"
    up, base = torch.arange(1.0, 7.0), torch.full((6,), 100.0)
    experts = [base + up, base - 2 * up]
    expected = base + 0.25 * (2 * kept[0] * up - 2 * kept[1] * 2 * up)
    merged = dare(experts, base, drop_rate=0.5, scale=0.25, seed=3)
    torch.testing.assert_close(merged, expected)
    elected = torch.where(kept[1] > 0, -4 * up, 2 * kept[0] * up)  # the larger one wins
    merged = dare(experts, base, drop_rate=0.5, combine="ties", seed=3)
    torch.testing.assert_close(merged, base + elected)


def test_dare_adds_up_what_agrees() -> None:
    """Both entries agree in sign, so their sum is task arithmetic's, weight by weight."""
    draws = torch.rand(2, 6, generator=torch.Generator().manual_seed(3))
    kept = (draws >= 0.5).float()
    up, base = torch.arange(1.0, 7.0), torch.full((6,), 100.0)
    options: dict[str, Any] = {"drop_rate": 0.5, "combine": "ties", "reduce": "sum", "seed": 3}
    merged = dare([base + up, base + 2 * up], base, weights=[0.5, 3.0], **options)
    torch.testing.assert_close(merged, base + 2 * (0.5 * kept[0] * up + 3 * kept[1] * 2 * up))
    against = dare([base + up, base - 2 * up], base, scale=0.25, **options)
    elected = torch.where(kept[1] > 0, -4 * up, 2 * kept[0] * up)  # the larger one wins
    torch.testing.assert_close(against, base + 0.25 * elected)


def test_dare_defaults() -> None:
    """Nine tenths dropped, the rest ten times as large; scale 0.3, with TIES 1."""
    base, expert = torch.zeros(20_000), torch.ones(20_000)
    for combine, size in (("task_arithmetic", 3.0), ("ties", 10.0)):
        merged = dare([expert], base, combine=combine)  # type: ignore[arg-type]
        assert merged.unique().tolist() == pytest.approx([0, size])
        assert (merged > 0).float().mean() == pytest.approx(0.1, abs=0.01)


def test_each_tensor_draws_from_a_seed_of_its_own() -> None:
    pretrained, experts = family()
    merged = merge("dare", experts, pretrained=pretrained, drop_rate=0.5, seed=11)
    for key in pretrained:
        tuned = [expert[key] for expert in experts]
        expected = dare(tuned, pretrained[key], drop_rate=0.5, seed=own_seed(11, key))
        assert torch.equal(merged[key], expected)


@pytest.mark.parametrize("drop_rate", [0.3, 0.9])
def test_dare_expects_task_arithmetic(drop_rate: float) -> None:
    """Over seeds: mean θ_0 + λ Σ τ, variance λ² Σ τ² p / (1 - p), within 5 standard errors."""
    pretrained, experts = family()
    base, tuned, scale, runs = pretrained["b"], [e["b"] for e in experts], 0.3, 4000
    draws = torch.stack(
        [dare(tuned, base, drop_rate=drop_rate, scale=scale, seed=seed) for seed in range(runs)]
    ).double()
    vectors = torch.tensor(TASK_VECTORS["b"]).double()
    variance = scale**2 * vectors.square().sum(0) * drop_rate / (1 - drop_rate)
    error = 5 * (variance / runs).sqrt() + 1e-5
    assert ((draws.mean(0) - base - scale * vectors.sum(0)).abs() <= error).all()
    torch.testing.assert_close(draws.var(0), variance, rtol=0.2, atol=1e-6)


@given(size=st.integers(0, 50), drop_rate=st.floats(0, 0.99), seed=st.integers(0, 2**62))
def test_drop_and_rescale(size: int, drop_rate: float, seed: int) -> None:
    vector = torch.linspace(1, 2, size)
    thinned = drop_and_rescale(vector, drop_rate, torch.Generator().manual_seed(seed))
    kept = thinned != 0
    torch.testing.assert_close(thinned[kept], vector[kept] / (1 - drop_rate))
    again = drop_and_rescale(vector, drop_rate, torch.Generator().manual_seed(seed))
    assert torch.equal(thinned, again)
