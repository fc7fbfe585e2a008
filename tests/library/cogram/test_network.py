"""What CoGraM finds in a network, and the losses of its candidates, against the network itself."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.suites.models import VisionTransformer
from mergelib.cogram.network import Network
from mergelib.cogram.site import Site, site_of
from mergelib.problems.examples import Examples
from mergelib.problems.problem import Problem
from tests.library.align.families import resnet18


def make_network(
    model: nn.Module, data: dict[str, tuple[Tensor, Tensor]], heads: dict[str, nn.Module], loss: str
) -> Network:
    examples = {task: Examples(*pair) for task, pair in data.items()}
    problem = Problem({"own": model.state_dict()}, model=model, data=examples, heads=heads)
    return Network(problem, model.state_dict(), loss)


def network(model: nn.Module, inputs: Tensor, loss: str = "cross_entropy") -> Network:
    labels = torch.arange(len(inputs)) % 4
    data = {"t": (inputs, labels)}
    return make_network(model, data, {"t": nn.Identity()}, loss)


def found(model: nn.Module, inputs: Tensor) -> dict[str, bool]:
    return {each.name: each.refinable for each in network(model, inputs).layers()}


class Backwards(nn.Module):
    """Its modules run in another order than they were made; one never does, one has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 4)
        self.never = nn.Linear(2, 2)
        self.middle = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("kept", torch.ones(1))
        self.register_buffer("counter", torch.zeros(1, dtype=torch.long))
        self.register_buffer("passing", torch.ones(1), persistent=False)
        self.first = nn.Linear(3, 3)
        self.again = self.middle

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.middle(self.scale * self.first(x)))
        return made


def test_layers_come_in_the_order_in_which_they_run() -> None:
    layers = network(Backwards(), torch.randn(4, 3)).layers()
    assert [(each.name, each.refinable) for each in layers] == [
        ("", False), ("first", True), ("middle", False), ("last", True), ("never", False),
    ]  # fmt: skip
    assert list(layers[0].tensors) == ["scale", "kept"]


def test_layers_of_a_residual_network() -> None:
    net = resnet18()
    layers = found(net, torch.randn(2, 3, 8, 8))
    assert len(layers) == 20 + 20, "20 convolutions, each with its norm"
    assert list(layers)[:4] == ["net.conv1", "net.bn1", "net.layer1.0.conv1", "net.layer1.0.bn1"]
    norms = {name for name, module in net.named_modules() if "Norm" in type(module).__name__}
    assert {name for name, refinable in layers.items() if not refinable} == norms


def test_layers_of_a_transformer() -> None:
    layers = found(VisionTransformer(8, 1, 2, 2), torch.randn(2, 3, 32, 32))
    whole = [name for name, refinable in layers.items() if not refinable]
    assert whole == ["", "blocks.0.norm1", "blocks.0.norm2", "norm"]
    assert [*layers][-5:] == ["blocks.0.attn.proj", "blocks.0.norm2", "blocks.0.fc1",
                              "blocks.0.fc2", "norm"]  # fmt: skip


def test_losses_are_torchs() -> None:
    """Two tasks of unlike size, sequences of labels, in double precision."""
    torch.manual_seed(0)
    model, inputs = nn.Linear(3, 5), torch.randn(7, 6, 3)
    labels = torch.randint(4, (7, 6))
    heads: dict[str, nn.Module] = {"a": nn.Linear(5, 4), "b": nn.Linear(5, 4)}
    data = {"a": (inputs[:2], labels[:2]), "b": (inputs[2:], labels[2:])}
    made = make_network(model, data, heads, "cross_entropy")
    outputs = copy.deepcopy(model).double()(inputs.double())
    expected = [
        F.cross_entropy(copy.deepcopy(heads[t]).double()(x).flatten(0, 1), y.flatten())
        for t, x, y in (("a", outputs[:2], labels[:2]), ("b", outputs[2:], labels[2:]))
    ]
    mean = torch.stack(expected).mean().item()
    assert made.loss() == pytest.approx(mean, abs=1e-14)
    assert made.losses(outputs.expand(3, *outputs.shape)).tolist() == pytest.approx([mean] * 3)
    data = {task: (x, torch.randn(*x.shape[:2], 4)) for task, (x, _) in data.items()}
    made = make_network(model, data, heads, "mse")
    expected = [
        F.mse_loss(copy.deepcopy(heads[t]).double()(x), data[t][1].double())
        for t, x in (("a", outputs[:2]), ("b", outputs[2:]))
    ]
    assert made.loss() == pytest.approx(torch.stack(expected).mean().item(), abs=1e-14)


