"""Printed bounds by hand, and where they fail; repaired ones on random cases, where they hold."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from mergebook.stability.theory import bounds
from mergebook.stability.theory.bounds import Losses
from mergebook.stability.theory.quadratics import Quadratics, errors
from mergebook.stability.theory.steps import Training, chi_square, momentum, sgd
from tests.book.stability.theory.quadratics import many, random_quadratics


def constants(smoothness: float = 2.0, tasks: int = 3) -> Losses:
    return Losses(smoothness, many(0.5, 1.0, 0.7)[:tasks], many(0.2, 0.4, 0.3)[:tasks])


def uneven(rate: float = 0.01, weights: Tensor | None = None) -> Training:
    shares = many(1, 1, 1) / 3 if weights is None else weights
    vectors = [sgd(3), sgd(8), sgd(5)]
    return Training(rate, vectors, many(4, 8, 2), many(40, 80, 20), shares)


def one_task(steps: int, rate: float, *, examples: int, batch: int) -> Training:
    return Training.alike(1, steps, rate, batch=batch, examples=examples)


# Formulas


def test_terms_of_corollary_2_written_out() -> None:
    """With w = 1/T; A₁ is 1 for SGD, whatever K_t."""
    counts, gap, losses = [3, 8, 5], 1.7, constants()
    mean, total = sum(counts) / 3, len(counts)
    shares = [k / sum(counts) for k in counts]
    first = total * sum(mean / k * w**2 for k, w in zip(counts, shares, strict=True))
    second = sum(w * (k - 1) for k, w in zip(counts, shares, strict=True))
    assert first == pytest.approx(1)
    assert second == pytest.approx(sum(k * k for k in counts) / (total * mean) - 1)
    terms = bounds.printed_gradient_terms(losses, uneven(), gap)
    assert list(terms.values()) == pytest.approx(
        [
            4 * gap / math.sqrt(total * mean),
            4 * 2 * 1 * first / (2 * math.sqrt(total * mean)),
            6 * total * 4 * 1 * second / (2 * mean),
            12 * total * 4 * 0.16 * 8 * 7 / mean,
        ]
    )


def test_free_and_printed_terms_meet_at_the_papers_rate() -> None:
    plan = uneven()
    same = uneven(bounds.printed_rate(plan))
    free = bounds.printed_gradient_terms(constants(), same, 1.0, own_rate=False)
    assert free == pytest.approx(bounds.printed_gradient_terms(constants(), plan, 1.0))


def test_general_vectors_by_hand() -> None:
    vector = momentum(3, 0.5)  # 1.75, 1.5, 1
    plan = Training(0.1, [vector], many(1), many(4), many(1))
    one, two, three = bounds.accumulation(plan)
    squares = 1.75**2 + 1.5**2 + 1
    assert [float(one), float(two), float(three)] == pytest.approx(
        [squares / 4.25**2, squares - 1, 4.25 * 3.25]
    )


def test_gradient_bound_by_hand() -> None:
    losses, plan = constants(tasks=2), uneven()
    plan = Training(0.1, plan.vectors[:2], plan.batch[:2], plan.examples[:2], many(0.5, 0.5))
    shares = [3 / 11, 8 / 11]
    apart = sum((0.5 - w) ** 2 / w**2 for w in shares)
    tasks = shares[0] * 0.04 + shares[1] * 0.16
    found = bounds.printed_gradient_bound({"a": 1.0, "b": 0.5}, losses, plan)
    assert found == pytest.approx((2 * (apart + 1) * 1.5, 2 * apart * tasks))


def test_best_gamma_minimises_and_theorem_3_is_gamma_one() -> None:
    arguments = (0.8, 0.03, 2.0, 0.6)

    def total(gamma: float) -> float:
        return sum(bounds.printed_excess(*arguments, gamma=gamma).values())

    best = bounds.best_gamma(0.8, 0.03)
    found = minimize_scalar(total, bounds=(1e-3, 1e3), method="bounded", options={"xatol": 1e-9})
    assert best == pytest.approx(found.x, rel=1e-5)
    local = 0.03 / 16  # η² Σ w K (σ²/n + 3bζ²/n), and Eq. 24 with G = half the gradient
    assert total(1.0) == pytest.approx(8 * (2 + 1) * local + (2 * 0.6 + 1) * 0.4)
    radical = 4 * math.sqrt(2) * math.sqrt(local * 0.4)
    assert total(best) == pytest.approx(8 * 2 * local + 2 * 0.6 * 0.4 + radical)


def test_s8_theorem_3_depends_on_the_unit_of_the_weights() -> None:
    """θ → uθ: S grows by u², ‖∇f‖² and L shrink by it, C grows. Risks stay; so does the γ* form."""
    printed, best = [], []
    for unit in (1.0, 10.0, 0.1):
        squared = unit**2
        arguments = (0.8 / squared, 0.03 * squared, 2.0 / squared, 0.6 * squared)
        gamma = bounds.best_gamma(*arguments[:2])
        printed.append(sum(bounds.printed_excess(*arguments).values()))
        best.append(sum(bounds.printed_excess(*arguments, gamma=gamma).values()))
    assert best == pytest.approx([best[0]] * 3)
    assert printed[1] > 2 * printed[0]
    assert printed[2] > 10 * printed[0]


def test_the_descent_bound_by_hand() -> None:
    """With weights as they are and per-task noise: a quarter of the paper's terms, times u."""
    losses = Losses(2.0, many(1, 1, 1), many(0.4, 0.4, 0.4))
    plan = uneven(0.01)
    plan = Training(0.01, plan.vectors, many(2, 2, 2), plan.examples, plan.weights)
    parts = bounds.descent_bound((5.0, 0.3, 0.16), losses, plan)
    printed = bounds.printed_gradient_terms(losses, plan, 0.0, own_rate=False)
    length = 0.01 * plan.surrogate[0]
    for name in ("noise", "noise on the way", "tasks pull apart"):
        assert parts[name] == pytest.approx(length / 4 * printed[name])
    assert parts["start"] + parts["descent"] == pytest.approx(5.0 - length / 4 * 0.3)


