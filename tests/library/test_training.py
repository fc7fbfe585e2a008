"""The training loop against closed forms, its optimisers and batches by hand."""

import math

import pytest
import torch
from torch import Generator, Tensor, nn

from mergelib.training import make_optimiser, shuffled, train, warmup_cosine


class Point(nn.Module):
    """One weight, to be moved."""

    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.tensor([start]))


def sgd(point: Point, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(point.parameters(), lr=rate)


def parabola(point: Point) -> Tensor:
    return 0.5 * point.at.square().sum()


def test_gradient_descent_on_a_parabola_has_a_closed_form() -> None:
    """X shrinks by 1 - η in each step, and the loss is taken before the step."""
    point = Point()
    losses = train(point, range(5), lambda _: parabola(point), sgd(point, 0.1))
    assert point.at.item() == pytest.approx(0.9**5)
    assert losses == pytest.approx([0.5 * 0.9 ** (2 * step) for step in range(5)])


def test_sharpness_aware_steps_take_the_gradient_further_up() -> None:
    """On x²/2 the gradient a radius ρ up the slope is x + ρ, here for x > 0."""
    point = Point()
    for _ in range(3):
        train(point, [0], lambda _: parabola(point), sgd(point, 0.1), radius=0.2)
    at = 1.0
    for _ in range(3):
        at -= 0.1 * (at + 0.2)
    assert point.at.item() == pytest.approx(at)


def length(weights: nn.ParameterList) -> Tensor:
    squares: Tensor = torch.stack([weight.square().sum() for weight in weights]).sum()
    return squares.sqrt()


def test_a_radius_is_a_length_over_all_parameters() -> None:
    """Of the gradient (3, 4), of length 5, ρ = 1 adds (0.6, 0.8); ρ = 0 is plain descent."""
    ends = []
    for radius in (0.0, 1.0):
        pair = nn.ParameterList([torch.tensor([3.0]), torch.tensor([4.0])])
        optimiser = torch.optim.SGD(pair.parameters(), lr=0.5)
        train(pair, [pair], lambda own: 0.5 * length(own) ** 2, optimiser, radius=radius)
        ends.append([weight.item() for weight in pair])
    assert ends[0] == [1.5, 2.0]
    assert ends[1] == pytest.approx([3 - 0.5 * 3.6, 4 - 0.5 * 4.8])
    with pytest.raises(ValueError, match="radius is -1"):
        train(pair, [pair], length, optimiser, radius=-1)


def test_clipping_bounds_the_length_of_a_step() -> None:
    point = Point(100.0)
    train(
        point,
        range(3),
        lambda _: parabola(point),
        sgd(point, 1.0),
        clip=2.0,
    )
    assert point.at.item() == pytest.approx(100 - 3 * 2.0)


def test_a_schedule_sets_the_rate_and_none_keeps_it() -> None:
    # Two steps of warm-up, to a half and to all, then half a cosine over two: all and a half.
    for scheduled, rates in ((True, [0.1, 0.2, 0.2, 0.1]), (False, [0.2] * 4)):
        point = Point()
        optimiser = sgd(point, 0.2)
        plan = warmup_cosine(optimiser, 4, 0.5) if scheduled else None

        def loss(_: int, point: Point = point) -> Tensor:
            return parabola(point)

        train(point, range(4), loss, optimiser, schedule=plan)
        assert point.at.item() == pytest.approx(math.prod(1 - rate for rate in rates))


def test_checkpoints_can_be_taken_along_the_way() -> None:
    point = Point()
    path: dict[int, float] = {}

    def keep(step: int, loss: float) -> None:
        path[step] = point.at.item()

    train(
        point,
        range(3),
        lambda _: parabola(point),
        sgd(point, 0.5),
        on_step=keep,
    )
    assert path == pytest.approx({0: 0.5, 1: 0.25, 2: 0.125})


def test_a_loss_that_is_not_finite_stops_before_the_step() -> None:
    point = Point()
    optimiser = sgd(point, 0.5)
    with pytest.raises(FloatingPointError, match=r"became nan in step 1, at learning rate 0\.5"):
        train(point, [1.0, math.nan], lambda factor: factor * parabola(point), optimiser)
    assert point.at.item() == 0.5


def test_epochs_take_every_row_once_and_steps_cut_the_last_one() -> None:
    generator = Generator().manual_seed(0)
    batches = list(shuffled(10, 4, generator, 6))
    assert [len(batch) for batch in batches] == [4, 4, 2] * 2
    for epoch in (batches[:3], batches[3:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(10))
    assert not torch.equal(torch.cat(batches[:3]), torch.cat(batches[3:]))
    shorter = list(shuffled(10, 4, Generator().manual_seed(0), steps=4))
    assert [batch.tolist() for batch in shorter] == [batch.tolist() for batch in batches[:4]]
    assert list(shuffled(10, 4, generator, steps=0)) == []


def test_warmup_cosine_by_hand() -> None:
    """Ten steps, four of warm-up: quarters up, then half a cosine over six."""
    parameter = nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([parameter], lr=2.0)
    schedule = warmup_cosine(optimiser, steps=10, warmup=0.4)
    rates = []
    for _ in range(10):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    falling = [1 + math.cos(math.pi * i / 6) for i in range(6)]
    assert rates == pytest.approx([0.5, 1.0, 1.5, 2.0, *falling])
    assert optimiser.param_groups[0]["lr"] == pytest.approx(0)


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_only_matrices_decay(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    model[2].weight.requires_grad_(False)
    optimiser = make_optimiser(model, name, 0.1, weight_decay=0.3)
    decays = {id(p): g["weight_decay"] for g in optimiser.param_groups for p in g["params"]}
    assert decays.pop(id(model[0].weight)) == 0.3
    assert len(decays) == 4
    assert set(decays.values()) == {0.0}


def test_an_unknown_optimiser_is_named() -> None:
    with pytest.raises(ValueError, match="unknown optimiser 'lion'; known: adamw, adam, sgd"):
        make_optimiser(Point(), "lion", 0.1)
