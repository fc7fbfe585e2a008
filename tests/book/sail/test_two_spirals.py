"""Points of two spirals, the readings of their parts, and networks side by side."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from mergebook.sail import two_spirals
from mergebook.sail.two_spirals import (
    RADIUS,
    TURNS,
    perceptron,
    readings,
    scores,
    side_by_side,
    spirals,
    taken_apart,
)


def test_without_noise_points_lie_on_two_spirals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_spirals, "NOISE", 0.0)
    data = spirals(3)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [500, 250, 250]
    for part in (data.train, data.validation, data.test):
        assert int(part.labels.sum()) == len(part) // 2
        turned = part.inputs * (1 - 2 * part.labels[:, None])  # the second onto the first
        radius = turned.norm(dim=1)
        assert float(radius.max()) <= RADIUS
        angle = 2 * torch.pi * TURNS * radius / RADIUS
        expected = radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
        torch.testing.assert_close(turned, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(data.train.inputs.norm(dim=1), RADIUS * data.places)


def test_a_seed_draws_all() -> None:
    first, same, other = spirals(0), spirals(0), spirals(1)
    assert torch.equal(first.train.inputs, same.train.inputs)
    assert not torch.equal(first.train.inputs, other.train.inputs)
    assert not torch.equal(first.validation.inputs, first.test.inputs)


def test_readings_are_disjoint_parts_of_two_fifths() -> None:
    data = spirals(0)
    found = readings(data, 0)
    assert list(found) == ["one class", "inner, outer", "random"]
    for one, two in found.values():
        assert len(one) == len(two) == 200
        assert len({*one.tolist(), *two.tolist()}) == 400
    one, two = found["one class"]
    assert data.train.labels[one].unique().tolist() == [0]
    assert data.train.labels[two].unique().tolist() == [1]
    one, two = found["inner, outer"]
    assert data.places[one].max() < data.places[two].min()
    assert 60 < int(data.train.labels[one].sum()) < 140, "of both spirals"


def test_networks_side_by_side_compute_what_each_does() -> None:
    nets, data = [perceptron() for _ in range(3)], spirals(0).test
    states = [net.state_dict() for net in nets]
    model = side_by_side(states)
    losses, accuracies = scores(model, data)
    for net, loss, accuracy in zip(nets, losses, accuracies, strict=True):
        logits = net(data.inputs)
        torch.testing.assert_close(loss, cross_entropy(logits, data.labels))
        assert float(accuracy) == float((logits.argmax(1) == data.labels).float().mean())
    for state, back in zip(states, taken_apart(model), strict=True):
        assert state.keys() == back.keys()
        assert all(torch.equal(state[key], back[key]) for key in state)
