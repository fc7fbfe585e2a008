"""I(k) and R(k) against their definitions, computed plainly."""

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mergebook.cart.theory import (
    interference,
    interference_bound,
    interference_curves,
    output_interference,
    reconstruction_error,
    spectrum,
    task_interference,
)
from mergelib.numerics.linalg import low_rank
from mergelib.rules.arithmetic import average
from mergelib.statedict import is_kernel


def matrices(count: int = 3, rows: int = 6, columns: int = 9) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, columns, generator=generator) for _ in range(count)]


def plain(tasks: list[Tensor], k: int, norm: str) -> float:
    """Eq. 5 as it is written, pair by pair."""
    total = 0.0
    parts = []
    for matrix in tasks:
        _, values, vectors = torch.linalg.svd(matrix.double(), full_matrices=False)
        size = values[:k].norm() if norm == "kept" else values.norm()
        parts.append(torch.diag(values[:k] / size) @ vectors[:k])
    for i, first in enumerate(parts):
        for j, second in enumerate(parts):
            if i != j:
                total += float(torch.linalg.matrix_norm(first @ second.T))
    return total


@pytest.mark.parametrize("norm", ["kept", "all"])
def test_interference_is_its_definition_at_every_rank(norm: Literal["kept", "all"]) -> None:
    tasks = matrices()
    found = interference([spectrum(task) for task in tasks], norm=norm)
    assert found.tolist() == pytest.approx([plain(tasks, k, norm) for k in range(1, 7)])
    assert found.max() <= 6, "each of the six ordered pairs adds one at most"
    if norm == "all":
        assert (found.diff() >= 0).all()


def test_orthogonal_row_spaces_do_not_interfere() -> None:
    eye = torch.eye(6)
    spectra = [spectrum(eye[:2] * 3), spectrum(eye[2:4]), spectrum(eye[4:])]
    assert interference(spectra).tolist() == [0, 0]


def test_the_same_direction_interferes_fully() -> None:
    line = torch.outer(torch.randn(4), torch.randn(5))
    assert interference([spectrum(line), spectrum(-2 * line)])[0].item() == pytest.approx(2)


def test_two_centred_experts_are_opposite() -> None:
    """So they share all directions, and centring makes interference no smaller than it can be."""
    experts = matrices(2)
    first, second = (expert - average(experts) for expert in experts)
    torch.testing.assert_close(first, -second)
    alike = interference([spectrum(first), spectrum(first)])
    torch.testing.assert_close(interference([spectrum(first), spectrum(second)]), alike)


def test_reconstruction_error_is_what_truncation_leaves() -> None:
    tasks = matrices()
    found = reconstruction_error([spectrum(each) for each in tasks])
    expected = [
        sum(float((each - low_rank(each, k)).square().sum()) for each in tasks) for k in range(7)
    ]
    assert found.tolist() == pytest.approx(expected, abs=1e-4)


def test_curves() -> None:
    generator = torch.Generator().manual_seed(1)
    base = {"w": torch.randn(6, 9, generator=generator), "bias": torch.zeros(4)}
    experts = {
        name: {"w": base["w"] + torch.randn(6, 9, generator=generator), "bias": torch.ones(4)}
        for name in "abc"
    }
    table = interference_curves(experts, base, [0.0, 0.3, 1.0])
    assert set(table["layer"]) == {"w"}
    assert table["k"].tolist() == [0, 2, 6] * 2
    assert table.query("k == 0")["interference"].tolist() == [0, 0]
    assert table.query("k == 0")["reconstruction"].tolist() == [1, 1]
    assert table.query("k == 6")["reconstruction"].tolist() == [0, 0]
    uncentred = [expert["w"] - base["w"] for expert in experts.values()]
    row = table.query("k == 2 and not centred").iloc[0]
    assert row["interference"] == pytest.approx(plain(uncentred, 2, "kept"), rel=1e-5)
    assert row["interference_all"] == pytest.approx(plain(uncentred, 2, "all"), rel=1e-5)


