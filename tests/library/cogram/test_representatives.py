"""Prototypes by hand, against SciPy's and scikit-learn's, and by brute force."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mergelib.cogram.representatives import KINDS, prototypes

gmean = pytest.importorskip("scipy.stats").gmean
KMeans = pytest.importorskip("sklearn.cluster").KMeans


def batch(size: int = 30, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 2, 4, generator=generator)
    return inputs, torch.arange(size) % classes


def islands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """One class on two islands far apart, of three points and of five."""
    near = torch.tensor([[0.0, 0], [1, 0], [5, 0]])
    far = torch.tensor([[100.0, 0], [101, 0], [102, 0], [103, 0], [124, 0]])
    return torch.cat([near, far]).to(dtype), torch.zeros(8, dtype=torch.long)


def test_by_hand() -> None:
    inputs = torch.tensor([[1.0, -2.0], [4.0, 8.0], [3.0, 3.0], [4.0, -3.0]])
    targets = torch.tensor([7, 7, 2, 7])
    found, wanted = prototypes(inputs, targets, epsilon=1e-12)
    assert wanted.tolist() == [2, 7]
    torch.testing.assert_close(found[0], torch.tensor([3.0, 3.0]))
    torch.testing.assert_close(found[1], torch.tensor([16.0, 48.0]) ** (1 / 3))
    found, _ = prototypes(inputs, targets, kind="arithmetic")
    torch.testing.assert_close(found[1], torch.tensor([3.0, 1.0]))


def test_epsilon_keeps_one_zero_from_deciding() -> None:
    inputs = torch.tensor([[0.0], [1.0]])
    found, _ = prototypes(inputs, torch.zeros(2, dtype=torch.long), epsilon=1e-4)
    assert found.item() == pytest.approx((1e-4 * 1.0001) ** 0.5)


def test_geometric_is_scipys() -> None:
    inputs, targets = batch()
    found, wanted = prototypes(inputs, targets, epsilon=1e-6)
    for value, label in zip(found, wanted, strict=True):
        expected = gmean(inputs[targets == label].double().abs().numpy() + 1e-6, axis=0)
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-6)


def test_products_beyond_the_range_of_floats() -> None:
    inputs = torch.full((2000, 1), 1e30)
    found, _ = prototypes(inputs, torch.zeros(2000, dtype=torch.long))
    assert found.item() == pytest.approx(1e30, rel=1e-5)


numbers = st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=12)


@given(numbers, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_geometric_properties(values: list[float], random: Any) -> None:
    """At most the arithmetic mean; blind to signs, and to the order of examples."""
    inputs = torch.tensor(values, dtype=torch.float64)[:, None]
    targets = torch.zeros(len(values), dtype=torch.long)
    found, _ = prototypes(inputs, targets, epsilon=1e-3)
    arithmetic, _ = prototypes(inputs.abs() + 1e-3, targets, kind="arithmetic")
    assert found.item() <= arithmetic.item() * (1 + 1e-12)
    signs = torch.tensor([random.choice([-1.0, 1.0]) for _ in values], dtype=torch.float64)
    order = random.sample(range(len(values)), len(values))
    again, _ = prototypes((inputs * signs[:, None])[order], targets, epsilon=1e-3)
    torch.testing.assert_close(again, found, rtol=1e-12, atol=0)


def test_medoid_by_brute_force() -> None:
    inputs, targets = batch()
    found, wanted = prototypes(inputs, targets, kind="medoid")
    for value, label in zip(found, wanted, strict=True):
        mine = inputs[targets == label].double()
        sums = [sum((one - other).norm().item() for other in mine) for one in mine]
        assert torch.equal(value, mine[int(np.argmin(sums))].float())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("arithmetic", [2.0, 106.0]), ("kmeans", [2.0, 106.0]), ("medoid", [1.0, 102.0])],
)
def test_two_islands_get_a_representative_each(kind: str, expected: list[float]) -> None:
    found, wanted = prototypes(*islands(), kind=kind, per_class=2)
    assert sorted(found[:, 0].tolist()) == expected
    assert wanted.tolist() == [0, 0]


def test_geometric_means_of_islands() -> None:
    inputs, targets = islands()
    found, _ = prototypes(inputs, targets, per_class=2, epsilon=0.5)
    expected = [gmean(part[:, 0] + 0.5) for part in (inputs[:3].numpy(), inputs[3:].numpy())]
    assert sorted(found[:, 0].tolist()) == pytest.approx(expected)


def test_kmeans_gives_scikit_learns_centres() -> None:
    inputs, targets = batch(60)
    found, wanted = prototypes(inputs, targets, kind="kmeans", per_class=3, seed=4)
    for label in range(3):
        points = inputs[targets == label].flatten(1).double().numpy()
        centres = KMeans(3, n_init=10, random_state=4).fit(points).cluster_centers_
        np.testing.assert_allclose(found[wanted == label].flatten(1), centres, atol=1e-6)


def test_small_classes_give_what_they_have() -> None:
    inputs = torch.tensor([[0.0], [0.0], [0.0], [1.0], [2.0]])
    targets = torch.tensor([0, 0, 0, 1, 1])
    _, wanted = prototypes(inputs, targets, kind="kmeans", per_class=4)
    assert wanted.tolist() == [0, 1, 1]
    _, wanted = prototypes(inputs, targets, kind="batch", per_class=4)
    assert wanted.tolist() == [0, 0, 0, 1, 1]


def test_a_batch_is_examples_of_their_classes_none_twice() -> None:
    inputs, targets = batch()
    found, wanted = prototypes(inputs, targets, kind="batch", per_class=4, seed=1)
    rows = [int((inputs == each).flatten(1).all(1).nonzero()) for each in found]
    assert len(set(rows)) == 12
    assert torch.equal(targets[rows], wanted)
    assert wanted.bincount().tolist() == [4, 4, 4]
    other, _ = prototypes(inputs, targets, kind="batch", per_class=4, seed=2)
    assert not torch.equal(found, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_kept_and_seeds_repeat(kind: str, dtype: torch.dtype) -> None:
    inputs, targets = batch()
    options: Any = {"kind": kind, "per_class": 2, "seed": 3}
    found, wanted = prototypes(inputs.to(dtype), targets.int(), **options)
    assert (found.dtype, wanted.dtype) == (dtype, torch.int32)
    assert found.shape == (6, 2, 4)
    again, _ = prototypes(inputs.to(dtype), targets.int(), **options)
    assert torch.equal(found, again)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"inputs": torch.zeros(0, 4), "targets": torch.zeros(0).long()}, "are no examples"),
        ({"targets": torch.zeros(29).long()}, "30 inputs and 29 targets"),
        ({"inputs": torch.zeros(30, 4, dtype=torch.uint8)}, "inputs are torch.uint8"),
        ({"inputs": torch.full((30, 4), torch.nan)}, "the batch holds NaN or Inf"),
        ({"targets": torch.zeros(30, 2).long()}, r"shape \(30, 2\)"),
        ({"targets": torch.zeros(30)}, "torch.float32 .*expected one integer class"),
        ({"kind": "mean"}, "kind is 'mean', expected 'geometric'"),
        ({"per_class": 0}, "per_class is 0"),
        ({"epsilon": 0.0}, "epsilon is 0"),
    ],
)
def test_bad_input(options: dict[str, Any], match: str) -> None:
    inputs, targets = batch()
    with pytest.raises(ValueError, match=match):
        prototypes(**{"inputs": inputs, "targets": targets, **options})
