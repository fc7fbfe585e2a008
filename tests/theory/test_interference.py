"""I(k) and R(k) against their definitions, computed plainly."""

import pytest
import torch
from torch import Tensor

from mergelib.linalg import low_rank
from mergelib.theory.interference import (
    interference,
    interference_curves,
    reconstruction_error,
    spectrum,
    task_matrices,
)


def matrices(count: int = 3, rows: int = 6, columns: int = 9) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, columns, generator=generator) for _ in range(count)]


def plain(given: list[Tensor], k: int, norm: str) -> float:
    """Eq. 5 as it is written, pair by pair."""
    total = 0.0
    parts = []
    for matrix in given:
        _, values, vectors = torch.linalg.svd(matrix.double(), full_matrices=False)
        size = values[:k].norm() if norm == "kept" else values.norm()
        parts.append(torch.diag(values[:k] / size) @ vectors[:k])
    for i, first in enumerate(parts):
        for j, second in enumerate(parts):
            if i != j:
                total += float(torch.linalg.matrix_norm(first @ second.T))
    return total


@pytest.mark.parametrize("norm", ["kept", "all"])
def test_interference_is_its_definition_at_every_rank(norm) -> None:
    given = matrices()
    found = interference([spectrum(each) for each in given], norm=norm)
    assert found.tolist() == pytest.approx([plain(given, k, norm) for k in range(1, 7)])
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
    experts, base = matrices(2), torch.zeros(6, 9)
    first, second = task_matrices(experts, base, centred=True)
    torch.testing.assert_close(first, -second)
    alike = interference([spectrum(first), spectrum(first)])
    torch.testing.assert_close(interference([spectrum(first), spectrum(second)]), alike)


def test_reconstruction_error_is_what_truncation_leaves() -> None:
    given = matrices()
    found = reconstruction_error([spectrum(each) for each in given])
    expected = [
        sum(float((each - low_rank(each, k)).square().sum()) for each in given) for k in range(7)
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


def test_bad_norm() -> None:
    with pytest.raises(ValueError, match="norm is 'l1'"):
        interference([spectrum(each) for each in matrices()], norm="l1")