def test_a_kernel_has_the_curves_of_its_folded_matrix() -> None:
    base = {"conv.weight": torch.randn(6, 3, 2, 2)}
    experts = {name: {"conv.weight": torch.randn(6, 3, 2, 2)} for name in "ab"}
    folded, *others = (
        {"conv.weight": s["conv.weight"].flatten(1)} for s in (base, *experts.values())
    )
    expected = interference_curves(dict(zip("ab", others, strict=True)), folded, [0.2, 0.7])
    assert interference_curves(experts, base, [0.2, 0.7]).empty
    found = interference_curves(experts, base, [0.2, 0.7], is_matrix=is_kernel)
    assert found.equals(expected)


def test_bound_by_hand() -> None:
    """Two rank-one tasks that read the same direction, one input each."""
    left, right = torch.eye(4)[0], torch.eye(5)[1]
    tasks = [2 * torch.outer(left, right), 3 * torch.outer(torch.eye(4)[2], right)]
    inputs = [right[None], -right[None] + 0.5 * torch.eye(5)[3]]
    assert task_interference(tasks, inputs) == pytest.approx(3**2 + 2**2)
    bound = interference_bound(tasks, inputs)
    assert bound.interference == pytest.approx(2)
    assert bound.k3 == pytest.approx(1 * 3**3 * 1 / 2**2)
    assert (bound.k4, bound.noise) == pytest.approx((3, 0.5))
    assert bound.value == pytest.approx((27 / 4 * 2 + 2 * 3 * 0.5) ** 2)


def test_tasks_that_read_nothing_of_each_other_still_interfere_through_noise() -> None:
    """Theorem 1 as the main text prints it, L ≤ O(I²), would make this L zero."""
    eye = torch.eye(6)
    tasks, inputs = [eye[:2], eye[2:4]], [eye[:1] + 0.1 * eye[2], eye[2:3] + 0.1 * eye[0]]
    bound = interference_bound(tasks, inputs)
    assert bound.interference == 0
    assert task_interference(tasks, inputs) == pytest.approx(2 * 0.1**2)
    assert bound.value >= task_interference(tasks, inputs)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 5), st.floats(0, 1))
def test_bound_holds(seed: int, count: int, rank: int, noise: float) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    tasks = [draw(5, rank) @ draw(rank, 8) for _ in range(count)]
    inputs = [draw(7, 5) @ task + noise * draw(7, 8) for task in tasks]
    assert task_interference(tasks, inputs) <= interference_bound(tasks, inputs).value


def test_interference_of_natural_inputs_in_closed_form() -> None:
    """Inputs D_tᵀ z with z standard normal: the mean of L is a sum of Frobenius norms."""
    tasks = matrices(3)
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(20000, 6, generator=generator) @ task for task in tasks]
    total = torch.stack(tasks).sum(0)
    expected = sum(float(((total - own) @ own.T).square().sum()) for own in tasks)
    assert task_interference(tasks, inputs) / 20000 == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("centred", [False, True])
def test_output_interference_is_its_definition(centred: bool) -> None:
    tuned, origin = matrices(3), torch.ones(6, 9)
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(11, 9, generator=generator) for _ in tuned]
    experts = {str(t): {"a.weight": each} for t, each in enumerate(tuned)}
    seen = {str(t): {"a.weight": each} for t, each in enumerate(inputs)}
    table = output_interference(experts, {"a.weight": origin}, seen, [0.5, 1.0])
    for ratio, k in ((0.5, 3), (1.0, 6)):
        row = table.query(f"centred == {centred} and rank_ratio == {ratio}").iloc[0]
        start = average(tuned) if centred else origin
        cut = [low_rank(each - start, k) for each in tuned]
        own = sum(float((x @ d.T).square().sum()) for x, d in zip(inputs, cut, strict=True))
        assert row["joint"] == pytest.approx(task_interference(cut, inputs) / own, rel=1e-4)
        pairs = [
            (x @ cut[s].T).square().sum() for t, x in enumerate(inputs) for s in {0, 1, 2} - {t}
        ]
        assert row["pairwise"] == pytest.approx(float(sum(pairs)) / own, rel=1e-4)
        if centred and k == 6:
            assert row["joint"] == pytest.approx(1), "the others add exactly what cancels it"
