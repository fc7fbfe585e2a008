"""Curves, crossings and costs: worked by hand, and against PyTorch's counter."""

import itertools
import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from mergebook.sail.costs import (
    GOALS,
    Account,
    Costs,
    count_flops,
    goals_of,
    loop_flops,
    mmd_flops,
    perceptron_flops,
    smoothed,
    speed_up,
    steps_to,
)
from mergebook.sail.measure.spirals import trained_on
from mergebook.sail.two_spirals import perceptron, scores, side_by_side, spirals
from mergelib.evaluation.tasks import Split

STEPS = tuple(range(0, 70, 10))


def reached(losses: list[float], *goals: float) -> list[float]:
    curves = torch.tensor(losses)[:, None].expand(-1, len(goals))
    return steps_to(STEPS[: len(losses)], curves, torch.tensor(goals)).tolist()


def test_a_single_outlier_is_no_crossing() -> None:
    """A dip of one reading, and a rise of one, are the median's; two readings are not."""
    assert reached([4.0, 4, 1, 4, 3, 2, 1], 2.0) == [50]
    assert reached([4.0, 3, 9, 2, 1, 1, 1], 2.0) == [30]
    assert reached([4.0, 4, 1, 1, 4, 4, 4], 2.0) == [pytest.approx(10 + 10 * 2 / 3)]


def test_crossings_lie_on_straight_lines_up_to_the_last_reading() -> None:
    falling = [7.0, 6, 5, 4, 3, 2, 1]
    assert reached(falling, 7.5, 7.0, 4.5, 1.25, 1.0) == [0, 0, 25, 57.5, 60]
    assert reached(falling, 0.5, 6.0) == [pytest.approx(math.nan, nan_ok=True), 10]
    assert reached([3.0, 1.0], 2.0) == [5], "two readings are not smoothed"
    assert reached([math.nan, math.nan, 5, 4, 3, 2, 1], 3.0, 9.0) == [40, 20]


@given(losses=st.lists(st.floats(0, 5), min_size=3, max_size=7), shift=st.floats(0, 2))
def test_the_smoothed_curve_is_at_the_goal_where_it_is_reached(
    losses: list[float], shift: float
) -> None:
    """By `numpy`, interpolated there it is the goal, and it is above it at every step before."""
    line = smoothed(torch.tensor(losses, dtype=torch.float64)).numpy()
    goal = float(np.interp(shift * 10, STEPS[: len(line)], line))
    found = float(steps_to(STEPS[: len(line)], torch.tensor(losses, dtype=torch.float64), goal))
    assert found <= shift * 10 + 1e-6, "no later than where the goal was taken"
    grid = np.linspace(0, STEPS[len(line) - 1], 2001)
    before = np.interp(grid[grid < found - 1e-6], STEPS[: len(line)], line)
    assert (before > goal - 1e-9).all()
    if found > 0:
        assert np.interp(found, STEPS[: len(line)], line) == pytest.approx(goal, abs=1e-9)


def test_a_run_reaches_its_own_goals_in_time() -> None:
    """Goals and crossings are one statistic: its median smooths both, and no goal is later."""
    generator = torch.Generator().manual_seed(0)
    steps = tuple(range(0, 110, 10))
    falling = torch.linspace(3, 1, 11)[:, None] + 0.3 * torch.randn(11, 50, generator=generator)
    goals = goals_of(steps, falling, 100)
    assert {*goals} == {*GOALS}
    for name, losses in goals.items():
        found = steps_to(steps, falling, losses)
        assert (found <= 100 * GOALS[name]).all()
    assert (goals["hard"] <= goals["easy"]).all()
    assert max(GOALS.values()) <= 0.6
    with pytest.raises(ValueError, match="readings end at step 100, but the hard goal"):
        goals_of(steps, falling, 200)


def test_networks_side_by_side_have_their_own_steps() -> None:
    losses = torch.tensor([[4.0, 1.0], [3, 1], [2, 1], [1, 1]])
    assert steps_to((0, 5, 10, 15), losses, 2.5).tolist() == [7.5, 0]


def test_a_speed_up_in_three_accounts() -> None:
    """800 against 200, with 200 added, and 400 more for the sources; the last one never ends."""
    rival, own = torch.tensor(80), torch.tensor([20.0, 0, 160, math.nan])
    costs = Costs(10.0, added=200.0, sources=400.0)
    found = {
        account: speed_up(rival, Costs(10.0), own, costs, account, least=5).tolist()
        for account in get_args(Account)
    }
    assert found["A"][:3] == [2.0, 4.0, -1.0]
    assert math.isnan(found["A"][3])
    assert found["B"][0] == 1.0
    assert found["C"][0] == 0.0


@pytest.mark.parametrize("widths", [(2, 50, 2), (3, 8, 5, 4)])
def test_flops_of_a_step_are_those_that_pytorch_counts(widths: tuple[int, ...]) -> None:
    pairs = itertools.pairwise(widths)
    model = nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.ReLU())))
    inputs = torch.randn(7, widths[0])
    counted = count_flops(lambda: model(inputs).sum().backward())
    assert perceptron_flops(widths, 7) == counted


def test_flops_of_a_table_of_distances() -> None:
    samples = [torch.randn(size, 4) for size in (3, 5, 2)]
    counted = count_flops(
        lambda: [a @ b.T for i, a in enumerate(samples) for b in samples[: i + 1]]
    )
    assert mmd_flops((3, 5, 2), 4) == counted


def test_networks_side_by_side_train_as_each_does_alone() -> None:
    data = spirals(0)
    nets = [perceptron() for _ in range(2)]
    stack = side_by_side([net.state_dict() for net in nets])
    together = trained_on(stack, data.train, data.validation, 6, 2)
    assert together.steps == (0, 2, 4, 6)
    for place, net in enumerate(nets):
        optimiser = torch.optim.Adam(net.parameters(), lr=5e-3)
        for step in range(7):
            if step % 2 == 0:
                outputs, labels = net(data.validation.inputs), data.validation.labels
                loss = cross_entropy(outputs, labels).item()
                right = (outputs.argmax(1) == labels).float().mean().item()
                assert together.loss[step // 2, place].item() == pytest.approx(loss, rel=1e-4)
                assert together.accuracy[step // 2, place].item() == pytest.approx(right)
            optimiser.zero_grad()
            cross_entropy(net(data.train.inputs), data.train.labels).backward()
            optimiser.step()


def test_the_gradients_norm_is_the_slope_in_its_own_direction() -> None:
    """By a central difference of the loss along the gradient."""
    train = spirals(1).train
    data = Split(train.inputs.double(), train.labels)
    model = side_by_side([perceptron().state_dict()]).double()
    slope = torch.autograd.grad(scores(model, data)[0].sum(), list(model.parameters()))
    norm = torch.stack([part.square().sum() for part in slope]).sum().sqrt()
    losses = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            for parameter, part in zip(model.parameters(), slope, strict=True):
                parameter.add_(step * part / norm)
        losses.append(float(scores(model, data)[0]))
    found = trained_on(model, data, data, 0, 1)
    assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(float(norm), rel=1e-4)
    assert float(found.gradient[0, 0]) == pytest.approx(float(norm), rel=1e-3)


def test_flops_of_a_loop_are_not_counted_step_by_step() -> None:
    taken = []

    def run(steps: int) -> None:
        taken.append(steps)
        for _ in range(steps + 3):  # three products around the loop
            torch.ones(2, 3) @ torch.ones(3, 5)

    assert loop_flops(run, 1000) == 1003 * 2 * 2 * 3 * 5
    assert taken == [0, 1]
