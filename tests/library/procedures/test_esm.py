"""ESM by hand, by principal components of outputs, and the limits that are known."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergelib.numerics.linalg import low_rank
from mergelib.procedures.esm import essential_part, layer_factors
from mergelib.procedures.regmean import layer_grams

State = dict[str, Tensor]


def network() -> nn.Sequential:
    """A layer that widens, two that are alike, and one that narrows."""
    sizes = (6, 10, 10, 10, 4)
    layers = [nn.Sequential(nn.Linear(m, n), nn.Tanh()) for m, n in pairwise(sizes)]
    return nn.Sequential(*layers)


class Case:
    def __init__(self, names: str = "abc") -> None:
        torch.manual_seed(0)
        self.model = network()
        self.pretrained = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.experts = {
            name: {k: v + 0.3 * torch.randn(v.shape) for k, v in self.pretrained.items()}
            for name in names
        }
        self.data = {name: torch.randn(30, 6) for name in names}

    def merge(self, **options: Any) -> State:
        given = {"pretrained": self.pretrained, "model": self.model, "data": self.data, **options}
        return ml.adapt("esm", given.pop("experts", self.experts), **given).state

    def outputs(self, name: str) -> State:
        """How each layer's weights change its outputs in an expert, ``(rows, out)``."""
        model: Any = network().eval()
        model.load_state_dict(self.experts[name])
        x, changes = self.data[name], {}
        with torch.no_grad():
            for i, layer in enumerate(model):
                key = f"{i}.0.weight"
                task = self.experts[name][key] - self.pretrained[key]
                changes[key] = x.double() @ task.double().T
                x = layer(x)
        return changes


@pytest.fixture
def case() -> Case:
    return Case()


def flat(matrix: Tensor) -> Tensor:
    """All nonzero singular values become their mean."""
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    flattened: Tensor = s.mean() * u @ vh
    return flattened


@pytest.mark.parametrize("transposed", [False, True])
def test_a_layer_by_hand(transposed: bool) -> None:
    """Inputs (0, 1) see the second columns: the first output of a changes, the second of b."""
    layer: nn.Module = nn.Linear(2, 2, bias=False)
    if transposed:
        layer = pytest.importorskip("transformers.pytorch_utils").Conv1D(2, 2)
    base = {key: torch.zeros_like(value) for key, value in layer.state_dict().items()}
    tasks = {"a": [[3.0, 4.0], [9.0, 0.0]], "b": [[5.0, 0.0], [-8.0, 6.0]]}
    experts = {}
    for name, task in tasks.items():
        weight = torch.tensor(task)
        experts[name] = {**base, "weight": weight.T.contiguous() if transposed else weight}
    data = {name: torch.tensor([[0.0, 1.0], [0.0, -2.0]]) for name in tasks}
    how: dict[str, Any] = {"pretrained": base, "model": layer, "data": data, "polarise": False}
    merged = ml.adapt("esm", experts, **how).state["weight"]
    # Rows (3, 4) and (-8, 6) are orthogonal, of norms 5 and 10: both become 7.5.
    expected = torch.tensor([[4.5, 6.0], [-6.0, 4.5]])
    torch.testing.assert_close(merged, expected.T if transposed else expected)


