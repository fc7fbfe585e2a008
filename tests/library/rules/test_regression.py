"""WUDI and ACE by hand, by other formulas, and WUDI by least squares and gradient descent."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mergelib.rules.regression import ace, normal_equations, wudi


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


def ace_by_columns(vectors: list[Tensor], *, epsilon: float, uneven: bool, share: float) -> Tensor:
    """The released code's formulas, one input direction and one task after the other."""
    rows, columns = vectors[0].shape
    norms, one = [float((each**2).sum()) for each in vectors], torch.eye(columns).double()
    products, total = torch.zeros(rows, columns).double(), torch.zeros(columns, columns).double()
    prior, residual, grams = torch.zeros(columns).double(), torch.zeros_like(products), []
    for each in vectors:
        centred = torch.stack([each[:, j] - each[:, j].mean() for j in range(columns)], dim=1)
        gram = torch.einsum("ij,ik->jk", centred, centred)
        own = float((centred**2).sum()) if uneven else 1.0
        grams.append(gram / own)
        products = products + centred @ (gram + epsilon * one) / own
        total = total + (gram + epsilon * one) / own
        prior = prior + gram.mean(0) / own
    if uneven:
        prior = prior / (sum(norms) / len(norms))
    merged: Tensor = products @ torch.linalg.inv(total + prior.expand(columns, columns))
    if not uneven:
        return merged
    for each, gram in zip(vectors, grams, strict=True):
        residual = residual + each @ (gram - total / len(vectors))
    u, s, vh = torch.linalg.svd(merged + residual, full_matrices=False)
    k = int(share * len(s))
    merged += s[:k].mean() * u[:, :k] @ vh[:k]
    return merged


@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (6, 6)])
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("epsilon", [1e-5, 0.04])
def test_ace_follows_the_released_code(
    shape: tuple[int, int], uneven: bool, epsilon: float
) -> None:
    vectors = [(0.2 if uneven else 4) * each for each in tasks(*shape, 3, 4)]
    vectors[0] = vectors[0] * (5 if uneven else 1)
    logs = torch.stack([(each**2).sum().log() for each in vectors])
    assert bool(logs.var() / logs.mean() ** 2 > 0.3) == uneven, "a case of its own"
    expected = ace_by_columns(vectors, epsilon=epsilon, uneven=uneven, share=0.4)
    base = torch.full_like(vectors[0], 2.0)
    result = ace([base + each for each in vectors], base, epsilon=epsilon, rank_ratio=0.4)
    torch.testing.assert_close(result - base, expected, rtol=1e-6, atol=1e-6)


def test_ace_by_hand() -> None:
    """Rows ±(1, 0) and ±(0, 2): S = diag(2, 0) and diag(0, 8), and c = (1, 4).

    (D + 1 cᵀ)⁻¹ = D⁻¹ − D⁻¹ 1 cᵀ D⁻¹ / (1 + cᵀ D⁻¹ 1), with D = diag(2, 8) and cᵀ D⁻¹ 1 = 1.
    """
    vectors = [torch.tensor([[x, y], [-x, -y]]) for x, y in ((1.0, 0.0), (0.0, 2.0))]
    sums = torch.tensor([[2.0, 16.0], [-2.0, -16.0]])
    inverse = torch.diag(torch.tensor([1 / 2, 1 / 8]))
    inverse -= torch.tensor([[1 / 2], [1 / 8]]) @ torch.tensor([[1 / 2, 4 / 8]]) / 2
    result = ace(vectors, torch.zeros(2, 2), epsilon=1e-12, threshold=1e9)
    torch.testing.assert_close(result, sums @ inverse)


def test_ace_of_one_task_and_of_none() -> None:
    """Without a prior, one task's centred matrix would be its own merge."""
    (vector,) = tasks(6, 4, 1, 4)
    centred = vector - vector.mean(0)
    gram = centred.T @ centred
    prior = torch.ones(4, 1, dtype=torch.float64) @ gram.mean(0)[None]
    result = ace([vector], torch.zeros_like(vector), epsilon=1e-9)
    expected = centred @ gram @ torch.linalg.inv(gram + prior)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    base = torch.randn(6, 4)
    assert torch.equal(ace([base.clone(), base + torch.ones(4)], base), base)


def test_ace_leaves_out_experts_without_changes() -> None:
    vectors = tasks(6, 4, 3, 2)
    for threshold in (0.0, 1e9):
        whole = ace([*vectors, torch.zeros(6, 4)], torch.zeros(6, 4), threshold=threshold)
        expected = ace(vectors, torch.zeros_like(vectors[0]), threshold=threshold)
        torch.testing.assert_close(whole.double(), expected, rtol=1e-4, atol=1e-4)


def test_what_ace_counts_as_unequal_depends_on_the_unit() -> None:
    """Norms of e and 1 / e are unequal, ten thousand times longer ones are not."""
    pairs = zip((2.7, 0.4), tasks(6, 4, 2, 4), strict=True)
    vectors = [factor * each / each.norm() for factor, each in pairs]
    base = torch.zeros_like(vectors[0])
    for unit, same in ((1.0, False), (1e4, True)):
        scaled = [unit * each for each in vectors]
        usual, never = ace(scaled, base), ace(scaled, base, threshold=1e9)
        assert torch.equal(usual, never) == same


def test_ace_of_transposed_weights_and_at_a_scale() -> None:
    vectors = tasks(6, 4, 3, 2)
    base = torch.ones_like(vectors[0])
    for threshold in (0.0, 1e9):
        options: dict[str, Any] = {"threshold": threshold, "epsilon": 1e-3}
        result = ace([base + each for each in vectors], base, **options)
        turned = ace([(base + each).T for each in vectors], base.T, transposed=True, **options)
        torch.testing.assert_close(turned, result.T)
        half = ace([base + each for each in vectors], base, scale=0.5, **options)
        torch.testing.assert_close(half, (base + result) / 2)
