"""Curves, crossings and costs: worked by hand, and against PyTorch's counter."""

import itertools
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from mergelib.sail.retraining import (
    Account,
    Costs,
    Curve,
    count_flops,
    loop_flops,
    mmd_flops,
    perceptron_flops,
    retrain,
    speed_up,
    steps_to,
)
from mergelib.testbed.families.spirals import perceptron, scores, side_by_side, spirals
from mergelib.testbed.tasks import Split


def curve(*losses: list[float]) -> Curve:
    loss = torch.tensor(losses).T
    loss = loss[:, 0] if len(losses) == 1 else loss
    return Curve(tuple(range(0, 10 * len(loss), 10)), loss, loss, loss)


def test_a_goal_is_reached_at_the_first_of_three_evaluations_below_it() -> None:
    again, never = [3.0, 1, 3, 1, 1, 1, 3], [3.0, 1, 1, 3, 1, 1, 2]
    assert int(steps_to(curve(again), 2.0)) == 30
    assert int(steps_to(curve(again), 2.0, patience=1)) == 10
    assert int(steps_to(curve(never), 2.0)) == 60, "the budget; the goal itself is not below it"
    assert steps_to(curve(again, never), 2.0).tolist() == [30, 60]
    assert steps_to(curve(again, never), 4.0).tolist() == [0, 0]


def test_a_speed_up_in_three_accounts() -> None:
    """800 against 200, with 200 added, and 400 more for the sources."""
    rival, own = torch.tensor(80), torch.tensor([20, 0])
    costs = Costs(10.0, added=200.0, sources=400.0)
    found = {
        account: speed_up(rival, Costs(10.0), own, costs, account, least=5).tolist()
        for account in get_args(Account)
    }
    assert found["A"] == [2.0, 4.0]
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
    together = retrain(
        stack,
        range(6),
        lambda _: scores(stack, data.train)[0].sum(),
        lambda: scores(stack, data.validation),
        torch.optim.Adam(stack.parameters(), lr=5e-3),
        every=2,
    )
    assert together.steps == (0, 2, 4, 6)
    for place, net in enumerate(nets):
        alone = retrain(
            net,
            range(6),
            lambda _, net=net: cross_entropy(net(data.train.inputs), data.train.labels),  # type: ignore[misc]
            lambda net=net: (  # type: ignore[misc]
                cross_entropy(net(data.validation.inputs), data.validation.labels),
                (net(data.validation.inputs).argmax(1) == data.validation.labels).float().mean(),
            ),
            torch.optim.Adam(net.parameters(), lr=5e-3),
            every=2,
        )
        for name in ("loss", "accuracy", "gradient"):
            torch.testing.assert_close(
                getattr(together, name)[:, place], getattr(alone, name), rtol=1e-4, atol=1e-6
            )


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
    found = retrain(
        model,
        [],
        lambda _: torch.tensor(0.0),
        lambda: scores(model, data),
        torch.optim.SGD(model.parameters(), lr=0.1),
    )
    assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(float(norm), rel=1e-4)
    assert float(found.gradient[0, 0]) == pytest.approx(float(norm), rel=1e-3)


def test_flops_of_a_loop_are_not_counted_step_by_step() -> None:
    taken = []

    def run(steps: int) -> None:
        taken.append(steps)
        for _ in range(steps + 3):  # three products around the loop
            torch.ones(2, 3) @ torch.ones(3, 5)

    assert loop_flops(run, 1000) == 1003 * 2 * 2 * 3 * 5
    assert taken == [1, 2]
