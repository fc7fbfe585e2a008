"""RegMean against least squares, and the limits that are known."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergelib.procedures.regmean import layer_grams

State = dict[str, Tensor]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.BatchNorm1d(5), nn.Linear(5, 3))


class Case:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = network()
        self.pretrained = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.experts = {
            task: {
                k: v + 0.5 * torch.randn(v.shape) if "running" not in k and v.dim() else v + 1
                for k, v in self.pretrained.items()
            }
            for task in ("a", "b", "c")
        }
        self.data = {task: torch.randn(40, 4) for task in self.experts}

    def merge(self, **options: Any) -> State:
        return ml.adapt(
            "regmean",
            options.pop("experts", self.experts),
            pretrained=self.pretrained,
            model=self.model,
            data=options.pop("data", self.data),
            **options,
        ).state


@pytest.fixture
def case() -> Case:
    return Case()


def inputs_of(case: Case, task: str) -> dict[str, Tensor]:
    """What both linear layers of an expert get, computed layer by layer."""
    model = network().eval()
    model.load_state_dict(case.experts[task])
    with torch.no_grad():
        return {"0.weight": case.data[task], "3.weight": model[:3](case.data[task])}


def test_without_shrinking_it_is_least_squares(case: Case) -> None:
    merged = case.merge(off_diagonal=1.0, ridge=0.0)
    for key in ("0.weight", "3.weight"):
        x = torch.cat([inputs_of(case, task)[key] for task in case.experts]).double()
        y = torch.cat(
            [inputs_of(case, task)[key] @ each[key].T for task, each in case.experts.items()]
        )
        best = torch.linalg.lstsq(x, y.double()).solution.T
        torch.testing.assert_close(merged[key].double(), best, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["Linear", "Conv1D"])
def test_a_layer_by_hand_alone_and_within_a_model(kind: str, nested: bool) -> None:
    """Task a only uses the first input and task b the second, so that no weight is a compromise."""
    if kind == "Linear":
        layer: nn.Module = nn.Linear(2, 1, bias=False)
    else:
        layer = pytest.importorskip("transformers.pytorch_utils").Conv1D(1, 2)  # stores (in, out)
    model, prefix = (nn.Sequential(layer), "0.") if nested else (layer, "")
    base = {key: torch.zeros_like(value) for key, value in model.state_dict().items()}
    shape = base[f"{prefix}weight"].shape
    rows = {"a": torch.tensor([2.0, 5.0]), "b": torch.tensor([7.0, 3.0])}
    experts = {task: {**base, f"{prefix}weight": row.view(shape)} for task, row in rows.items()}
    merged = ml.adapt(
        "regmean",
        experts,
        pretrained=base,
        model=model,
        data={"a": torch.tensor([[1.0, 0.0]]), "b": torch.tensor([[0.0, 1.0]])},
    )
    weight = merged.state[f"{prefix}weight"].flatten().tolist()
    assert weight == pytest.approx([2.0, 3.0], abs=1e-4)


def test_without_off_diagonals_it_is_a_weighted_mean(case: Case) -> None:
    merged = case.merge(off_diagonal=0.0, ridge=0.0)
    weights = {t: inputs_of(case, t)["3.weight"].square().sum(0) for t in case.experts}
    expected = sum(weights[t] * case.experts[t]["3.weight"] for t in weights)
    expected = expected / torch.stack(list(weights.values())).sum(0)
    torch.testing.assert_close(merged["3.weight"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("off_diagonal", [0.0, 0.9, 1.0])
def test_equal_experts_give_themselves(case: Case, off_diagonal: float) -> None:
    same = dict.fromkeys(case.experts, case.experts["a"])
    merged = case.merge(experts=same, off_diagonal=off_diagonal, ridge=0.0)
    for key in ("0.weight", "3.weight"):
        torch.testing.assert_close(merged[key], same["a"][key], rtol=1e-4, atol=1e-5)


def test_what_is_no_linear_layer_is_averaged(case: Case) -> None:
    merged, average = case.merge(), ml.merge("average", case.experts)
    for key in ("0.bias", "2.weight", "2.running_mean", "2.running_var", "3.bias"):
        torch.testing.assert_close(merged[key], average[key])
    assert merged["2.num_batches_tracked"] == case.pretrained["2.num_batches_tracked"]
    assert merged.keys() == case.pretrained.keys()


def test_batches_do_not_matter(case: Case) -> None:
    few, many = (case.merge(batch_size=size) for size in (7, 100))
    for key in few:
        torch.testing.assert_close(few[key], many[key], rtol=1e-4, atol=1e-5)


def test_grams_of_positions(case: Case) -> None:
    model, x = nn.Sequential(nn.Linear(4, 2)), torch.randn(6, 3, 4)
    gram = layer_grams(model, model.state_dict(), x, batch_size=4)["0.weight"]
    rows = x.flatten(0, 1).double()
    torch.testing.assert_close(gram, rows.T @ rows / 18, rtol=1e-5, atol=1e-6)


def test_few_inputs_are_enough_with_a_ridge(case: Case) -> None:
    data = {task: inputs[:1] for task, inputs in case.data.items()}
    merged = case.merge(data=data, off_diagonal=1.0, ridge=1e-3)
    assert all(torch.isfinite(value).all() for value in merged.values())


def test_statistics_from_elsewhere_give_the_same(case: Case, tmp_path: Path) -> None:
    files = {}
    for task, inputs in case.data.items():
        files[task] = tmp_path / f"{task}.safetensors"
        ml.save_state_dict(layer_grams(case.model, case.experts[task], inputs), files[task])
    direct = case.merge()
    elsewhere = ml.adapt("regmean", case.experts, pretrained=case.pretrained, statistics=files)
    assert all(torch.equal(elsewhere.state[key], direct[key]) for key in direct)
    fewer = {key: gram for key, gram in ml.load_state_dict(files["b"]).items() if key[0] == "0"}
    for wrong, message in (
        (
            {"a": {"0.weight": torch.eye(3)}},
            r"has shape \(3, 3\), expected \(4, 4\) for expert 'a'",
        ),
        ({"a": {"9.weight": torch.eye(3)}}, "Gram matrix of '9.weight', which expert 'a' lacks"),
        ({"b": fewer}, "Gram matrices of 'b' lacks key '3.weight'"),
    ):
        with pytest.raises(ValueError, match=message):
            case.merge(statistics=wrong)


def test_bad_input(case: Case) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"data": {}}, "no data"),
        ({"data": {"a": case.data["a"]}}, "task 'b' has no data; there are: a"),
        ({"data": {**case.data, "z": case.data["a"]}}, "task 'z' has no expert"),
        ({"off_diagonal": 1.5}, "off_diagonal is 1.5, expected 0..1"),
        ({"ridge": -1.0}, "ridge is -1.0, expected at least 0"),
        (
            {"data": {**case.data, "b": case.data["b"] * torch.inf}},
            "inputs of task 'b' holds NaN or Inf",
        ),
    ]
    for options, message in bad:
        with pytest.raises(ValueError, match=message):
            case.merge(**options)
    assert "unlabelled inputs of every task" in ml.methods()["needs"]["regmean"]


def plusplus(case: Case, **options: Any) -> State:
    options = {"data": case.data, "off_diagonal": 1.0, "ridge": 0.0, **options}
    how: dict[str, Any] = {"pretrained": case.pretrained, "model": case.model}
    return ml.adapt("regmean_plusplus", case.experts, **how, **options).state


def test_plusplus_by_a_loop_over_layers(case: Case) -> None:
    """Each layer solves least squares on what the merged layers before it return."""
    merged = plusplus(case)
    model: Any = network().eval()
    model.load_state_dict(ml.merge("average", case.experts))
    with torch.no_grad():
        for place in (0, 3):
            key = f"{place}.weight"
            inputs = {task: model[:place](x).double() for task, x in case.data.items()}
            targets = [inputs[t] @ case.experts[t][key].double().T for t in inputs]
            both = torch.cat([*inputs.values()]), torch.cat(targets)
            best = torch.linalg.lstsq(*both).solution.T
            model[place].weight.copy_(best)
            torch.testing.assert_close(merged[key].double(), best, rtol=1e-4, atol=1e-5)
    regmean = case.merge(off_diagonal=1.0, ridge=0.0)
    assert torch.equal(merged["0.weight"], regmean["0.weight"]), "which has the same inputs"
    assert not torch.allclose(merged["3.weight"], regmean["3.weight"], atol=1e-3)
    for key in merged.keys() - {"0.weight", "3.weight"}:
        assert torch.equal(merged[key], regmean[key])


class Backwards(nn.Module):
    """Layers that run in another order than they are registered in."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(5, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.last(torch.tanh(self.first(x)))
        return last


