"""Closed forms on quadratics against simulated training, and the paper's counterexamples."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from mergebook.stability.theory.quadratics import Quadratics, covered, errors
from mergebook.stability.theory.steps import Training, momentum, sgd

DRAWS = 20000


def tasks(count: int = 2, size: int = 2, seed: int = 0, noise: float = 1.0) -> Quadratics:
    """Random positive definite tasks; deviations of examples of any covariance."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    roots, spreads = draw(count, size, size), noise * draw(count, size, size)
    hessians = roots @ roots.mT + 0.05 * torch.eye(size, dtype=torch.float64)
    hessians = hessians / torch.linalg.eigvalsh(hessians).max()
    return Quadratics(hessians, draw(count, size), spreads @ spreads.mT, draw(size))


def training() -> Training:
    return Training(
        learning_rate=0.4,
        vectors=[sgd(4), sgd(7)],
        batch=torch.tensor([2.0, 3.0]),
        examples=torch.tensor([5.0, 6.0]),
        weights=torch.tensor([0.3, 0.7], dtype=torch.float64),
    )


def descend(problem: Quadratics, plan: Training, t: int, data: Tensor, seed: int) -> Tensor:
    """Expert t by real steps on real batches, once per draw of the data, ``(draws, d)``."""
    generator = torch.Generator().manual_seed(seed)
    theta = problem.start.expand(len(data), -1)
    for _ in plan.vectors[t]:
        order = torch.rand(data.shape[:2], generator=generator).argsort(1)[:, : int(plan.batch[t])]
        batch = data.gather(1, order[..., None].expand(-1, -1, data.shape[2])).mean(1)
        theta = theta - plan.learning_rate * (theta - batch) @ problem.hessians[t]
    return theta


def samples(problem: Quadratics, plan: Training) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    roots = torch.linalg.cholesky(problem.covariances)
    return [
        centre
        + torch.randn(DRAWS, int(n), len(centre), generator=generator, dtype=torch.float64)
        @ root.mT
        for centre, n, root in zip(problem.centres, plan.examples, roots, strict=True)
    ]


def squares(matrix: Tensor, vectors: Tensor) -> Tensor:
    return (vectors @ matrix * vectors).sum(-1)


def agrees(values: Tensor, exact: float) -> bool:
    """Within five standard errors of the draws."""
    return abs(float(values.mean()) - exact) < 5 * float(values.std()) / math.sqrt(len(values))


def test_errors_agree_with_simulated_training() -> None:
    problem, plan = tasks(), training()
    exact, data = errors(problem, plan), samples(problem, plan)
    experts = [descend(problem, plan, t, each, t) for t, each in enumerate(data)]
    merged = sum(w * x for w, x in zip(plan.weights, experts, strict=True))
    assert isinstance(merged, Tensor)
    pairs = list(zip(problem.hessians, data, strict=True))
    train = [0.5 * squares(h, merged[:, None] - z).mean(1) for h, z in pairs]
    slopes = [(merged[:, None] - z) @ h for h, z in pairs]
    moments = [slope.square().sum(2).mean(1) for slope in slopes]
    best = sum(z.mean(1) @ h for h, z in pairs) @ torch.linalg.inv(problem.hessians.sum(0))
    least = [0.5 * squares(h, best[:, None] - z).mean(1) for h, z in pairs]
    test = [
        0.5 * squares(h, merged - c) + 0.5 * torch.trace(h @ cov)
        for h, c, cov in zip(problem.hessians, problem.centres, problem.covariances, strict=True)
    ]
    mean = torch.stack(train).mean(0)
    assert agrees(torch.stack(test).mean(0) - mean, exact.generalisation)
    assert agrees(mean - torch.stack(least).mean(0), exact.optimisation)
    assert agrees(mean, exact.empirical)
    assert agrees(torch.stack(least).mean(0), problem.floor(plan.examples))
    assert agrees(torch.stack(moments).mean(0), exact.second_moment)
    gradient = torch.stack([slope.mean(1) for slope in slopes]).mean(0)
    assert agrees(gradient.square().sum(1), exact.gradient)
    assert exact.excess == pytest.approx(exact.generalisation + exact.optimisation)


def test_stability_agrees_with_training_on_a_redrawn_example() -> None:
    """Also of the merge, where only one expert moves: (1/T) Σ w² s, not Jensen's Σ w s."""
    problem, plan = tasks(), training()
    exact, data = errors(problem, plan), samples(problem, plan)
    moved = []
    for t, each in enumerate(data):
        redrawn = each.clone()
        redrawn[:, 0] = each.roll(1, 0)[:, 0]  # another draw's example: independent of this one
        apart = descend(problem, plan, t, each, t) - descend(problem, plan, t, redrawn, t)
        moved.append(apart.square().sum(1))
        assert agrees(moved[-1], float(exact.local_stability[t]))
    merged = sum(w**2 * s for w, s in zip(plan.weights, moved, strict=True))
    assert isinstance(merged, Tensor)
    assert agrees(merged / 2, exact.stability)


def test_opening_agrees_with_drawn_data() -> None:
    problem, plan = tasks(), training()
    objective = torch.tensor([0.25, 0.75]).double()
    value, gradient, apart = problem.opening(plan, objective)
    pairs = list(zip(problem.hessians, samples(problem, plan), strict=True))
    losses = torch.stack([0.5 * squares(h, problem.start - z).mean(1) for h, z in pairs])
    slopes = torch.stack([(problem.start - z.mean(1)) @ h for h, z in pairs])
    mean = torch.einsum("t,tnd->nd", objective, slopes)
    assert agrees(objective @ losses, value)
    assert agrees(mean.square().sum(1), gradient)
    assert agrees(objective @ (slopes - mean).square().sum(2), apart)