def twice(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), activation, nn.Linear(6, 4), activation, nn.Linear(4, 4))


PLACES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "first of a chain": (
        lambda: nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4), nn.Softplus()),
        (5, 3),
        "0",
    ),
    "one activation twice": (lambda: twice(nn.ReLU()), (5, 3), "0"),
    "last of a chain": (lambda: nn.Sequential(nn.ReLU(), nn.Linear(3, 6)), (5, 3), "1"),
    "on sequences": (
        lambda: nn.Sequential(nn.Linear(3, 6), nn.GELU(), nn.Linear(6, 4)),
        (5, 4, 3),
        "0",
    ),
    "groups of channels": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d(6), nn.Flatten(1)
        ),
        (5, 4, 5, 5),
        "0",
    ),
    "circular": (
        lambda: nn.Sequential(
            nn.ReLU(),
            nn.Conv1d(2, 6, 3, padding=2, dilation=2, padding_mode="circular", bias=False),
            nn.Flatten(1),
        ),
        (5, 2, 7),
        "1",
    ),
}


def site(name: str) -> tuple[Network, Site]:
    torch.manual_seed(0)
    make, shape, layer = PLACES[name]
    model = make().double()
    inputs = torch.randn(shape, dtype=torch.float64)
    with torch.no_grad():
        outputs = model(inputs)
    targets = torch.randn_like(outputs)
    made = make_network(model, {"t": (inputs, targets)}, {"t": nn.Identity()}, "mse")
    (chosen,) = (each for each in made.layers() if each.name == layer)
    return made, site_of(made, chosen)


def exactly(made: Network, place: Site, matrix: Tensor) -> float:
    """The loss with this matrix in the network, which is then as before."""
    kept = {key: value.clone() for key, value in place.layer.tensors.items()}
    place.layer.write(place.layer.from_matrix(matrix))
    loss = made.loss()
    place.layer.write(kept)
    return loss


def whole(place: Site) -> float:
    """The loss of the candidate that changes all units, to what they are."""
    every = torch.arange(len(place.units))
    return place.losses(every[None], place.units[None]).item()


@pytest.mark.parametrize("name", PLACES)
@torch.no_grad()
def test_candidates_have_the_networks_losses(name: str) -> None:
    made, place = site(name)
    assert whole(place) == pytest.approx(made.loss(), abs=1e-13)
    candidates = torch.randn(3, *place.matrix.shape, dtype=torch.float64)
    rows = torch.tensor([[0, 4], [5, 1], [2, 3]])
    units = torch.stack([place.outputs(m)[r] for m, r in zip(candidates, rows, strict=True)])
    expected = []
    for matrix, chosen in zip(candidates, rows, strict=True):
        changed = place.matrix.clone()
        changed[chosen] = matrix[chosen]
        expected.append(exactly(made, place, changed))
    assert place.losses(rows, units).tolist() == pytest.approx(expected, abs=1e-12)
    assert place.at(rows[1])(units[1:2]).tolist() == pytest.approx(expected[1:2], abs=1e-12)


@pytest.mark.parametrize("name", PLACES)
@torch.no_grad()
def test_what_is_written_is_in_force_and_stays(name: str) -> None:
    made, place = site(name)
    matrix = torch.randn_like(place.matrix)
    for rows in (torch.tensor([1, 3]), torch.tensor([0]), torch.tensor([3])):
        place.write(rows, place.outputs(matrix)[rows])
        place.matrix[rows] = matrix[rows]
        matrix = matrix + 1
    expected = exactly(made, place, place.matrix)
    assert whole(place) == pytest.approx(expected, abs=1e-12)
    assert abs(made.loss() - expected) > 1e-3, "not in the network yet"
    place.commit()
    assert made.loss() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("name", PLACES)
@torch.no_grad()
def test_features_are_what_entries_multiply(name: str) -> None:
    _, place = site(name)
    count, columns = place.matrix.shape
    rows = torch.arange(count).repeat_interleave(columns)
    features = place.features(rows, torch.arange(columns).repeat(count))
    for row, column, feature in zip(
        rows, torch.arange(columns).repeat(count), features, strict=True
    ):
        moved = place.matrix.clone()
        moved[row, column] += 2.0
        expected = place.outputs(moved) - place.units
        torch.testing.assert_close(2 * feature, expected[row], rtol=0, atol=1e-12)
        expected[row] = 0
        assert expected.abs().max() < 1e-12, "no other unit moves"