def test_plusplus_follows_the_order_of_execution(case: Case) -> None:
    forwards = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    names = {"first.weight": "0.weight", "first.bias": "0.bias"}
    names |= {"last.weight": "2.weight", "last.bias": "2.bias"}
    experts = {
        task: {k: torch.randn(v.shape) for k, v in forwards.state_dict().items()} for task in "abc"
    }
    renamed = {t: {new: e[old] for new, old in names.items()} for t, e in experts.items()}
    how: dict[str, Any] = {"data": case.data}
    plain = forwards.state_dict()
    one = ml.adapt("regmean_plusplus", experts, pretrained=plain, model=forwards, **how).state
    base = {new: plain[old] for new, old in names.items()}
    other = ml.adapt("regmean_plusplus", renamed, pretrained=base, model=Backwards(), **how).state
    assert all(torch.equal(other[new], one[old]) for new, old in names.items())


@pytest.mark.parametrize("off_diagonal", [0.3, 1.0])
def test_plusplus_is_regmean_for_a_single_layer(off_diagonal: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    base = {k: v.clone() for k, v in model.state_dict().items()}
    experts = {t: {k: torch.randn(v.shape) for k, v in base.items()} for t in ("a", "b")}
    how: dict[str, Any] = {"pretrained": base, "model": model, "off_diagonal": off_diagonal}
    how["data"] = {task: torch.randn(20, 4) for task in experts}
    one, other = (ml.adapt(f"regmean{end}", experts, **how).state for end in ("", "_plusplus"))
    assert all(torch.equal(one[key], other[key]) for key in base)


def test_plusplus_gives_equal_experts_themselves_and_takes_no_statistics(case: Case) -> None:
    case.experts = dict.fromkeys(case.experts, case.experts["a"])
    merged = plusplus(case)
    for key in ("0.weight", "3.weight"):
        torch.testing.assert_close(merged[key], case.experts["a"][key], rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError, match="regmean_plusplus does not accept statistics="):
        plusplus(case, statistics={"a": {}})
    with pytest.raises(ValueError, match="task 'b' has no data"):
        plusplus(case, data={"a": case.data["a"]})