def test_covariances_agree_with_the_recursion() -> None:
    problem, plan = tasks(2, 3, seed=4), training()
    reach, batches = covered(problem, plan)
    eye = torch.eye(3, dtype=torch.float64)
    for t, vector in enumerate(plan.vectors):
        hessian = problem.hessians[t]
        keep, noise, left = eye - plan.learning_rate * hessian, torch.zeros_like(eye), eye
        share = (1 - plan.batch[t] / plan.examples[t]) / plan.batch[t]
        fresh = plan.learning_rate**2 * share * hessian @ problem.covariances[t] @ hessian
        for _ in vector:
            left, noise = keep @ left, keep @ noise @ keep.T + fresh
        torch.testing.assert_close(reach[t], eye - left)
        torch.testing.assert_close(batches[t], noise)


def test_flat_directions_do_not_move() -> None:
    hessians = torch.diag_embed(torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double())
    eyes = torch.eye(2, dtype=torch.float64).expand(2, 2, 2)
    problem = Quadratics(hessians, torch.ones(2, 2).double(), eyes, torch.zeros(2).double())
    reach, batches = covered(problem, training())
    assert reach[0].tolist() == pytest.approx(np.diag([1 - 0.6**4, 0]))
    assert float(batches[0, 1, 1]) == 0.0


def test_linear_regression_is_such_a_task() -> None:
    """Fixed inputs X and labels with noise of variance s²: H = XᵀX/n, C = s² H⁻¹, full batches.

    Excess error for new labels at the same inputs, against 10,000 draws of the labels.
    """
    draws, count, rows, size, level = 10_000, 3, 12, 3, 0.7
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs, truth, start = draw(count, rows, size), draw(count, size, 1), draw(size)
    hessians = inputs.mT @ inputs / rows
    problem = Quadratics(hessians, truth[..., 0], level**2 * torch.linalg.inv(hessians), start)
    plan = Training.alike(count, 15, 0.1, batch=rows, examples=rows)
    exact = errors(problem, plan)
    labels = inputs @ truth + level * draw(draws, count, rows, 1)
    experts = start[:, None].expand(draws, count, size, 1)
    for _ in range(15):
        experts = experts - 0.1 / rows * inputs.mT @ (inputs @ experts - labels)
    merged = experts.mean(1, keepdim=True)
    joint = torch.linalg.solve(hessians.sum(0), (inputs.mT @ labels).sum(1) / rows)[:, None]
    train, least = (0.5 * (inputs @ x - labels).square().mean((1, 2, 3)) for x in (merged, joint))
    test = 0.5 * ((inputs @ (merged - truth)).square().mean((1, 2, 3)) + level**2)
    assert agrees(test - train, exact.generalisation)
    assert agrees(train - least, exact.optimisation)
    assert agrees(test - least, exact.excess)
    reach, _ = covered(problem, plan)
    share = reach.diagonal(dim1=1, dim2=2).sum() / count
    assert exact.generalisation == pytest.approx(float(level**2 * share / count / rows))
    done = errors(problem, Training.alike(count, 4000, 0.1, batch=rows, examples=rows))
    assert done.generalisation == pytest.approx(level**2 * size / (count * rows))


def test_mean_estimation_by_hand() -> None:
    """One task, ½ (θ − z)²: the least squares mean moves by (z − z̃)/n, S = 2 Var/n²."""
    one = torch.ones(1, 1, 1).double()
    problem = Quadratics(one, one[0], one, torch.zeros(1).double())
    plan = Training.alike(1, 400, 0.2, batch=10, examples=10)
    exact = errors(problem, plan)
    assert exact.generalisation == pytest.approx(1 / 10)
    assert exact.stability == pytest.approx(2 / 100)
    assert exact.second_moment == pytest.approx(9 / 10)
    assert exact.optimisation == pytest.approx(0, abs=1e-15)
    assert problem.floor(plan.examples) == pytest.approx(0.5 * 9 / 10)


def test_s15_an_inverted_u_without_any_data() -> None:
    problem = Quadratics(
        hessians=torch.tensor([1.0, 0.1], dtype=torch.float64)[:, None, None],
        centres=torch.tensor([[0.0], [4.0]]).double(),
        covariances=torch.zeros(2, 1, 1).double(),
        start=torch.zeros(1).double(),
    )
    values = {}
    for steps in (1, 2, 50):
        exact = errors(problem, Training.alike(2, steps, 1.0, batch=1, examples=1))
        assert exact.generalisation == 0
        expert = 4 * (1 - 0.9**steps)
        best = 0.4 / 1.1
        assert exact.optimisation == pytest.approx(0.275 * (expert / 2 - best) ** 2)
        values[steps] = exact.optimisation
    assert values[2] == pytest.approx(1e-4, abs=1e-4)
    assert values[50] == pytest.approx(0.727, abs=1e-3)


def test_equal_curvatures_have_no_inverted_u() -> None:
    """Without noise the merge then is where descent on the mean loss is."""
    problem = tasks(3, 2, noise=0.0)
    alike = Quadratics(
        problem.hessians[:1].expand(3, 2, 2), problem.centres, problem.covariances, problem.start
    )
    theta, best = problem.start, problem.centres.mean(0)
    for steps in range(1, 12):
        theta = theta - 0.3 * problem.hessians[0] @ (theta - best)
        plan = Training.alike(3, steps, 0.3, batch=1, examples=1)
        value = float(0.5 * squares(problem.hessians[0], theta - best))
        assert errors(alike, plan).optimisation == pytest.approx(value)


def test_only_plain_sgd_is_known() -> None:
    plan = Training(0.1, [momentum(3, 0.9)], *[torch.ones(1).double()] * 3)
    with pytest.raises(ValueError, match="plain SGD"):
        covered(tasks(1), plan)
