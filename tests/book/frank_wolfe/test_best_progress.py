"""The rule for when to stop, against the numerical minimum of the bound that it comes from."""

import pytest
import torch
from scipy.optimize import minimize_scalar

from mergebook.stability.theory import bounds
from mergebook.stability.theory.bounds import Losses
from mergebook.stability.theory.steps import Training

STEPS = 4000


def minimum(
    gradient: float, apart: float, smooth: float, variance: torch.Tensor, rate: float
) -> float:
    """The best ηK of `descent_bound` at a fixed rate, with batches of 4.

    The bound has rate and variance as a product only, so that a fixed number of steps at a moving
    rate, with a variance that makes up for it, stands for a moving number of steps.
    """

    def total(progress: float) -> float:
        plan = Training.alike(len(variance), STEPS, progress / STEPS, batch=4, examples=8)
        noise = (variance * rate / plan.learning_rate).sqrt()
        opening = (0.0, gradient**2, apart**2)
        return sum(bounds.descent_bound(opening, Losses(smooth, noise, 0 * noise), plan).values())

    limit = bounds.REPAIRED_DOMAIN / smooth
    options = {"xatol": 1e-7 * limit}
    found = minimize_scalar(total, bounds=(1e-9, limit), method="bounded", options=options)
    return float(found.x)


def test_noise_on_random_constants() -> None:
    generator = torch.Generator().manual_seed(0)
    inner = stopped = 0
    for _ in range(40):
        gradient, apart, smooth, level = (
            float(10**power) for power in 2 * torch.rand(4, generator=generator) - 1
        )
        variance = level * torch.rand(3, generator=generator, dtype=torch.float64)
        rule = bounds.best_progress(
            gradient, apart, smooth, noise=0.3 * float(variance.mean()) / 4, tasks=3
        )
        limit = bounds.REPAIRED_DOMAIN / smooth
        found = minimum(gradient, apart, smooth, variance, 0.3)
        assert rule == pytest.approx(found, rel=2e-3, abs=1e-5 * limit)
        inner += 0 < rule < limit
        stopped += rule == 0
    assert inner > 5
    assert stopped > 5


def test_noise_without_other_differences() -> None:
    """κ = 0: ‖∇f‖²/4 less L s/T, over 3 L² s."""
    assert bounds.best_progress(1.0, 0.0, 2.0, noise=0.4, tasks=8) == pytest.approx(0.15 / 4.8)
    assert bounds.best_progress(1.0, 0.0, 2.0, noise=0.4, tasks=3) == 0.0
    assert bounds.best_progress(0.3, 0.4, 2.0) == pytest.approx(0.3 / (6 * 2 * 0.4))