def test_best_progress_minimises_the_descent_bound() -> None:
    steps = 4000

    def total(progress: float) -> float:
        plan = one_task(steps, progress / steps, examples=1, batch=1)
        losses = Losses(2.0, many(0), many(0))
        return sum(bounds.descent_bound((0.0, 0.3**2, 0.4**2), losses, plan).values())

    found = minimize_scalar(total, bounds=(1e-4, 0.2), method="bounded", options={"xatol": 1e-9})
    assert bounds.best_progress(0.3, 0.4, 2.0) == pytest.approx(found.x, rel=1e-3)
    limit = bounds.REPAIRED_DOMAIN / 2
    assert bounds.best_progress(30, 0.4, 2.0) == bounds.best_progress(1, 0.0, 2.0) == limit


def test_domains() -> None:
    losses = constants(2.0, 1)
    assert bounds.in_domain(losses, one_task(4, 1 / 64, examples=8, batch=4), printed=True)
    assert not bounds.in_domain(losses, one_task(4, 1 / 64, examples=8, batch=5), printed=True)
    assert not bounds.in_domain(losses, one_task(5, 1 / 64, examples=8, batch=4), printed=True)
    assert bounds.in_domain(losses, one_task(9, 1 / 64, examples=8, batch=8))
    assert not bounds.in_domain(losses, one_task(10, 1 / 64, examples=8, batch=1))


# Where the printed bounds fail


def test_s1_the_exact_minimiser_generalises_worse_than_lemma_1_allows() -> None:
    one = torch.ones(1, 1, 1).double()
    problem = Quadratics(one, one[0], one, torch.zeros(1).double())
    exact = errors(problem, one_task(400, 0.2, examples=10, batch=10))
    limit = min(
        bounds.printed_generalisation(exact.gradient, exact.stability, 1.0, 10.0**-k)
        for k in range(9)
    )
    assert exact.generalisation == pytest.approx(0.1)
    assert limit == pytest.approx(0.01, rel=1e-3)
    repaired = bounds.generalisation_bound(exact.stability, exact.second_moment, 1.0)
    assert repaired == pytest.approx(0.01 + math.sqrt(0.02 * 0.9))


