"""NuSLERP and the mean on the sphere against angles worked out by hand, and against numpy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mergelib import merge
from mergelib.rules.arithmetic import slerp
from mergelib.rules.spheres import karcher, nuslerp

HALF = math.sqrt(0.5)


def tensors(*rows: list[float]) -> list[Tensor]:
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def at(degrees: float, length: float = 1.0) -> list[float]:
    angle = math.radians(degrees)
    return [length * math.cos(angle), length * math.sin(angle)]


def test_nuslerp_by_hand() -> None:
    """A right angle, two thirds of the way: sin 30° of the first and sin 60° of the second."""
    a, b = tensors([3, 0], [0, 4])
    merged = nuslerp([a, b], weights=[1, 2])
    assert merged.tolist() == pytest.approx([1.5, 2 * math.sqrt(3)])
    base = torch.tensor([10.0, 20.0]).double()
    assert torch.allclose(nuslerp([base + a, base + b], base, weights=[1, 2]), base + merged)


def test_nuslerp_by_row() -> None:
    """The first rows are at a right angle, the second ones parallel, and the third ones zero."""
    a = torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    b = torch.tensor([[0.0, 4.0], [0.0, 5.0], [0.0, 0.0]])
    merged = nuslerp([a, b], along="rows")
    torch.testing.assert_close(merged, torch.tensor([[3 * HALF, 4 * HALF], [0, 3.5], [0, 0]]))
    flat = nuslerp([a, b])
    assert not torch.allclose(flat, merged)
    torch.testing.assert_close(nuslerp([a.flatten(), b.flatten()]), flat.flatten())


@given(seed=st.integers(0, 1000), t=st.floats(0, 1))
def test_nuslerp_is_slerp_where_slerp_is_not_linear(seed: int, t: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(4, 5, dtype=torch.float64, generator=generator) for _ in "ab")
    torch.testing.assert_close(nuslerp([a, b], weights=[1 - t, t]), slerp([a, b], t=t))


def test_nuslerp_of_files_and_pieces_is_that_of_whole_tensors() -> None:
    """Rows are merged in pieces of 2**14 entries, by the angle of the whole tensor."""
    generator = torch.Generator().manual_seed(0)
    base, a, b = (torch.randn(300, 100, generator=generator) for _ in range(3))
    merged = merge("nuslerp", [{"w": a}, {"w": b}], pretrained={"w": base}, weights=[1, 3])
    torch.testing.assert_close(merged["w"], nuslerp([a, b], base, weights=[1, 3]))


@pytest.mark.parametrize("count", [1, 3])
def test_nuslerp_has_two(count: int) -> None:
    with pytest.raises(ValueError, match=f"nuslerp merges exactly 2 experts, got {count}"):
        merge("nuslerp", [{"w": torch.rand(2)} for _ in range(count)])


def test_nuslerp_refuses_weights_whose_sum_is_0() -> None:
    with pytest.raises(ValueError, match=r"weights is \[1, -1\], whose sum 0"):
        nuslerp(tensors([1, 0], [0, 1]), weights=[1, -1])


def test_karcher_is_the_mean_angle_in_a_plane() -> None:
    """Angles of 0, 0 and 90 degrees have the mean 30; their chords' mean has atan(1/2)."""
    experts = tensors(at(0, 1), at(0, 2), at(90, 3))
    assert karcher(experts).tolist() == pytest.approx(at(30, 2), abs=1e-5)
    start = [2 * 2 / math.sqrt(5), 2 * 1 / math.sqrt(5)]
    assert karcher(experts, steps=0).tolist() == pytest.approx(start)
    exact = karcher(experts, steps=99, tolerance=1e-12)
    assert exact.tolist() == pytest.approx(at(30, 2), abs=1e-12)
    weighted = karcher(tensors(at(10, 1), at(100, 5)), weights=[1, 3], tolerance=1e-12, steps=99)
    assert weighted.tolist() == pytest.approx(at(10 + 90 * 0.75, 4), abs=1e-9)


def test_karcher_of_task_vectors() -> None:
    base = torch.tensor([5.0, -7.0], dtype=torch.float64)
    vectors = tensors(at(0), at(90))
    merged = karcher([base + vector for vector in vectors], base)
    assert (merged - base).tolist() == pytest.approx([HALF, HALF])


def karcher_numpy(vectors: np.ndarray, weights: np.ndarray, steps: int) -> np.ndarray:
    """By logarithms and exponentials of whole vectors, (T, n)."""
    weights = weights / weights.sum()
    lengths = np.linalg.norm(vectors, axis=1)
    units = vectors / lengths[:, None]
    mean = weights @ units
    mean /= np.linalg.norm(mean)
    for _ in range(steps):
        across = units - (units @ mean)[:, None] * mean
        angles = np.arccos(np.clip(units @ mean, -1, 1))
        logs = across * (angles / np.linalg.norm(across, axis=1))[:, None]
        step = weights @ logs
        size = np.linalg.norm(step)
        mean = np.cos(size) * mean + np.sin(size) * step / size
    merged: np.ndarray = weights @ lengths * mean
    return merged


@given(seed=st.integers(0, 1000), count=st.integers(2, 5), steps=st.integers(0, 4))
def test_karcher_against_numpy(seed: int, count: int, steps: int) -> None:
    generator = np.random.default_rng(seed)
    stack, weights = generator.normal(size=(count, 12)) + 0.5, generator.uniform(0.5, 2, count)
    found = karcher(
        [*torch.from_numpy(stack).view(count, 3, 4)],
        weights=[*weights],
        steps=steps,
        tolerance=1e-12,
    )
    expected = karcher_numpy(stack, weights, steps).reshape(3, 4)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_karcher_where_there_is_no_direction() -> None:
    assert karcher(tensors([1, 0], [-1, 0])).tolist() == [0, 0], "opposite: the weighted sum"
    assert karcher(tensors([2, 0], [0, 0])).tolist() == [1, 0], "zeros count as a length alone"
    assert karcher(tensors([0, 0], [0, 0])).tolist() == [0, 0]
    turned = karcher(tensors([1, 0], [1, 0], [-1, 0])).tolist()
    assert turned == pytest.approx([1, 0], abs=1e-9), "one opposite to the mean does not turn it"


def test_karcher_of_one_expert_is_the_expert() -> None:
    expert = {"w": torch.randn(7, 5, generator=torch.Generator().manual_seed(3))}
    assert torch.equal(merge("karcher", [expert])["w"], expert["w"])


def test_karcher_with_weights_as_they_are_is_longer() -> None:
    experts = tensors(at(0, 1), at(90, 3))
    twice = karcher(experts, weights=[1, 1], normalise=False)
    torch.testing.assert_close(twice, 2 * karcher(experts))
