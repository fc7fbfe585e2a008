"""WUDI against cases worked by hand, least squares on stacked rows, and plain gradient descent."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mergelib.rules.regression import normal_equations, wudi


def tasks(rows: int, columns: int, count: int, rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rows + columns + count + rank)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return [draw(rows, rank) @ draw(rank, columns) for _ in range(count)]


def merged(vectors: list[Tensor], **options: Any) -> Tensor:
    return wudi(vectors, torch.zeros_like(vectors[0]), **options)


def loss(delta: Tensor, vectors: list[Tensor]) -> Tensor:
    """The paper's, as its released code computes it."""
    parts = [(((delta - each) @ each.T) ** 2).sum() / (each**2).sum() for each in vectors]
    return torch.stack(parts).sum()


def test_by_hand() -> None:
    """C_1 = diag(1/2, 1/2) and C_2 = diag(1, 0): means where both act, τ_1 where it acts alone."""
    vectors = [torch.diag(torch.tensor(values)) for values in ([1.0, 1.0], [3.0, 0.0])]
    expected = torch.diag(torch.tensor([(0.5 * 1 + 1 * 3) / 1.5, 1.0]))
    torch.testing.assert_close(merged(vectors), expected)


def test_a_conflict_by_hand() -> None:
    """Rows (1, 0) and (−1, e) ask for x = 1 and −x + e y = 1 + e²: small e makes a long y."""
    vectors = [torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[-1.0, 0.1], [0.0, 0.0]])]
    expected = torch.tensor([[1.0, (2 + 0.1**2) / 0.1], [0.0, 0.0]])
    torch.testing.assert_close(merged(vectors), expected, rtol=1e-5, atol=1e-5)
    assert merged(vectors, ridge=0.1).norm() < merged(vectors, ridge=0.01).norm() < 15


@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (6, 6)])
@pytest.mark.parametrize(("count", "rank"), [(1, 2), (2, 1), (3, 2), (4, 5)])
def test_is_the_shortest_least_squares_solution(
    shape: tuple[int, int], count: int, rank: int
) -> None:
    vectors = tasks(*shape, count, rank)
    units = [each / each.norm() for each in vectors]
    rows = torch.cat(units)
    targets = torch.cat([u @ v.T for u, v in zip(units, vectors, strict=True)])
    expected = torch.linalg.lstsq(rows, targets, rcond=1e-10, driver="gelsd").solution.T
    torch.testing.assert_close(merged(vectors), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("begin", ["sum", "zero"])
def test_gradient_descent_ends_there(begin: str) -> None:
    """Also where three tasks of rank one leave two directions of the inputs free."""
    vectors = tasks(4, 5, 3, 1)
    delta = sum(vectors) if begin == "sum" else torch.zeros(4, 5, dtype=torch.float64)
    assert isinstance(delta, Tensor)
    products, total = normal_equations(vectors, torch.zeros_like(delta))
    assert torch.linalg.matrix_rank(total) == 3
    delta.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(delta, vectors), delta)
    torch.testing.assert_close(gradient, 2 * (delta @ total - products))
    step = 1 / torch.linalg.matrix_norm(total, 2)
    point = delta.detach()
    for _ in range(20_000):
        point = point - step * (point @ total - products)
    torch.testing.assert_close(merged(vectors), point, rtol=1e-6, atol=1e-6)


def test_ridge_is_the_minimiser_with_a_penalty() -> None:
    vectors = tasks(6, 5, 3, 2)
    point = merged(vectors, ridge=0.3).requires_grad_()
    penalty = 0.3 * 3 / 5  # every C_t has trace 1
    objective = loss(point, vectors) + penalty * (point**2).sum()
    (gradient,) = torch.autograd.grad(objective, point)
    assert gradient.abs().max() < 1e-9


def test_tasks_that_do_not_meet_add_up() -> None:
    basis = torch.linalg.qr(torch.randn(9, 9, generator=torch.Generator().manual_seed(0)))[0]
    vectors = [k * basis[:, k : k + 2] @ basis[k : k + 2] for k in (1, 3, 5)]
    expected = torch.stack(vectors).sum(0)
    torch.testing.assert_close(merged([*vectors, torch.zeros(9, 9)]), expected, atol=1e-5, rtol=0)


def test_weights_that_are_stored_transposed() -> None:
    vectors = tasks(6, 4, 3, 2)
    turned = merged([each.T for each in vectors], transposed=True)
    torch.testing.assert_close(turned, merged(vectors).T)
    assert not torch.allclose(merged([each.T for each in vectors]), turned, atol=0.1)


def test_scale_and_base() -> None:
    vectors = tasks(6, 4, 3, 2)
    base = torch.ones_like(vectors[0])
    at_half = wudi([base + each for each in vectors], base, scale=0.5)
    torch.testing.assert_close(at_half, base + 0.5 * merged(vectors))
