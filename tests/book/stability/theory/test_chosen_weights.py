"""Weights where a bound is least: closed forms, the bound on quadratics, random points."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mergebook.stability.read.quadratics import constants, pulled_tasks
from mergebook.stability.theory import bounds
from mergebook.stability.theory.bounds import Beginning, Losses, least_weights
from mergebook.stability.theory.estimators import inner_products, squared_length
from mergebook.stability.theory.quadratics import Quadratics
from mergebook.stability.theory.steps import Training
from tests.book.stability.theory.quadratics import many
from tests.book.stability.theory.test_weighted import opening


def beginning(tasks: Quadratics, plan: Training) -> Beginning:
    """Of tasks whose gradients at θ_0 are known: a mean of n examples has a covariance C/n."""
    slopes = -(tasks.hessians @ (tasks.centres - tasks.start)[..., None])[..., 0]
    spread = torch.einsum("tij,tjk,tik->t", tasks.hessians, tasks.covariances, tasks.hessians)
    known = constants(tasks)
    widths = tasks.covariances.diagonal(dim1=1, dim2=2).sum(1).sqrt()
    largest = Losses(known.smoothness, 2 * known.smoothness * widths, known.heterogeneity)
    value = float(tasks.opening(plan, plan.weights)[0])
    gram = slopes @ slopes.T + torch.diag(spread / plan.examples)
    return Beginning(value, gram, known, largest)


def test_least_weights_of_a_sum_of_squares_are_in_proportion_to_the_inverse() -> None:
    scales = many(1, 2, 5, 0.5)
    found = least_weights(lambda w: float(w.square() @ scales), 4)
    torch.testing.assert_close(found, (1 / scales) / (1 / scales).sum(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_least_weights_do_not_depend_on_the_unit_or_on_an_offset(unit: float) -> None:
    found = least_weights(lambda w: unit * (float(w.square() @ many(1, 2, 5)) + 1e3), 3)
    torch.testing.assert_close(found, many(10, 5, 2) / 17, atol=1e-3, rtol=0)


def test_least_weights_find_the_lower_of_two_minima() -> None:
    found = least_weights(lambda w: -float(w.square() @ many(1, 1.1, 1)), 3)
    torch.testing.assert_close(found, many(0, 1, 0), atol=1e-6, rtol=0)


def test_least_weights_may_leave_a_task_out() -> None:
    found = least_weights(lambda w: float(w @ many(1, 3, 2)), 3)
    torch.testing.assert_close(found, many(1, 0, 0), atol=1e-6, rtol=0)


def test_inner_products_have_no_bias() -> None:
    """Gradients on parts are the true ones and noise: the mean of many estimates is the truth."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(3, 1, 5, generator=generator, dtype=torch.float64)
    tables, unclipped = [], []
    for _ in range(2000):
        noise = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
        flat = (truth + 0.3 * noise).flatten(0, 1)
        products = (flat @ flat.T).view(3, 4, 3, 4)
        table = inner_products(products)
        assert float(torch.linalg.eigvalsh(table).min()) > -1e-9
        tables.append(table)
        combination = many(0.2, 0.5, 0.3)
        exact = squared_length(products, combination).value
        unclipped.append(exact - float(combination @ table @ combination))
    apart = torch.stack(tables) - truth[:, 0] @ truth[:, 0].T
    error = apart.std(0) / 2000**0.5
    assert (apart.mean(0).abs() < 5 * error + 0.05).all(), "but for what moving to a Gram's costs"
    assert torch.tensor(unclipped).abs().median() < 1e-9, "mostly it is one already"


@pytest.mark.parametrize("steps", [3, 40])
def test_the_bound_is_that_of_quadratics(steps: int) -> None:
    tasks = pulled_tasks(seed=1)
    plan = Training.alike(4, steps, 0.05, batch=8, examples=50)
    known = beginning(tasks, plan)
    for weights in (plan.weights, many(0.1, 0.2, 0.3, 0.4), many(0.7, 0.3, 0, 0)):
        other = replace(plan, weights=weights)
        parts = bounds.weighted_descent_bound(opening(tasks, other), known.losses, other)
        theirs = bounds.convex_excess_bound(parts, 0.0, known.largest, other)
        assert known.excess(other) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(("steps", "even"), [(3, True), (200, False)])
def test_best_weights_beat_random_ones(steps: int, even: bool) -> None:
    """Inside the bound's domain they are equal ones, far outside they are not."""
    tasks = pulled_tasks(seed=2)
    plan = Training.alike(4, steps, 0.05, batch=8, examples=50)
    known = beginning(tasks, plan)

    def value(weights: Tensor) -> float:
        return sum(known.excess(replace(plan, weights=weights)).values())

    best = known.best(plan)
    generator = torch.Generator().manual_seed(3)
    others = torch.rand(200, 4, generator=generator, dtype=torch.float64).log().neg()
    assert value(best) <= min(value(row / row.sum()) for row in others) + 1e-9
    assert (float((best - 1 / 4).abs().max()) < 0.02) == even
