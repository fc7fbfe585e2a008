"""What chapter 10 computes, against definitions and known ends."""

import math

import pytest
import torch

from mergebook.cart.read.centring import (
    centred_trim,
    energy_and_cancellation,
    largest_gap,
    linear_model,
)
from mergebook.suites.types import (
    Zoo,
)
from mergelib import merge
from mergelib.numerics.linalg import low_rank
from mergelib.statedict import is_matrix


def test_energy_and_cancellation_by_their_definitions() -> None:
    generator = torch.Generator().manual_seed(0)
    matrices = list(torch.randn(3, 5, 7, generator=generator, dtype=torch.float64))
    energy, cancel = energy_and_cancellation(matrices)
    centred = [matrix - sum(matrices) / 3 for matrix in matrices]
    for k in range(1, 6):
        cut = [low_rank(matrix, k, exact=True) for matrix in centred]
        kept = [
            float(c.square().sum() / m.square().sum()) for c, m in zip(cut, centred, strict=True)
        ]
        assert float(energy[k - 1]) == pytest.approx(sum(kept) / 3)
        apart = math.sqrt(sum(float(c.square().sum()) for c in cut))
        assert float(cancel[k - 1]) == pytest.approx(
            float(torch.stack(cut).sum(0).norm()) / apart, abs=1e-9
        )
    assert float(cancel[-1]) < 1e-12 < float(cancel[-2])


def test_largest_gap() -> None:
    a = {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor([0.0])}
    b = {"x": torch.tensor([1.0, 2.5]), "y": torch.tensor([-0.2])}
    assert largest_gap(a, b) == 0.5


@pytest.mark.parametrize("angle", [0.0, 0.6, math.pi / 2])
def test_linear_models_have_row_spaces_at_the_angle(angle: float) -> None:
    generator = torch.Generator().manual_seed(0)
    matrices, inputs = linear_model(angle, generator, values=(1.0, 0.5), tasks=3, count=7)
    assert [m.shape for m in matrices] == [(8, 8)] * 3
    assert [x.shape for x in inputs] == [(7, 8)] * 3
    spectra = [torch.linalg.svd(matrix) for matrix in matrices]
    assert spectra[0].S[:2].tolist() == pytest.approx([1.0, 0.5], abs=1e-5)
    overlap = spectra[0].Vh[:2] @ spectra[1].Vh[:2].T
    assert overlap.abs().diagonal().tolist() == pytest.approx([math.cos(angle) ** 2] * 2, abs=1e-5)


def test_centred_trim_at_full_density_is_the_average(tiny_zoo: Zoo) -> None:
    keys = [key for key, value in tiny_zoo.pretrained.items() if is_matrix(key, value)]
    average = merge("average", tiny_zoo.experts)
    assert largest_gap(centred_trim(tiny_zoo.experts, keys, 1.0, 2.0), average) < 1e-5
    trimmed = centred_trim(tiny_zoo.experts, keys, 0.1, 2.0)
    assert largest_gap({key: trimmed[key] for key in keys}, average | trimmed) == 0
    assert {key for key in average if not torch.equal(trimmed[key], average[key])} <= set(keys)
