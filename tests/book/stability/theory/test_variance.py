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


def column(*entries: float) -> Tensor:
    """Task vectors of one coordinate."""
    return torch.tensor(entries, dtype=torch.float64)[:, None]


def random_rows(tasks: int, count: int, seed: int) -> Tensor:
    """Rows of very different sizes with zeros and ties among them."""
    generator = torch.Generator().manual_seed(seed)
    shape = (tasks, count)
    rows = torch.randn(shape, generator=generator, dtype=torch.float64)
    rows = rows * torch.exp(2 * torch.randn(shape, generator=generator, dtype=torch.float64))
    rows[torch.rand(shape, generator=generator) < 0.1] = 0
    return torch.where(torch.rand(shape, generator=generator) < 0.2, rows.round(), rows)


def test_variance_by_hand() -> None:
    entries = column(1, 2, 6)
    assert task_variance(entries).item() == pytest.approx((4 + 1 + 9) / 3)
    assert relative_variance(entries) == pytest.approx(1 - 9 / (41 / 3))


def test_equal_perpendicular_and_opposite_rows() -> None:
    assert relative_variance(torch.ones(4, 5)) == pytest.approx(0, abs=1e-6)
    assert relative_variance(torch.eye(4)) == pytest.approx(1 - 1 / 4)
    assert relative_variance(column(3, -3)) == pytest.approx(1)
    assert relative_variance(7 * ROWS) == pytest.approx(relative_variance(ROWS))


def test_variance_is_the_mean_of_deviations() -> None:
    rows = random_rows(5, 50, 0)
    after = trim_rows(rows, 0.4)
    fallen = task_variance(rows) - task_variance(after)
    torch.testing.assert_close(reduction(rows, after).mean(0), fallen)


def test_trimming_keeps_the_largest_of_every_row() -> None:
    kept = [[4.0, 0, -3, 0], [2, -5, 0, 0], [-5, 0, 2, 0]]
    assert trim_rows(ROWS, 0.5).tolist() == kept


def test_trimming_may_raise_the_variance() -> None:
    before, after = (2 * task_variance(column(1, small)).item() for small in (0.1, 0))
    assert (before, after) == pytest.approx((0.405, 0.5))  # with T − 1, as chapter 03 has it


def test_when_zeroing_one_entry_raises_the_variance() -> None:
    """Exactly where it has the sign of the others' mean and is less than twice as large."""
    rows = random_rows(4, 500, 5)
    after = rows.clone()
    after[0] = 0
    rest = rows[1:].mean(0)
    wanted = (rows[0] * rest > 0) & (rows[0].abs() < 2 * rest.abs())
    risen = task_variance(after) - task_variance(rows)
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
    rows = random_rows(4, 30, 1)
    none = torch.zeros_like(rows)
    assert task_variance(none).sum() == 0
    torch.testing.assert_close(reduction(rows, none), (rows - rows.mean(0)).square())


def test_election_is_not_continuous() -> None:
    merged = [elect_and_reduce(column(1, x), "mean").item() for x in (-1.01, -0.99)]
    assert merged[1] - merged[0] == pytest.approx(2.01)


@pytest.mark.parametrize("minority", [False, True])
def test_election_of_either_sign_lowers_the_variance(minority: bool) -> None:
    """10,000 coordinates, and the reduction in closed form."""
    for seed in range(10):
        rows = random_rows(2 + seed % 6, 1200, seed)
        rows = rows[:, rows.sum(0) != 0][:, :1000]
        after = elect_rows(rows, minority=minority)
        fallen = task_variance(rows) - task_variance(after)
        elected = rows.sum(0).sign() * (-1 if minority else 1)
        gone = rows * (rows * elected < 0)
        kept, lost = after.mean(0).abs(), gone.mean(0).abs()
        assert rows.shape[1] == 1000
        closed = gone.square().mean(0) - lost.square() + 2 * kept * lost
        torch.testing.assert_close(fallen, closed, atol=1e-12, rtol=1e-7)
        conflict = (lost > 0) & ((kept > 0) | ((gone != 0).sum(0) < len(rows)))
        assert (closed[conflict] > 0).all()
        assert conflict.sum() > 300


def test_election_with_equal_weights_is_that_of_ties() -> None:
    rows = random_rows(5, 200, 3)
    torch.testing.assert_close(elect_rows(rows).sum(0), elect_and_reduce(rows, "sum"))


def test_what_dropping_does_on_average() -> None:
    """Against all masks of three experts, each with its probability."""
    rows, drop_rate = random_rows(3, 20, 4), 0.7
    total = torch.zeros(20, dtype=torch.float64)
    for mask in product([0.0, 1.0], repeat=3):
        kept = torch.tensor(mask, dtype=torch.float64)
        chance = (kept * (1 - drop_rate) + (1 - kept) * drop_rate).prod()
        total += chance * task_variance(kept[:, None] * rows / (1 - drop_rate))
    torch.testing.assert_close(dropped_variance(rows, drop_rate), total)
