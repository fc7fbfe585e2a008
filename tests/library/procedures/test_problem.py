"""What `adapt` makes of experts, data, heads and settings before a procedure sees them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import mergelib as ml
from mergelib.problems.examples import IGNORED, Examples, join, read_examples
from mergelib.registry import get_method, method_names
from mergelib.statedict import is_kernel

STEPS = {"steps": 2}
METHODS: dict[str, dict[str, Any]] = {
    "adamerging": STEPS,
    "adarank": STEPS,
    "cogram": {},
    "concrete": STEPS,
    "esm": {},
    "fisher": {},
    "frank_wolfe": STEPS,
    "greedy_soup": {},
    "multitask": STEPS,
    "regmean": {},
    "regmean_plusplus": {},
    "surgery": {**STEPS, "rank": 2},
    "symerge": STEPS,
    "uniform_soup": {},
}


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(one.state[key], value) for key, value in other.state.items())


@pytest.mark.parametrize("method", METHODS)
def test_experts_may_be_modules_and_files(case: Any, method: str, tmp_path: Any) -> None:
    plain = case.adapt(method, **METHODS[method])
    modules = {}
    for name, state in {**case.experts, "base": case.pretrained}.items():
        modules[name] = type(case.model)()
        modules[name].load_state_dict(state)
        ml.save_state_dict(state, tmp_path / f"{name}.safetensors")
    files = {name: tmp_path / f"{name}.safetensors" for name in modules}
    for models in (modules, files):
        base = models.pop("base")
        assert same(case.adapt(method, experts=models, pretrained=base, **METHODS[method]), plain)


def test_a_module_to_start_from_is_the_model_too(case: Any) -> None:
    module = type(case.model)()
    module.load_state_dict(case.pretrained)
    made = case.adapt("regmean", pretrained=module, model=None)
    assert same(made, case.adapt("regmean"))


@pytest.mark.parametrize("method", METHODS)
def test_loaders_are_read_once_into_the_same_examples(case: Any, method: str) -> None:
    loaders = {t: DataLoader(TensorDataset(*pair), batch_size=7) for t, pair in case.data.items()}
    made = case.adapt(method, data=loaders, **METHODS[method])
    assert same(made, case.adapt(method, **METHODS[method]))


@pytest.mark.parametrize("method", METHODS)
def test_a_transform_for_each_task(case: Any, method: str) -> None:
    halved = {"a": case.data["a"], "b": (case.data["b"][0] / 2, case.data["b"][1])}
    own = {"a": lambda x: x, "b": lambda x: 2 * x}
    made = case.adapt(method, data=halved, transform=own, **METHODS[method])
    assert same(made, case.adapt(method, **METHODS[method]))


@pytest.mark.parametrize("method", METHODS)
def test_the_device_is_where_it_computes(case: Any, method: str) -> None:
    made = case.adapt(method, device="cpu", **METHODS[method])
    assert same(made, case.adapt(method, **METHODS[method]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("method", METHODS)
def test_the_result_lies_where_the_inputs_lie(case: Any, method: str) -> None:
    made = case.adapt(method, device="cuda", **METHODS[method])
    assert {value.device.type for value in made.state.values()} == {"cpu"}
    plain = case.adapt(method, **METHODS[method])
    for key, value in plain.state.items():
        torch.testing.assert_close(made.state[key], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"multitask"}))
def test_parts_that_are_not_merged_are_the_base(case: Any, method: str) -> None:
    for expert in case.experts.values():
        expert["second.bias"] = torch.randn(7)
    made = case.adapt(method, exclude="second.*", **METHODS[method])
    for key in ("second.weight", "second.bias"):
        assert torch.equal(made.state[key], case.pretrained[key])
    assert not torch.equal(made.state["first.weight"], case.pretrained["first.weight"])
    shorter = case.adapt(method, missing="skip", **METHODS[method])
    assert "second.bias" not in shorter.state
    with pytest.raises(ValueError, match=r"\['second.bias'\] has shape \(7,\)"):
        case.adapt(method, **METHODS[method])


def test_adamerging_takes_what_it_is_told_for_a_matrix() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.Flatten())
    states = [{k: torch.randn_like(v) for k, v in model.state_dict().items()} for _ in range(3)]
    options: dict[str, Any] = {"model": model, "data": {"t": torch.randn(4, 2, 3, 3)}, "steps": 1}
    options |= {"base": "cart", "rank_ratio": 0.5}
    told = ml.adapt("adamerging", states[1:], pretrained=states[0], is_matrix=is_kernel, **options)
    assert list(told.coefficients) == ["0.weight"]
    assert told.state["0.weight"].shape == (6, 2, 3, 3)
    with pytest.raises(ValueError, match="no parameter has a basis of 'cart': see is_matrix"):
        ml.adapt("adamerging", states[1:], pretrained=states[0], **options)


def test_multitask_trains_the_whole_model(case: Any) -> None:
    with pytest.raises(TypeError, match="multitask cannot merge parts of models"):
        case.adapt("multitask", include="first.*")


@pytest.mark.parametrize(
    ("method", "what"), [("regmean", "start"), ("adamerging", "statistics"), ("fisher", "start")]
)
def test_arguments_that_a_procedure_has_no_use_for(case: Any, method: str, what: str) -> None:
    with pytest.raises(TypeError, match=f"{method} does not accept {what}="):
        case.adapt(method, **{what: case.pretrained})


@pytest.mark.parametrize("method", METHODS)
def test_methods_lists_hyperparameters_only(case: Any, method: str) -> None:
    own = get_method(method, "procedure").hyperparameters
    others = {"model", "heads", "data", "transform", "start", "device", "pretrained", "statistics"}
    assert not others & set(own)
    message = f"{method} has no hyperparameter 'rate'; it has: {', '.join(own) or 'none'}"
    with pytest.raises(TypeError, match=message):
        case.adapt(method, rate=1)


def test_every_procedure_is_here() -> None:
    assert sorted(method_names("procedure")) == sorted(METHODS)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("adamerging", "the loss of task 'b' became nan"),
        ("adarank", "the loss of task 'b' became nan"),
        ("concrete", "the loss of task 'b' became nan"),
        ("multitask", "the loss of task 'b' became nan"),
        ("frank_wolfe", "the loss of task 'b' became nan"),
        ("fisher", "the predictions hold NaN or Inf"),
        ("greedy_soup", "the predictions on task 'b' holds NaN or Inf"),
    ],
)
def test_a_head_that_gives_nan(case: Any, method: str, message: str) -> None:
    case.heads["b"] = nn.Sequential(case.heads["b"], Root())
    with pytest.raises(ValueError, match=message):
        case.adapt(method, **METHODS[method])


class Root(nn.Module):
    """NaN where its input is negative."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.sqrt()


