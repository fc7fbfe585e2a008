import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mergelib.sail import divergences
from mergelib.sail.divergences import (
    median_distance,
    mmd_table,
    permutation_p,
)


def drawn(count: int, size: int = 3, *, seed: int = 0, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator) + shift


def squared_mmd(first: Tensor, second: Tensor, **options: Any) -> float:
    return float(mmd_table([first, second], **options)[0, 1])


def by_loops(first: Tensor, second: Tensor, width: float, *, unbiased: bool) -> float:
    def mean(own: Tensor, other: Tensor) -> float:
        values = [
            math.exp(-float((x - y).square().sum()) / (2 * width**2))
            for i, x in enumerate(own)
            for j, y in enumerate(other)
            if not (unbiased and own is other and i == j)
        ]
        return sum(values) / len(values)

    first, second = first.double(), second.double()
    return mean(first, first) + mean(second, second) - 2 * mean(first, second)


@pytest.mark.parametrize("unbiased", [False, True])
def test_mmd_against_a_double_loop(unbiased: bool) -> None:
    first, second = drawn(12), drawn(9, seed=1, shift=0.5)
    width = median_distance([first, second])
    assert width == pytest.approx(float(torch.pdist(torch.cat([first, second]).double()).median()))
    value = squared_mmd(first, second, unbiased=unbiased)
    assert value == pytest.approx(by_loops(first, second, width, unbiased=unbiased), abs=1e-12)
    far = squared_mmd(first + 1e4, second + 1e4, bandwidth=width, unbiased=unbiased)
    assert far == pytest.approx(value, abs=1e-4)  # float32 features


def test_blocks_do_not_change_mmd(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = drawn(90), drawn(70, seed=1)
    values = []
    for size in (1000, 17, 1):
        monkeypatch.setattr(divergences, "BLOCK", size)
        values.append(squared_mmd(first, second))
    assert values == pytest.approx([values[0]] * 3, abs=1e-12)


def test_a_table_is_of_pairs_and_euclidean() -> None:
    samples = [drawn(30 + 5 * i, seed=i, shift=0.2 * i) for i in range(5)]
    table = mmd_table(samples, bandwidth=1.5)
    assert float(table[1, 3]) == squared_mmd(samples[1], samples[3], bandwidth=1.5)
    centred = torch.eye(5).double() - 0.2
    assert float(torch.linalg.eigvalsh(-centred @ table @ centred).min()) > -1e-12


def test_the_unbiased_estimate_is_zero_on_average_and_often_negative() -> None:
    values = [
        squared_mmd(drawn(20, seed=2 * i), drawn(20, seed=2 * i + 1), unbiased=True)
        for i in range(100)
    ]
    assert abs(np.mean(values)) < 3 * np.std(values) / 10
    assert min(values) < 0


def test_p_values_are_uniform_without_a_difference_and_small_with_one() -> None:
    null = [
        permutation_p(drawn(15, seed=2 * i), drawn(15, seed=2 * i + 1), seed=i) for i in range(200)
    ]
    stats = pytest.importorskip("scipy.stats")
    assert stats.kstest(null, "uniform").pvalue > 0.01
    assert permutation_p(drawn(40), drawn(40, seed=1, shift=1.0)) == 1 / 200


def test_refusals() -> None:
    with pytest.raises(ValueError, match="coincide"):
        squared_mmd(torch.zeros(5, 2), torch.zeros(5, 2))
    with pytest.raises(ValueError, match="shapes"):
        squared_mmd(drawn(5), drawn(5, 4))
    with pytest.raises(ValueError, match="NaN"):
        squared_mmd(drawn(5), drawn(5) * math.nan)
    with pytest.raises(ValueError, match="bandwidth"):
        squared_mmd(drawn(5), drawn(5), bandwidth=0.0)
    with pytest.raises(ValueError, match="permutations"):
        permutation_p(drawn(5), drawn(5), permutations=0)