def test_s1_lemma_1_fails_away_from_minimisers_too() -> None:
    """Four tasks on a line with examples of variance 1, curvatures and centres of their own.

    Plain SGD, n = 20, b = 4 and K = 60, which does not end at a minimum of the mean loss.
    """
    problem = Quadratics(
        hessians=many(1, 0.8, 0.6, 0.4)[:, None, None],
        centres=many(1, -1, 0.5, -0.5)[:, None],
        covariances=torch.ones(4, 1, 1).double(),
        start=many(0),
    )
    plan = Training.alike(4, 60, 0.05, batch=4, examples=20)
    exact = errors(problem, plan)
    smooth = problem.smoothness
    gamma = bounds.best_gamma(exact.gradient, exact.stability)
    limit = bounds.printed_generalisation(exact.gradient, exact.stability, smooth, gamma)
    repaired = bounds.generalisation_bound(exact.stability, exact.second_moment, smooth)
    assert exact.optimisation > 0.3 * exact.generalisation
    assert 5 * limit < exact.generalisation < repaired


def test_s2_experts_are_less_stable_than_lemma_3_allows() -> None:
    """½ (θ − z)² with z = ±1, so that σ = 1 and ζ = 0, at the largest rate that is allowed."""
    one = torch.ones(1, 1, 1).double()
    problem = Quadratics(one, one[0], one, torch.zeros(1).double())
    losses = Losses(1.0, many(1), many(0))
    for examples, steps in ((2, 200), (10, 1000)):
        plan = one_task(steps, 1 / (8 * steps), examples=examples, batch=1)
        assert bounds.in_domain(losses, plan, printed=True)
        exact = errors(problem, plan).local_stability
        printed = bounds.printed_local_stability(losses, plan)
        assert float(exact / printed) == pytest.approx(11, abs=0.5)
        assert float(exact) <= float(bounds.local_stability(losses, plan, convex=True))
    assert float(printed) == pytest.approx(16 * steps / (8 * steps) ** 2 / examples)


def test_s6_theorem_2_fails_at_the_merge() -> None:
    """½ · 3 θ² from 1, one step: η = √(N/K) = 1 leads to −2, where the gradient is −6."""
    problem = Quadratics(
        3 * torch.ones(1, 1, 1).double(),
        torch.zeros(1, 1).double(),
        torch.zeros(1, 1, 1).double(),
        many(1),
    )
    plan = one_task(1, 1.0, examples=1, batch=1)
    assert bounds.printed_rate(plan) == 1.0
    losses = Losses(3.0, many(0), many(0))
    terms = bounds.printed_gradient_terms(losses, plan, gap=1.5)
    assert errors(problem, plan).gradient == pytest.approx(36)
    assert sum(terms.values()) == pytest.approx(6)


def test_s6_in_the_domain_a_sixteenth_of_it_is_enough() -> None:
    """By smoothness, ‖∇f‖² ≤ 2L (f − min f), and the descent bound."""
    for seed in range(100):
        problem = random_quadratics(seed)
        smooth = problem.smoothness
        plan = Training.alike(3, 1 + seed % 9, 0.124 / smooth / (1 + seed % 9), batch=2, examples=8)
        value, _, apart = problem.opening(plan, plan.weights)
        losses = Losses(smooth, problem.noise, many(1, 1, 1) * math.sqrt(apart))
        gap = value - problem.floor(plan.examples)
        terms = bounds.printed_gradient_terms(losses, plan, gap, own_rate=False)
        assert errors(problem, plan).gradient <= sum(terms.values()) / 16


def test_s7_theorem_3_is_vacuous_in_its_domain() -> None:
    """With C = 1/(2L), the least that smoothness allows, and no noise and no stability term."""
    for steps, smoothness in ((1, 0.1), (7, 3.0), (200, 40.0)):
        losses = Losses(smoothness, many(0, 0), many(0, 0))
        rate = bounds.PAPERS_DOMAIN / (smoothness * steps)
        plan = Training.alike(2, steps, rate, batch=1, examples=10)
        assert bounds.in_domain(losses, plan, printed=True)
        terms = bounds.printed_gradient_terms(losses, plan, gap=2.0, own_rate=False)
        gradient = sum(bounds.printed_gradient_bound(terms, losses, plan))
        parts = bounds.printed_excess(gradient, 0.0, smoothness, 1 / (2 * smoothness), gamma=1e9)
        assert sum(parts.values()) >= 32 * 2.0 * (1 - 1e-6)


