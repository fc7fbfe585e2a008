"""Averages and task arithmetic against numbers worked out by hand, SLERP against geometry."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mergelib.rules.arithmetic import average, fednova, model_stock, slerp, task_arithmetic, wsm


def tensors(*rows: list[float]) -> list[Tensor]:
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def test_average_by_hand() -> None:
    experts = tensors([1, 2], [3, 6], [5, -2])
    assert average(experts).tolist() == pytest.approx([3, 2])
    assert average(experts, weights=[0.5, 0.25, 0.25]).tolist() == [2.5, 2]
    assert average(experts, weights=[1, 1, -1]).tolist() == [-1, 10]
    assert average(experts[:1]).tolist() == [1, 2]


def test_task_arithmetic_by_hand() -> None:
    """θ_0 = (1, 1), task vectors (0, 1), (2, 5), (4, -3), their sum (6, 3)."""
    experts, (base,) = tensors([1, 2], [3, 6], [5, -2]), tensors([1, 1])
    assert task_arithmetic(experts, base, scale=0.5).tolist() == [4, 2.5]
    assert task_arithmetic(experts, base).tolist() == pytest.approx([2.8, 1.9])
    assert task_arithmetic(experts[1:2], base, scale=-1).tolist() == [-1, -4], "forgetting"


@given(seed=st.integers(0, 1000), count=st.integers(1, 6), scale=st.floats(-2, 2))
def test_both_against_numpy(seed: int, count: int, scale: float) -> None:
    generator = np.random.default_rng(seed)
    stack, base = generator.normal(size=(count, 4, 3)), generator.normal(size=(4, 3))
    weights = generator.normal(size=count)
    experts = list(torch.from_numpy(stack))
    np.testing.assert_allclose(average(experts), stack.mean(0), atol=1e-12)
    weighted = np.einsum("t,tij->ij", weights, stack)
    np.testing.assert_allclose(average(experts, weights=list(weights)), weighted, atol=1e-12)
    expected = base + scale * (stack - base).sum(0)
    merged = task_arithmetic(experts, torch.from_numpy(base), scale=scale)
    np.testing.assert_allclose(merged, expected, atol=1e-12)


def test_wsm_by_hand() -> None:
    """Four checkpoints: the updates between them count 1 − √(1/4), 1 − √(2/4) and 1 − √(3/4)."""
    run = [torch.tensor([float(place)]) for place in (0, 1, 11, 111)]
    expected = 1 * 0.5 + 10 * (1 - 0.5**0.5) + 100 * (1 - 0.75**0.5)
    assert wsm(run).item() == pytest.approx(expected)
    assert wsm(run, decay="linear").item() == pytest.approx(average(run).item())
    half = (1 + math.cos(math.pi / 2)) / 2
    assert wsm(run[:2], decay="cosine").item() == pytest.approx(half)
    assert wsm(run[3:]).item() == 111


@pytest.mark.parametrize("decay", ["linear", "cosine", "1-sqrt"])
def test_wsm_is_a_run_whose_rate_decays_where_gradients_do_not_depend_on_the_weights(
    decay: Literal["linear", "cosine", "1-sqrt"],
) -> None:
    """Twelve checkpoints of SGD on a linear loss, against SGD at the decayed rate."""
    gradients = torch.randn(11, 5, generator=torch.Generator().manual_seed(0)).double()
    shape: dict[str, Callable[[float], float]] = {
        "linear": lambda x: 1 - x,
        "cosine": lambda x: math.cos(math.pi * x / 2) ** 2,
        "1-sqrt": lambda x: 1 - x**0.5,
    }
    run = [torch.zeros(5).double()]
    decayed = run[0].clone()
    for step, gradient in enumerate(gradients, 1):
        run.append(run[-1] - gradient)
        decayed -= shape[decay](step / 12) * gradient
    torch.testing.assert_close(wsm(run, decay=decay), decayed)


def test_fednova_by_hand() -> None:
    """Task vectors (0, 1), (2, 5) after 1 and 3 steps, 2 in the mean."""
    experts, (base,) = tensors([1, 2], [3, 6]), tensors([1, 1])
    merged = fednova(experts, base, steps=[1, 3])
    assert merged.tolist() == pytest.approx([1 + 2 / 2 * 2 / 3, 1 + 2 / 2 * 8 / 3])
    assert fednova(experts, base, steps=[10, 30]).tolist() == pytest.approx(merged.tolist())
    half = fednova(experts, base, steps=[1, 3], scale=0.5)
    assert half.tolist() == pytest.approx([1 + 1 / 3, 1 + 4 / 3])
    assert fednova(experts, base).tolist() == pytest.approx(average(experts).tolist())


def test_fednova_undoes_the_length_of_training_on_straight_ways() -> None:
    """Experts that walk straight, t times their step: the merge walks the mean of the steps."""
    generator = torch.Generator().manual_seed(0)
    base, ways = torch.randn(5, generator=generator), torch.randn(3, 5, generator=generator)
    taken = [2.0, 7.0, 30.0]
    experts = [base + count * way for count, way in zip(taken, ways, strict=True)]
    torch.testing.assert_close(fednova(experts, base, steps=taken), base + 13 * ways.mean(0))


def test_fednova_refuses_another_number_of_steps() -> None:
    experts, (base,) = tensors([1, 2], [3, 6]), tensors([1, 1])
    with pytest.raises(ValueError, match="steps has 3 entries, expected 2, one per expert"):
        fednova(experts, base, steps=[1, 2, 3])


def on_sphere(generator: np.random.Generator, size: int) -> np.ndarray:
    vector = generator.normal(size=size)
    return vector / np.linalg.norm(vector)


@given(seed=st.integers(0, 1000), size=st.integers(2, 30), t=st.floats(0, 1))
def test_slerp_against_scipy(seed: int, size: int, t: float) -> None:
    generator = np.random.default_rng(seed)
    a, b = on_sphere(generator, size), on_sphere(generator, size)
    if abs(a @ b) > 0.999:
        b = -b[::-1].copy() if abs(a @ b[::-1]) < 0.99 else np.eye(size)[np.abs(a).argmin()]
    merged = slerp([torch.from_numpy(a), torch.from_numpy(b)], t=t)
    slerp_of_scipy = pytest.importorskip("scipy.spatial").geometric_slerp
    np.testing.assert_allclose(merged, slerp_of_scipy(a, b, t), atol=1e-9)
    assert torch.linalg.vector_norm(merged) == pytest.approx(1)


@given(seed=st.integers(0, 1000), t=st.floats(0, 1))
def test_slerp_ends_symmetry_and_homogeneity(seed: int, t: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(4, 5, dtype=torch.float64, generator=generator) for _ in "ab")
    torch.testing.assert_close(slerp([a, b], t=0), a)
    torch.testing.assert_close(slerp([a, b], t=1), b)
    torch.testing.assert_close(slerp([a, b], t=t), slerp([b, a], t=1 - t))
    torch.testing.assert_close(slerp([3 * a, 3 * b], t=t), 3 * slerp([a, b], t=t))


def test_slerp_by_hand() -> None:
    """A third of a right angle; weights count, not only directions."""
    a, b = tensors([1, 0], [0, 1])
    expected = [math.cos(math.pi / 6), math.sin(math.pi / 6)]
    assert slerp([a, b], t=1 / 3).tolist() == pytest.approx(expected)
    assert slerp([2 * a, b], t=0.5).tolist() == pytest.approx([math.sqrt(2), math.sqrt(0.5)])


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_slerp_is_linear_where_angles_tell_nothing(t: float) -> None:
    a = torch.linspace(1, 2, 50)
    near = a + 1e-4 * torch.linspace(-1, 1, 50)
    for other in (a, 2 * a, near, -a, -3 * a, torch.zeros(50)):
        torch.testing.assert_close(slerp([a, other], t=t), torch.lerp(a, other, t))


@pytest.mark.parametrize(("cosine", "linear"), [(0.9996, True), (0.9994, False)])
def test_where_slerp_becomes_linear(cosine: float, linear: bool) -> None:
    a, b = tensors([1, 0], [cosine, math.sqrt(1 - cosine**2)])
    middle = slerp([a, b], t=0.5)
    assert (torch.linalg.vector_norm(middle).item() < 1 - 1e-6) is linear


def test_model_stock_by_hand() -> None:
    """Two task vectors at 60 degrees: t = 2 · 0.5 / 1.5, two thirds of the way to the average."""
    base = torch.tensor([1.0, 1.0])
    experts = [base + torch.tensor([2.0, 0.0]), base + torch.tensor([0.5, 0.5 * 3**0.5])]
    expected = base + 2 / 3 * (sum(experts) / 2 - base)
    torch.testing.assert_close(model_stock(experts, base), expected)


def test_model_stock_against_pairwise_cosines() -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(6, 7, generator=generator)
    shared = torch.randn(6, 7, generator=generator)
    experts = [base + shared + torch.randn(6, 7, generator=generator) for _ in range(4)]
    vectors = [(e - base).flatten() for e in experts]
    pairs = [
        torch.cosine_similarity(vectors[i], vectors[j], dim=0)
        for i in range(4)
        for j in range(4)
        if i != j
    ]
    cosine = sum(pairs) / len(pairs)
    share = 4 * cosine / (1 + 3 * cosine)
    expected = share * sum(experts) / 4 + (1 - share) * base
    torch.testing.assert_close(model_stock(experts, base), expected)


def test_model_stock_where_the_formula_breaks_down() -> None:
    base = torch.ones(3)
    up, down = base + 1, base - 1
    assert torch.equal(model_stock([up, down], base), base), "cos = -1: the formula divides by 0"
    torch.testing.assert_close(model_stock([up], base), up)
    torch.testing.assert_close(model_stock([up, up.clone(), up.clone()], base), up)
    assert torch.equal(model_stock([base.clone(), base.clone()], base), base)
