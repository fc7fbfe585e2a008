"""Variances worked by hand, the counterexamples to Corollary 1, and what is proved in its place."""

from itertools import product

import pytest
import torch
from torch import Tensor

from mergebook.stability.theory.variance import (
    dropped_variance,
    elect_rows,
    reduction,
    relative_variance,
    task_variance,
    trim_rows,
)
from mergelib.rules.sparse import elect_and_reduce

ROWS = torch.tensor([[4.0, 1, -3, 0], [2, -5, 1, 0], [-5, 1, 2, 0]])
THIRDS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def column(*entries: float) -> Tensor:
    """Task vectors of one coordinate."""
    return torch.tensor(entries, dtype=torch.float64)[:, None]


def random_rows(tasks: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of very different sizes with zeros and ties among them, and weights."""
    generator = torch.Generator().manual_seed(seed)
    shape = (tasks, count)
    rows = torch.randn(shape, generator=generator, dtype=torch.float64)
    rows = rows * torch.exp(2 * torch.randn(shape, generator=generator, dtype=torch.float64))
    rows[torch.rand(shape, generator=generator) < 0.1] = 0
    rows = torch.where(torch.rand(shape, generator=generator) < 0.2, rows.round(), rows)
    weights = -torch.rand(tasks, generator=generator, dtype=torch.float64).log()
    return rows, weights / weights.sum()


def test_variance_by_hand() -> None:
    entries = column(1, 2, 6)
    assert task_variance(entries).item() == pytest.approx((4 + 1 + 9) / 3)
    mean = 0.5 + 0.6 + 1.2
    by_hand = 0.5 * (1 - mean) ** 2 + 0.3 * (2 - mean) ** 2 + 0.2 * (6 - mean) ** 2
    assert task_variance(entries, THIRDS).item() == pytest.approx(by_hand)
    assert relative_variance(entries) == pytest.approx(1 - 9 / (41 / 3))


def test_equal_perpendicular_and_opposite_rows() -> None:
    assert relative_variance(torch.ones(4, 5)) == pytest.approx(0, abs=1e-6)
    assert relative_variance(torch.eye(4)) == pytest.approx(1 - 1 / 4)
    assert relative_variance(column(3, -3)) == pytest.approx(1)
    assert relative_variance(7 * ROWS) == pytest.approx(relative_variance(ROWS))


def test_variance_is_the_weighted_mean_of_deviations() -> None:
    rows, weights = random_rows(5, 50, 0)
    after = trim_rows(rows, 0.4)
    fallen = task_variance(rows, weights) - task_variance(after, weights)
    torch.testing.assert_close(weights @ reduction(rows, after, weights), fallen)


def test_trimming_keeps_the_largest_of_every_row() -> None:
    kept = [[4.0, 0, -3, 0], [2, -5, 0, 0], [-5, 0, 2, 0]]
    assert trim_rows(ROWS, 0.5).tolist() == kept


def test_trimming_may_raise_the_variance() -> None:
    before, after = (2 * task_variance(column(1, small)).item() for small in (0.1, 0))
    assert (before, after) == pytest.approx((0.405, 0.5))  # with T − 1, as chapter 03 has it


def test_when_zeroing_one_entry_raises_the_variance() -> None:
    """Exactly where it has the sign of the others' mean and is less than twice as large."""
    rows, weights = random_rows(4, 500, 5)
    after = rows.clone()
    after[0] = 0
    rest = weights[1:] @ rows[1:] / weights[1:].sum()
    wanted = (rows[0] * rest > 0) & (rows[0].abs() < 2 * rest.abs())
    risen = task_variance(after, weights) - task_variance(rows, weights)
    assert torch.equal(risen > 1e-12 * rows.square().sum(0), wanted)
    assert 50 < wanted.sum() < 450


def test_an_expert_that_keeps_its_entry_may_move_away_from_the_mean() -> None:
    before = column(5, 1, -1)
    after = elect_rows(before)
    assert after.flatten().tolist() == [5, 1, 0]
    deviations = [(before - before.mean()).abs()[1].item(), (after - after.mean()).abs()[1].item()]
    assert deviations == pytest.approx([2 / 3, 1])
    assert reduction(before, after).flatten().tolist() == pytest.approx(
        [(10 / 3) ** 2 - 3**2, (2 / 3) ** 2 - 1, (8 / 3) ** 2 - 2**2]
    )


def test_nothing_is_left_of_a_variance_if_everything_is_pruned() -> None:
    rows, weights = random_rows(4, 30, 1)
    none = torch.zeros_like(rows)
    assert task_variance(none, weights).sum() == 0
    torch.testing.assert_close(reduction(rows, none, weights), (rows - weights @ rows).square())


def test_election_is_not_continuous() -> None:
    merged = [elect_and_reduce(column(1, x), "mean").item() for x in (-1.01, -0.99)]
    assert merged[1] - merged[0] == pytest.approx(2.01)


@pytest.mark.parametrize("minority", [False, True])
def test_election_of_either_sign_lowers_the_variance(minority: bool) -> None:
    """For any weights; 10,000 coordinates, and the reduction in closed form."""
    for seed in range(10):
        rows, weights = random_rows(2 + seed % 6, 1100, seed)
        rows = rows[:, weights @ rows != 0][:, :1000]
        after = elect_rows(rows, weights, minority=minority)
        fallen = task_variance(rows, weights) - task_variance(after, weights)
        elected = (weights @ rows).sign() * (-1 if minority else 1)
        gone = rows * (rows * elected < 0)
        kept, lost = (weights @ after).abs(), (weights @ gone).abs()
        assert rows.shape[1] == 1000
        closed = weights @ gone.square() - lost.square() + 2 * kept * lost
        torch.testing.assert_close(fallen, closed, atol=1e-12, rtol=1e-7)
        conflict = (lost > 0) & ((kept > 0) | ((gone != 0).sum(0) < len(rows)))
        assert (closed[conflict] > 0).all()
        assert conflict.sum() > 300


def test_election_with_equal_weights_is_that_of_ties() -> None:
    rows, _ = random_rows(5, 200, 3)
    torch.testing.assert_close(elect_rows(rows).sum(0), elect_and_reduce(rows, "sum"))


@pytest.mark.parametrize("weights", [None, THIRDS])
def test_what_dropping_does_on_average(weights: Tensor | None) -> None:
    """Against all masks of three experts, each with its probability."""
    rows, drop_rate = random_rows(3, 20, 4)[0], 0.7
    total = torch.zeros(20, dtype=torch.float64)
    for mask in product([0.0, 1.0], repeat=3):
        kept = torch.tensor(mask, dtype=torch.float64)
        chance = (kept * (1 - drop_rate) + (1 - kept) * drop_rate).prod()
        total += chance * task_variance(kept[:, None] * rows / (1 - drop_rate), weights)
    torch.testing.assert_close(dropped_variance(rows, drop_rate, weights), total)


@pytest.mark.parametrize("weights", [[0.5, 0.4, 0.2], [1.2, -0.1, -0.1]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        task_variance(ROWS, torch.tensor(weights))
