import math

import numpy as np
import pytest
import torch
from scipy import linalg, stats
from torch import Tensor

from mergebook.sail.distances import (
    frechet_distance,
    gaussian_variation,
    kernel_distance,
    total_variation,
)


def drawn(count: int, size: int = 3, *, seed: int = 0, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator) + shift


def test_frechet_distance_against_the_root_of_a_matrix() -> None:
    mixing = drawn(4, 4, seed=2).double()
    first, second = drawn(50, 4), drawn(70, 4, seed=1, shift=0.5).double() @ mixing
    means = [rows.double().mean(0).numpy() for rows in (first, second)]
    spreads = [np.cov(rows.double().numpy().T) for rows in (first, second)]
    root = linalg.sqrtm(spreads[0] @ spreads[1]).real
    brute = ((means[0] - means[1]) ** 2).sum() + np.trace(spreads[0] + spreads[1] - 2 * root)
    assert frechet_distance(first, second) == pytest.approx(brute, rel=1e-6)
    assert frechet_distance(first, first) == pytest.approx(0, abs=1e-6)
    assert frechet_distance(first, first + 2) == pytest.approx(16, rel=1e-6)


def test_kernel_distance_against_a_double_sum_and_without_bias() -> None:
    first, second = drawn(6), drawn(5, seed=1, shift=1.0)
    kernel = [[float((x @ y / 3 + 1) ** 3) for y in (*first, *second)] for x in (*first, *second)]
    own = sum(kernel[i][j] for i in range(6) for j in range(6) if i != j) / 30
    other = sum(kernel[i][j] for i in range(6, 11) for j in range(6, 11) if i != j) / 20
    across = sum(kernel[i][j] for i in range(6) for j in range(6, 11)) / 30
    assert kernel_distance(first, second) == pytest.approx(own + other - 2 * across, rel=1e-5)
    draws = [kernel_distance(drawn(40, seed=i), drawn(40, seed=1000 + i)) for i in range(200)]
    assert abs(np.mean(draws)) < 3 * np.std(draws) / math.sqrt(200)
    assert min(draws) < 0
    with pytest.raises(ValueError, match="shapes"):
        kernel_distance(first, drawn(4, 2))


def test_total_variation_is_the_largest_difference_of_any_event() -> None:
    counts = torch.tensor([[3.0, 1, 0, 4, 2], [1, 1, 5, 2, 3]])
    shares = counts / counts.sum(1, keepdim=True)
    events = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 5)
    brute = (events @ (shares[0] - shares[1])).abs().max()
    assert float(total_variation(*counts)) == pytest.approx(float(brute), abs=1e-7)


def test_gaussian_variation_against_integration() -> None:
    for delta in (0.0, 0.3, 2.0, 6.0):
        grid = np.linspace(-12, 18, 300_001)
        apart = np.abs(stats.norm.pdf(grid) - stats.norm.pdf(grid, delta))
        brute = np.trapezoid(apart, grid) / 2
        assert float(gaussian_variation(delta)) == pytest.approx(brute, abs=1e-9)


def test_refusals_of_distances() -> None:
    with pytest.raises(ValueError, match="bins"):
        total_variation(torch.ones(3), torch.ones(4))
    for counts in ([0.0, 0.0], [-1.0, 2.0], [math.nan, 1.0]):
        with pytest.raises(ValueError, match="is empty or has a count"):
            total_variation(torch.tensor(counts), torch.ones(2))
