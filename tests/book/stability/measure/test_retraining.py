"""Measured stability against closed forms: the mean, and SGD on quadratics."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from mergebook.lab.statistics import interval
from mergebook.stability.measure.retraining import draw_rows, replaced, squared_moves
from mergebook.stability.theory.quadratics import Quadratics, errors
from mergebook.stability.theory.steps import Training
from mergelib.problems.examples import Examples


def numbers(*shape: int, generator: torch.Generator) -> Examples:
    return Examples(torch.randn(*shape, generator=generator, dtype=torch.float64))


def mean(examples: Examples) -> Tensor:
    assert isinstance(examples.inputs, Tensor)
    return examples.inputs.mean(0)


def test_one_example_is_replaced() -> None:
    examples = Examples(torch.arange(4.0), torch.arange(4))
    for row in range(4):
        other = replaced(examples, row, Examples(torch.tensor([9.0]), torch.tensor([7])))
        kept = [i for i in range(4) if i != row]
        (inputs, labels), (before, _) = other.pair, examples.pair
        assert isinstance(inputs, Tensor)
        assert isinstance(before, Tensor)
        assert torch.equal(inputs[kept], before[kept])
        assert (float(inputs[row]), int(labels[row])) == (9.0, 7)


def test_the_mean_moves_by_twice_the_variance_over_n_squared() -> None:
    """(z − z̃)/n for examples of variance 1 in each of three directions."""
    generator = torch.Generator().manual_seed(0)
    moves = []
    for _ in range(100):
        data, fresh = numbers(10, 3, generator=generator), numbers(10, 3, generator=generator)
        moves.append(squared_moves(mean, data, fresh, range(10))[1])
    value, half = interval(torch.cat(moves).tolist())
    assert abs(value - 2 * 3 / 10**2) < half * 1.5
    assert half < 0.005


def test_the_same_data_do_not_move_the_model() -> None:
    data = numbers(10, 3, generator=torch.Generator().manual_seed(0))
    _, moves = squared_moves(mean, data, data[4:6], [4, 5])
    assert moves.tolist() == [0, 0]


def test_training_that_is_not_repeatable_is_refused() -> None:
    data = numbers(10, 3, generator=torch.Generator().manual_seed(0))
    answers: Iterator[Tensor] = iter(torch.arange(3.0)[:, None])
    with pytest.raises(ValueError, match="gave different weights"):
        squared_moves(lambda _: next(answers), data, data[:1], [0])


def test_rows_are_drawn_without_bias() -> None:
    """Of ten rows, three are met first, five more later, and two never."""
    seen = torch.zeros(2, 10, dtype=torch.bool)
    seen[0, :3], seen[1, :8] = True, True
    sizes = torch.arange(1.0, 11)
    rows, weights = draw_rows(seen, 200_000, torch.Generator().manual_seed(0))
    assert set(rows.tolist()) == set(range(8))
    assert float((rows < 3).double().mean()) == pytest.approx(0.5 + 0.5 * 3 / 8, abs=0.005)
    for met in seen:
        truth = float((sizes * met).mean())
        value, half = interval(((sizes * met)[rows] * weights).tolist())
        assert abs(value - truth) < 2 * half


def test_sgd_on_a_quadratic_is_as_stable_as_its_closed_form() -> None:
    """½ h (θ − z)², 12 steps on batches of 2 of 6 examples, at two checkpoints."""
    curvature, rate, steps = 0.7, 0.3, (4, 12)
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    problem = Quadratics(curvature * one, 0 * one[0], one, torch.zeros(1, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    moves, weights = [], []
    for _ in range(400):
        batches = [torch.randperm(6, generator=generator)[:2] for _ in range(max(steps))]

        def train(examples: Examples, batches: list[Tensor] = batches) -> Tensor:
            assert isinstance(examples.inputs, Tensor)
            theta, kept = torch.zeros(1, dtype=torch.float64), []
            for rows in batches:
                theta = theta - rate * curvature * (theta - examples.inputs[rows].mean(0))
                kept.append(theta)
            return torch.stack([kept[count - 1] for count in steps])

        seen = torch.zeros(2, 6, dtype=torch.bool)
        for i, count in enumerate(steps):
            seen[i, torch.cat(batches[:count])] = True
        rows, counts = draw_rows(seen, 6, generator)
        data, fresh = numbers(6, 1, generator=generator), numbers(6, 1, generator=generator)
        moves.append(squared_moves(train, data, fresh, rows.tolist())[1])
        weights.append(counts)
    for i, count in enumerate(steps):
        plan = Training.alike(1, count, rate, batch=2, examples=6)
        truth = float(errors(problem, plan).local_stability)
        value, half = interval((torch.cat(moves)[:, i] * torch.cat(weights)).tolist())
        assert abs(value - truth) < 1.5 * half
        assert half < 0.15 * truth