@pytest.mark.parametrize("method", METHODS)
def test_weights_that_are_not_finite(case: Any, method: str) -> None:
    case.experts["b"]["first.weight"][0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"b\['first.weight'\] holds Inf in 1 of 48 entries"):
        case.adapt(method, **METHODS[method])


# Examples ----------------------------------------------------------------------------------------


def tokens(*shape: int) -> Tensor:
    return torch.arange(1, 1 + torch.Size(shape).numel()).view(shape)


def test_batches_of_different_lengths_are_padded() -> None:
    loader = [
        {"input_ids": tokens(2, 3), "labels": torch.ones(2, 3).long()},
        {"input_ids": tokens(1, 5), "labels": torch.ones(1, 5).long()},
    ]
    examples = read_examples("t", loader)
    assert isinstance(examples.inputs, dict)
    assert examples.inputs["input_ids"].tolist()[0] == [1, 2, 3, 0, 0]
    assert examples.inputs["attention_mask"].tolist() == [[1, 1, 1, 0, 0]] * 2 + [[1] * 5]
    assert examples.labels is not None
    assert examples.labels[0].tolist() == [1, 1, 1, IGNORED, IGNORED]


def test_labels_that_repeat_the_tokens_move_to_their_predictions() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    batch = {"input_ids": tokens(2, 3), "attention_mask": mask, "labels": tokens(2, 3)}
    labels = read_examples("t", batch).labels
    assert labels is not None
    assert labels.tolist() == [[2, 3, IGNORED], [5, IGNORED, IGNORED]]


def test_examples_by_rows_and_joined() -> None:
    one = Examples({"x": tokens(4, 2)}, torch.arange(4))
    parts = list(one.batches(3))
    assert [len(part) for part in parts] == [3, 1]
    again = join(parts)
    assert isinstance(again.inputs, dict)
    assert again.inputs["x"].equal(tokens(4, 2))
    assert again.labels is not None
    assert again.labels.equal(torch.arange(4))
    chosen = one[torch.tensor([2, 0])]
    assert chosen.labels is not None
    assert chosen.labels.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ("text", TypeError, "data of task 't' are a str"),
        (3, TypeError, "data of task 't' are a int"),
        ([], ValueError, "task 't' has no inputs"),
        ({"labels": tokens(2)}, ValueError, "task 't' has no inputs"),
        ({"x": [1, 2]}, TypeError, "'x' of task 't' is a list"),
        ({"x": tokens(2), "y": tokens(3)}, ValueError, "task 't' has 2 inputs and 3 'y'"),
        ((tokens(2), tokens(3)), ValueError, "task 't' has 2 inputs and 3 labels"),
        ((tokens(2), [1, 2]), TypeError, "labels of task 't' are a list"),
        ((tokens(2),) * 3, ValueError, "batches of 3 parts"),
        ([{"x": tokens(2)}, {"y": tokens(2)}], ValueError, "batches have the inputs x and y"),
        ([{"x": tokens(2)}, tokens(2)], ValueError, "batches have the inputs x and inputs"),
        (torch.tensor([torch.inf]), ValueError, "inputs of task 't' holds NaN or Inf"),
    ],
)
def test_data_that_are_refused(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_examples("t", data)