@pytest.mark.parametrize("polarise", [False, True])
@pytest.mark.parametrize("names", ["ab", "abc", "abcde"])
def test_by_principal_components_of_the_outputs(polarise: bool, names: str) -> None:
    case, scale = Case(names), 0.7
    merged = case.merge(polarise=polarise, scale=scale)
    outputs = {name: case.outputs(name) for name in names}
    changes = {}
    for key in outputs["a"]:
        base, bases, coordinates = case.pretrained[key].double(), [], []
        rank = max(1, len(base) // len(names))
        for name in names:
            vh = torch.linalg.svd(outputs[name][key], full_matrices=False).Vh
            bases.append(vh[:rank].T)
            coordinates.append(vh[:rank] @ (case.experts[name][key].double() - base))
        if polarise:
            norms = torch.tensor([part.norm() for part in coordinates])
            coordinates = [
                part * (norm / norms.mean()) ** 2
                for part, norm in zip(coordinates, norms, strict=True)
            ]
        stack = torch.cat(coordinates)
        if polarise:
            columns = stack.norm(dim=0)
            stack = stack * (columns / columns.mean()) ** 2
        changes[key] = flat(torch.cat(bases, dim=1)) @ flat(stack)
    alike = [changes[f"{i}.0.weight"].norm() for i in (1, 2)]
    for i, (key, change) in enumerate(changes.items()):
        beta = (change.norm() / (sum(alike) / 2)) ** 2 if polarise and i in (1, 2) else 1.0
        expected = case.pretrained[key] + scale * beta * change
        torch.testing.assert_close(merged[key].double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("out", "rank"), [(7, 3), (3, 2), (9, 6)])
def test_what_is_cut_is_the_sum_of_the_eigenvalues_that_are_cut(out: int, rank: int) -> None:
    torch.manual_seed(0)
    x, task = torch.randn(20, 5).double(), torch.randn(out, 5).double()
    directions, coordinates = essential_part(task, x.T @ x, rank)
    error = (x @ (task - directions @ coordinates).T).square().sum()
    values = torch.linalg.svdvals(x @ task.T).square()
    torch.testing.assert_close(error, values[rank:].sum(), atol=1e-9, rtol=1e-7)
    by_weights = low_rank(task, rank)
    assert error <= (x @ (task - by_weights).T).square().sum() + 1e-9, "SVD is no better"


def test_one_expert_without_polarisation_gives_iso_c() -> None:
    case = Case("a")
    merged = case.merge(polarise=False)
    isotropic = ml.merge("iso_c", case.experts, pretrained=case.pretrained)
    for key, value in isotropic.items():
        torch.testing.assert_close(merged[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:a and b and c are the pretrained model")
def test_experts_that_change_nothing_have_no_say(case: Case) -> None:
    same = dict.fromkeys(case.experts, case.pretrained)
    for key, value in case.merge(experts=same).items():
        torch.testing.assert_close(value, case.pretrained[key])
    # Only expert a changes the first layer: the ranks count three experts, the directions one.
    key = "0.0.weight"
    for name in ("b", "c"):
        case.experts[name] = {**case.experts[name], key: case.pretrained[key]}
    outputs = case.outputs("a")[key]
    base = case.pretrained[key].double()
    vh = torch.linalg.svd(outputs).Vh[:3]
    change = vh.T @ flat(vh @ (case.experts["a"][key].double() - base))
    merged = case.merge(polarise=False)[key].double()
    torch.testing.assert_close(merged, base + change, rtol=1e-4, atol=1e-5)


def test_few_inputs_have_few_directions(case: Case) -> None:
    """Two inputs change outputs in two directions at most, though three may be kept."""
    case.data = {name: x[:2] for name, x in case.data.items()}
    merged = case.merge(polarise=False)
    change = merged["1.0.weight"] - case.pretrained["1.0.weight"]
    assert torch.linalg.matrix_rank(change, rtol=1e-4) == 6
    assert all(torch.isfinite(value).all() for value in merged.values())


def test_the_rest_is_tsv_and_the_average(case: Case) -> None:
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.scores = network(), nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.net(x) @ self.scores
            return outputs

    model = Scores()
    base = {key: value.clone() for key, value in model.state_dict().items()}
    experts = {t: {k: v + torch.randn(v.shape) for k, v in base.items()} for t in case.data}
    how: dict[str, Any] = {"pretrained": base, "scale": 0.4}
    merged = ml.adapt("esm", experts, model=model, data=case.data, **how).state
    tsv = ml.merge("tsv", experts, **how)
    for key in ("scores", "net.0.0.bias"):
        assert torch.equal(merged[key], tsv[key])
    assert not torch.allclose(merged["net.0.0.weight"], tsv["net.0.0.weight"], atol=1e-2)


def test_statistics_from_elsewhere_give_the_same(case: Case) -> None:
    grams = {name: layer_grams(case.model, case.experts[name], x) for name, x in case.data.items()}
    direct = case.merge()
    elsewhere = ml.adapt("esm", case.experts, pretrained=case.pretrained, statistics=grams)
    assert all(torch.equal(elsewhere.state[key], direct[key]) for key in direct)


def test_layers_are_compared_with_those_of_their_kind() -> None:
    sizes = {
        "blocks.0.fc1.weight": (2, 3, 1.0),
        "blocks.1.fc1.weight": (2, 3, 3.0),
        "blocks.0.fc2.weight": (2, 3, 7.0),  # the digit belongs to the name
        "stages.0.fc1.weight": (2, 3, 5.0),
        "stages.1.fc1.weight": (4, 3, 9.0),  # of another shape
    }
    changes = {}
    for key, (rows, columns, norm) in sizes.items():
        matrix = torch.randn(rows, columns).double()
        changes[key] = matrix * norm / matrix.norm()
    factors = layer_factors(changes)
    assert list(factors.values()) == pytest.approx([0.25, 2.25, 1, 1, 1])


def test_without_linear_layers_there_is_an_error() -> None:
    model = nn.Conv1d(2, 2, 1)
    base = model.state_dict()
    expert = {key: value + 1 for key, value in base.items()}
    with pytest.raises(ValueError, match="esm found no linear layer"):
        ml.adapt(
            "esm", {"a": expert}, pretrained=base, model=model, data={"a": torch.rand(3, 2, 4)}
        )


def test_convolutions_are_averaged_with_a_warning() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(9, 2))
    base = {key: value.clone() for key, value in model.state_dict().items()}
    experts = {t: {k: v + torch.randn(v.shape) for k, v in base.items()} for t in "ab"}
    how: dict[str, Any] = {"model": model, "data": {t: torch.rand(5, 2, 4) for t in "ab"}}
    with pytest.warns(UserWarning, match="esm works on matrices, and it leaves to average conv"):
        merged = ml.adapt("esm", experts, pretrained=base, **how).state
    average = ml.merge("average", experts)
    torch.testing.assert_close(merged["0.weight"], average["0.weight"])
