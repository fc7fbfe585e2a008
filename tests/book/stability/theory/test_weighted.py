"""The descent bound for any weights and steps, and quadratics with a rate of each expert's own."""

import math

import pytest
import torch

from mergebook.stability.theory import bounds
from mergebook.stability.theory.bounds import Losses
from mergebook.stability.theory.quadratics import Quadratics, covered
from mergebook.stability.theory.steps import Training, sgd
from tests.book.stability.theory.quadratics import many, random_quadratics, weighted_descent_bound

Opening = tuple[float, float, float, float]


def opening(problem: Quadratics, plan: Training) -> Opening:
    count = len(plan.weights)
    uniform = torch.full((count,), 1 / count, dtype=torch.float64)
    _, surrogate = plan.surrogate
    value, gradient, _ = problem.opening(plan, uniform)
    _, squared, apart = problem.opening(plan, surrogate)
    return value, gradient, problem.opening(plan, uniform - surrogate)[1], squared + apart


def mixed(seed: int, smoothness: float, reach: float) -> Training:
    """Three experts with steps, rates, batches and weights of their own."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 9, (3,), generator=generator).tolist()
    paces = (0.2 + torch.rand(3, generator=generator)).tolist()
    vectors = [pace * sgd(k) for pace, k in zip(paces, steps, strict=True)]
    rate = reach / smoothness / max(float(vector.sum()) for vector in vectors)
    batch = torch.randint(1, 5, (3,), generator=generator).double()
    shares = torch.rand(3, generator=generator, dtype=torch.float64)
    return Training(rate * (1 - 1e-9), vectors, batch, 4 * batch, shares / shares.sum())


def test_the_weighted_bound_by_hand() -> None:
    """Steps 2 and 1, η = 0.1, L = 2, w = (½, ½): τ = 1.5, ω = (⅔, ⅓), max A₃ = 2, A = (1, 0)."""
    plan = Training(0.1, [sgd(2), sgd(1)], many(4, 4), many(8, 8), many(0.5, 0.5))
    parts = weighted_descent_bound((5.0, 3.0, 0.25, 4.0), Losses(2.0, many(1, 1), many(0, 0)), plan)
    left = 0.01 * 4 * (3 * (2 / 3) / 4 + 6 * 4 * 2)
    noise = 0.15**2 * 2 * (4 / 9 / 4 / 2 + 1 / 9 / 4)
    drift = 0.15 / 2 * ((0.5 + math.sqrt(left)) ** 2 - 0.25)
    assert list(parts.values()) == pytest.approx([5, -0.225, noise, 0.15 / 2 * 0.25, drift])


def test_the_weighted_bound_is_never_larger_where_both_apply() -> None:
    for seed in range(100):
        problem = random_quadratics(seed)
        reach = bounds.REPAIRED_DOMAIN * (1 - 1e-9) / problem.smoothness
        plan = Training.alike(3, 1 + seed % 6, reach / (1 + seed % 6), batch=2, examples=8)
        losses = Losses(problem.smoothness, problem.noise, many(0, 0, 0))
        both = (
            weighted_descent_bound(opening(problem, plan), losses, plan),
            bounds.descent_bound(problem.opening(plan, plan.weights), losses, plan),
        )
        assert sum(both[0].values()) <= sum(both[1].values()) + 1e-12


def test_experts_with_rates_of_their_own_are_those_of_separate_trainings() -> None:
    problem, rates, counts = random_quadratics(3), (0.02, 0.1, 0.05), (4, 9, 2)
    vectors = [rate / 0.05 * sgd(k) for rate, k in zip(rates, counts, strict=True)]
    plan = Training(0.05, vectors, many(2, 2, 2), many(8, 8, 8), many(0.2, 0.3, 0.5))
    together = covered(problem, plan)
    for t, (rate, count) in enumerate(zip(rates, counts, strict=True)):
        apart = covered(problem, Training.alike(3, count, rate, batch=2, examples=8))
        for ours, alone in zip(together, apart, strict=True):
            torch.testing.assert_close(ours[t], alone[t])


def test_local_stability_takes_each_experts_largest_rate() -> None:
    vectors = [many(1, 3, 2), 0.5 * sgd(2)]
    plan = Training(0.1, vectors, many(2, 2), many(8, 8), many(0.5, 0.5))
    losses = Losses(1.0, many(1, 2), many(0, 0))
    local = bounds.local_stability(losses, plan, convex=True)
    for t, (rate, count) in enumerate(((0.3, 3), (0.05, 2))):
        alone = Training.alike(2, count, rate, batch=2, examples=8)
        assert float(local[t]) == pytest.approx(
            float(bounds.local_stability(losses, alone, convex=True)[t])
        )