def test_s7_holds_with_the_papers_own_rate_and_any_gamma() -> None:
    """η = √(T/K) is in the domain for L ≤ 1/(8 √(T K)) alone; noise and stability only add."""
    for tasks, steps in ((8, 4000), (2, 5), (12, 100)):
        edge = 1 / (8 * math.sqrt(tasks * steps))
        ones = torch.ones(tasks, dtype=torch.float64)
        for smoothness, inside in ((edge * (1 - 1e-9), True), (edge * 1.01, False)):
            plan = Training.alike(tasks, steps, 1.0, batch=2, examples=10)
            plan = replace(plan, learning_rate=bounds.printed_rate(plan))
            losses = Losses(smoothness, 0.1 * ones, 0.2 * ones)
            assert bounds.in_domain(losses, plan, printed=True) == inside
        losses = Losses(edge * (1 - 1e-9), 0.1 * ones, 0.2 * ones)
        terms = bounds.printed_gradient_terms(losses, plan, gap=2.0)
        gradient = sum(bounds.printed_gradient_bound(terms, losses, plan))
        stability = bounds.printed_stability(plan, bounds.printed_local_stability(losses, plan))
        for gamma in (1.0, bounds.best_gamma(gradient, stability)):
            parts = bounds.printed_excess(gradient, stability, edge, 1 / (2 * edge), gamma)
            assert sum(parts.values()) > 32 * 2.0
    assert 1 / (8 * math.sqrt(8 * 4000)) == pytest.approx(7e-4, rel=0.01)


def test_s9_jensen_costs_the_square_of_the_number_of_tasks() -> None:
    plan = Training.alike(4, 10, 0.1, batch=1, examples=10)
    local = many(1, 1, 1, 1)
    ratio = bounds.printed_stability(plan, local) / bounds.merged_stability(plan, local)
    assert ratio == pytest.approx(16)


def test_s12_bernoullis_inequality_is_reversed_and_the_constant_survives() -> None:
    assert (1 + 1 / 16) ** 8 - 1 > 8 / 16
    growths = [((1 + 0.5 / k) ** k - 1) / 0.5 for k in range(1, 1000)]
    assert max(growths) < 1.2975 < 4


# Where the repaired bounds must hold


def test_r6_holds_on_random_quadratics_with_noise() -> None:
    """R4 for equal steps and weights, and R1 on top; alone they have their own tests."""
    for seed in range(100):
        problem = random_quadratics(seed)
        smooth = problem.smoothness
        rate = bounds.REPAIRED_DOMAIN * (1.0, 0.5)[seed % 2] / smooth / 5 * (1 - 1e-9)
        plan = Training.alike(3, 5, rate, batch=2, examples=8)
        losses = Losses(smooth, problem.noise, problem.heterogeneity(problem.start))
        assert bounds.in_domain(losses, plan)
        parts = bounds.descent_bound(problem.opening(plan, plan.weights), losses, plan)
        exact = errors(problem, plan)
        assert exact.second_moment <= 2 * smooth * exact.empirical
        limits = bounds.excess_bound(parts, problem.floor(plan.examples), exact.stability, smooth)
        assert exact.optimisation <= limits["optimisation"]
        assert exact.generalisation <= limits["generalisation"]


def test_r2_is_within_a_small_factor_of_the_truth() -> None:
    """With z = ±1 at equal odds: a redrawn example is another one every second time."""
    one = torch.ones(1, 1, 1).double()
    problem = Quadratics(one, one[0], one, torch.zeros(1).double())
    for steps in (10, 100, 1000):
        plan = one_task(steps, 0.01 / steps, examples=20, batch=4)
        exact = float(errors(problem, plan).local_stability)
        bound = float(bounds.local_stability(Losses(1.0, many(1), many(0)), plan, convex=True))
        assert 2 < bound / exact < 2.5


def test_the_sources_divergence_is_tighter_than_the_printed_one() -> None:
    plan, losses = uneven(), constants()
    _, surrogate = plan.surrogate
    first, second = bounds.printed_gradient_bound({"all": 1.0}, losses, plan)
    assert 2 * (chi_square(surrogate) + 1) < first
    assert 2 * chi_square(surrogate) * float(surrogate @ losses.heterogeneity**2) < second
