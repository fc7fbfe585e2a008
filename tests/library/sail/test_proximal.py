import math

import numpy as np
import pytest
import torch
from torch import Tensor

from mergelib.sail import proximal
from mergelib.sail.proximal import (
    oracle_gamma,
    proximal_weights,
    weights_from_samples,
)

D = torch.float64


def distances(points: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances of the rows to the origin and to each other, not by the package."""
    return points.square().sum(1), torch.cdist(points, points).square()


def configuration(seed: int, *, most: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    count = 2 + seed % (most - 1)
    rows = torch.randn(count, 10, generator=generator, dtype=D)
    return rows + torch.randn(10, generator=generator, dtype=D)


@pytest.mark.parametrize("constraint", ["simplex", "affine"])
def test_two_hundred_configurations_against_least_squares(constraint: str) -> None:
    """One heavy row of ones: the sum of weights."""
    nnls = pytest.importorskip("scipy.optimize").nnls
    for seed in range(200):
        points = configuration(seed)
        system = np.vstack([points.T.numpy(), 1e5 * np.ones(len(points))])
        goal = np.append(np.zeros(10), 1e5)
        solve = nnls if constraint == "simplex" else np.linalg.lstsq
        expected = solve(system, goal)[0]
        found = proximal_weights(*distances(points), constraint)  # type: ignore[arg-type]
        assert found.weights.numpy() == pytest.approx(expected, abs=1e-6)
        assert found.squared_distance == pytest.approx(
            float((found.weights @ points).square().sum()), abs=1e-10
        )
        assert not found.notes


def test_two_hundred_configurations_against_sequential_programming() -> None:
    minimize = pytest.importorskip("scipy.optimize").minimize
    for seed in range(200):
        points = configuration(seed).numpy()
        count = len(points)
        best = minimize(
            lambda g, p=points: ((g @ p) ** 2).sum(),
            np.full(count, 1 / count),
            jac=lambda g, p=points: 2 * p @ (g @ p),
            bounds=[(0, None)] * count,
            constraints={"type": "eq", "fun": lambda g: g.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        found = proximal_weights(*distances(torch.from_numpy(points)))
        assert found.squared_distance <= best.fun + 1e-9
        assert found.squared_distance == pytest.approx(best.fun, abs=1e-6)


def test_two_sources_in_closed_form() -> None:
    for seed in range(0, 70, 7):
        points = configuration(seed)
        own, between = distances(points)
        first = float((own[1] + between[0, 1] - own[0]) / (2 * between[0, 1]))
        assert float(proximal_weights(own, between, "affine").weights[0]) == pytest.approx(first)
        clipped = min(max(first, 0.0), 1.0)
        assert float(proximal_weights(own, between).weights[0]) == pytest.approx(clipped)


def test_more_sources_than_are_enumerated() -> None:
    nnls = pytest.importorskip("scipy.optimize").nnls
    generator = torch.Generator().manual_seed(0)
    for count, size in ((13, 30), (20, 5)):
        points = torch.randn(count, size, generator=generator, dtype=D) + 0.3
        system = np.vstack([points.T.numpy(), 1e5 * np.ones(count)])
        expected = nnls(system, np.append(np.zeros(size), 1e5))[1]
        found = proximal_weights(*distances(points))
        assert math.sqrt(max(found.squared_distance, 0)) == pytest.approx(expected, abs=1e-6)
    points = torch.randn(13, 30, generator=generator, dtype=D)
    own, between = distances(points)
    assert proximal._descended(proximal.interactions(own, between)).numpy() == pytest.approx(
        proximal._enumerated(proximal.interactions(own, between)).numpy(), abs=1e-8
    )


def test_permuting_sources_permutes_weights() -> None:
    for seed in range(20):
        points = configuration(seed)
        order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
        straight = proximal_weights(*distances(points)).weights
        turned = proximal_weights(*distances(points[order])).weights
        assert turned.numpy() == pytest.approx(straight[order].numpy(), abs=1e-9)


@pytest.mark.parametrize("constraint", ["simplex", "affine"])
def test_a_source_twice_leaves_the_start(constraint: proximal.Constraint) -> None:
    for seed in range(20):
        points = configuration(seed)
        doubled = torch.cat([points, points[:1]])
        once = proximal_weights(*distances(points), constraint).weights @ points
        found = proximal_weights(*distances(doubled), constraint)
        assert (found.weights @ doubled).numpy() == pytest.approx(once.numpy(), abs=1e-6)
        assert float(found.weights[0]) == pytest.approx(float(found.weights[-1]), abs=1e-6)
        assert (proximal.NOT_UNIQUE in found.notes) == (constraint == "affine")


def test_a_source_that_is_the_target_takes_all() -> None:
    """H has a row of zeros then, and the paper's H⁻¹e does not exist."""
    own, between = distances(torch.tensor([[0.0, 0], [1, 0], [0, 1]], dtype=D))
    assert float(torch.linalg.det(proximal.interactions(own, between))) == 0
    for constraint in ("simplex", "affine"):
        found = proximal_weights(own, between, constraint)
        assert found.weights.numpy() == pytest.approx([1, 0, 0], abs=1e-9)
        assert found.squared_distance == pytest.approx(0, abs=1e-12)


def test_three_sources_by_a_grid() -> None:
    points = torch.tensor([[1, 0, 0.3], [1, 0.3, 0], [-1.2, -0.1, 0.2]], dtype=D)
    steps = torch.linspace(0, 1, 401, dtype=D)
    grid = torch.cartesian_prod(steps, steps)
    grid = torch.cat([grid, 1 - grid.sum(1, keepdim=True)], 1)
    grid = grid[grid[:, 2] >= 0]
    brute = grid[(grid @ points).square().sum(1).argmin()]
    found = proximal_weights(*distances(points))
    assert found.weights.numpy() == pytest.approx(brute.numpy(), abs=0.004)
    assert found.weights[0] < 0.05 < found.weights[2]  # though the first is nearer
    assert points[0].norm() < points[2].norm()


def variations(sources: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Squared total variation of atoms."""
    own = ((sources - target).abs().sum(1) / 2).square()
    return own, (torch.cdist(sources, sources, p=1) / 2).square()


def test_the_square_has_a_saddle_where_the_paper_looks() -> None:
    atoms = torch.tensor([[0, 1, 0, 1], [1, 0, 0, 1], [1, 0, 1, 0], [0, 1, 1, 0]], dtype=D) / 2
    own, between = variations(atoms, torch.full((4,), 0.25, dtype=D))
    found = proximal_weights(own, between)
    assert sorted(found.weights.tolist()) == pytest.approx([0, 0, 0.5, 0.5])
    assert found.squared_distance == pytest.approx(0, abs=1e-12)
    assert proximal.INDEFINITE in found.notes
    matrix = proximal.interactions(own, between)
    solved = torch.linalg.lstsq(matrix, torch.ones(4, 1, dtype=D), driver="gelsd").solution[:, 0]
    saddle = solved / solved.sum()
    assert saddle.tolist() == pytest.approx([0.25] * 4)
    assert float(saddle @ matrix @ saddle) == pytest.approx(0.125)
    with pytest.raises(ValueError, match="without end"):
        proximal_weights(own, between, "affine")


def test_the_star_predicts_a_negative_square() -> None:
    target = torch.full((6,), 1 / 6, dtype=D)
    sources = target.repeat(3, 1)
    for i in range(3):
        sources[i, 2 * i], sources[i, 2 * i + 1] = 0, 2 / 6
    found = proximal_weights(*variations(sources, target))
    assert found.weights.tolist() == pytest.approx([1 / 3] * 3)
    assert found.squared_distance == pytest.approx(-1 / 3 / 36)
    assert found.notes == (proximal.NEGATIVE,)


def test_an_unbiased_mmd_below_zero_is_taken_and_told() -> None:
    own = torch.tensor([0.02, 0.03], dtype=D)
    between = torch.tensor([[0, -0.01], [-0.01, 0]], dtype=D)
    found = proximal_weights(own, between)
    assert found.weights.tolist() == [1, 0]
    assert {proximal.INDEFINITE, proximal.IMPOSSIBLE} <= {*found.notes}


def test_plain_distances_cannot_be_told_and_squares_of_squares_can() -> None:
    """Roots of Euclidean distances are Euclidean distances (Schoenberg, 1938)."""
    for seed in range(20):
        own, between = distances(configuration(seed, most=6))
        plain = proximal_weights(own.sqrt(), between.sqrt())
        assert not plain.notes
    own, between = distances(torch.tensor([[0.3], [-0.7]], dtype=D))
    for power in (1.0, 0.5):  # on the line between sources, plain ones even give the same weights
        found = proximal_weights(own**power, between**power)
        assert found.weights.tolist() == pytest.approx([0.7, 0.3])
        assert not found.notes
    assert proximal.IMPOSSIBLE in proximal_weights(own**2, between**2).notes


def test_two_sources_alike_and_one_alone() -> None:
    found = proximal_weights(torch.tensor([0.5, 0.5]), torch.zeros(2, 2), "affine")
    assert found.weights.tolist() == pytest.approx([0.5, 0.5])
    assert found.notes == (proximal.NOT_UNIQUE,)
    with pytest.raises(ValueError, match="without end"):  # one place at two distances
        proximal_weights(torch.tensor([0.5, 0.6]), torch.zeros(2, 2), "affine")
    for constraint in ("simplex", "affine"):
        alone = proximal_weights(torch.tensor([0.3]), torch.zeros(1, 1), constraint)
        assert alone.weights.tolist() == [1]
        assert alone.squared_distance == pytest.approx(0.3)


def test_the_oracle_is_least_squares_on_flattened_weights() -> None:
    def model(seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {
            "weight": torch.randn(4, 3, generator=generator),
            "bias": torch.randn(4, generator=generator),
            "count": torch.tensor(seed),
        }

    sources, optimum = [model(i) for i in range(3)], model(9)
    rows = torch.stack([torch.cat([s["weight"].flatten(), s["bias"]]) for s in sources]).double()
    goal = torch.cat([optimum["weight"].flatten(), optimum["bias"]]).double()
    system = np.vstack([rows.T.numpy(), 1e5 * np.ones(3)])
    expected = np.linalg.lstsq(system, np.append(goal.numpy(), 1e5))[0]
    found = oracle_gamma(sources, optimum, "affine")
    assert found.weights.numpy() == pytest.approx(expected, abs=1e-6)
    distance = (found.weights @ rows - goal).square().sum()
    assert found.squared_distance == pytest.approx(float(distance))
    with pytest.raises(ValueError, match="shape"):
        oracle_gamma(sources, {**optimum, "bias": torch.zeros(3)})


def mixed(share: float, count: int, seed: int) -> Tensor:
    """Features from N(0, 1) with the probability ``share``, else from N(3, 1)."""
    generator = torch.Generator().manual_seed(seed)
    second = torch.rand(count, 1, generator=generator) >= share
    return torch.randn(count, 1, generator=generator) + 3 * second


def test_a_mixture_gets_its_share() -> None:
    sources = [mixed(1, 400, 1), mixed(0, 400, 2)]
    for share in (0.0, 0.3, 1.0):
        found = weights_from_samples(mixed(share, 400, 3), sources)
        assert float(found.weights[0]) == pytest.approx(share, abs=0.08)
        assert not found.notes


def test_sources_of_one_distribution_are_averaged() -> None:
    sources = [mixed(0.5, 100, seed) for seed in (1, 2, 4)]
    found = weights_from_samples(mixed(0.2, 100, 3), sources)
    assert found.weights.tolist() == pytest.approx([1 / 3] * 3)
    assert found.weights.all()
    assert "uniform" in found.notes[-1]
    alone = weights_from_samples(mixed(0.2, 100, 3), sources[:1])
    assert alone.weights.tolist() == [1]


def test_refusals() -> None:
    own, between = torch.ones(2), torch.ones(2, 2) - torch.eye(2)
    with pytest.raises(ValueError, match="constraint"):
        proximal_weights(own, between, "linear")  # type: ignore[arg-type]
    for shapes in ((own[:1], between), (own[None], between), (own[:0], between[:0, :0])):
        with pytest.raises(ValueError, match="shapes"):
            proximal_weights(*shapes)
    with pytest.raises(ValueError, match="NaN"):
        proximal_weights(own * math.nan, between)
    with pytest.raises(ValueError, match="symmetric"):
        proximal_weights(own, torch.tensor([[0.0, 1], [2, 0]]))
    with pytest.raises(ValueError, match="diagonal"):
        proximal_weights(own, torch.ones(2, 2))
