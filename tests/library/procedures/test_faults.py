"""Procedures leave what they are given alone, and return nothing that is silently wrong.

A model, head or transform may work in place, count, draw or be interrupted; data, heads and
learning rates may be wrong; gradients may be switched off.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from tests.library.procedures.conftest import METHODS

LEARNING = sorted(METHODS.keys() - {"uniform_soup"})
PREDICTING = sorted(METHODS.keys() - {"uniform_soup", "esm", "regmean", "regmean_plusplus"})
every = pytest.mark.parametrize("method", METHODS)
learning = pytest.mark.parametrize("method", LEARNING)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.drop, self.second = nn.Dropout(0.3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.second(torch.relu(self.drop(self.norm(self.first(x)))))
        return output


class Halving(Network):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 0.5)


class HalvingInPlace(Network):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(0.5))


class Counting(Network):
    """A buffer that changes in evaluation mode, too, as that of a running codebook."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("calls").add_(1)
        return super().forward(x)


class Drawing(Network):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.01 * torch.randn(5)


class Negating(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(-x)


class NegatingInPlace(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.neg_())


class Case:
    """Two experts as modules, whose parts have different modes and some of which are frozen."""

    def __init__(
        self, kind: type[nn.Module] = Network, head: Callable[[int, int], nn.Module] = nn.Linear
    ) -> None:
        torch.manual_seed(0)
        model: Any = kind()
        model.second.weight.requires_grad_(False)
        model.norm.eval()
        self.model: nn.Module = model
        self.experts: Any = {name: copy.deepcopy(model) for name in "ab"}
        for expert in self.experts.values():
            for parameter in expert.parameters():
                parameter.data += 0.2 * torch.randn(parameter.shape)
        self.heads: Any = {task: head(5, 3) for task in "ab"}
        self.data: Any = {task: (torch.randn(20, 6), torch.randint(3, (20,))) for task in "ab"}

    def adapt(self, method: str, **options: Any) -> Any:
        given: Any = {"pretrained": self.model, "model": self.model}
        given |= {"heads": self.heads, "data": self.data, **METHODS[method], **options}
        return ml.adapt(method, self.experts, **given)

    def __call__(self) -> list[Any]:
        """Everything that a caller would not expect to change."""
        modules = [self.model, *self.heads.values()]
        modules += [e for e in self.experts.values() if isinstance(e, nn.Module)]
        parts = [part for module in modules for part in module.modules()]
        tensors = [t for module in modules for t in module.state_dict().values()]
        tensors += [t for pair in self.data.values() for t in pair]
        parameters = [p for module in modules for p in module.parameters()]
        return [
            torch.get_rng_state().tolist(),
            torch.is_grad_enabled(),
            [(id(p), p.requires_grad, p.grad) for p in parameters],
            [(part.training, len(part._forward_pre_hooks)) for part in parts],
            [tensor.tolist() for tensor in tensors],
        ]


def same(one: Any, other: Any) -> bool:
    heads = [p for made in (one, other) for h in made.heads.values() for p in h.parameters()]
    pairs = zip(heads[: len(heads) // 2], heads[len(heads) // 2 :], strict=True)
    equal = all(torch.equal(*pair) for pair in pairs)
    return equal and all(torch.equal(one.state[key], other.state[key]) for key in one.state)


@every
@pytest.mark.parametrize("kind", [Network, HalvingInPlace, Counting, Drawing])
def test_nothing_is_changed(method: str, kind: type[nn.Module]) -> None:
    case = Case(kind)
    before = case()
    first = case.adapt(method)
    assert case() == before
    assert same(first, case.adapt(method)), "and it repeats"
    held = [t.untyped_storage().data_ptr() for m in case.experts.values() for t in m.parameters()]
    assert not {t.untyped_storage().data_ptr() for t in first.state.values()} & {*held}


@learning
def test_work_in_place_changes_no_result(method: str) -> None:
    """Of a model on its inputs, a transform on the data and a head on features."""
    halved = Case(Halving).adapt(method)
    assert same(halved, Case(HalvingInPlace).adapt(method))
    case = Case()
    before = case()
    assert same(case.adapt(method, transform=lambda x: x.mul_(0.5)), halved)
    assert case() == before
    if method != "surgery":  # whose result has the head
        negated = Case(head=Negating).adapt(method)
        assert same(negated, Case(head=NegatingInPlace).adapt(method))


@every
@pytest.mark.parametrize("within", [torch.no_grad, torch.inference_mode])
def test_gradients_that_are_switched_off(method: str, within: Callable[[], Any]) -> None:
    expected, case = Case().adapt(method), Case()
    with within():
        assert same(case.adapt(method), expected)


@learning
@pytest.mark.parametrize("call", [3, 4, 6])
def test_an_interrupted_run(method: str, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in some pass through the network."""
    case, calls, forward = Case(), iter(range(1, 99)), Network.forward

    def interrupted(self: Network, x: Tensor) -> Tensor:
        if next(calls) == call:
            raise KeyboardInterrupt
        return forward(self, x)

    before = case()
    monkeypatch.setattr(Network, "forward", interrupted)
    try:
        case.adapt(method)
    except KeyboardInterrupt:
        pass
    else:
        assert next(calls) <= call, "a method of fewer passes"
    assert case() == before


def test_the_result_is_the_callers_own() -> None:
    """It shares no memory with inputs, and no graph with parameters."""
    for method, options in (("surgery", {}), ("frank_wolfe", {"steps": 0}), ("cogram", {})):
        case = Case()
        start = case.experts["a"]
        made = case.adapt(method, start=start, **options)
        before = case()
        for tensor in made.state.values():
            tensor.zero_()
        assert case() == before, method
    for method in METHODS:
        case = Case()
        for name, expert in case.experts.items():
            case.experts[name] = dict(expert.named_parameters()) | dict(expert.named_buffers())
        assert not any(t.requires_grad for t in case.adapt(method).state.values())


def test_ties_of_a_result_that_is_copied() -> None:
    case = Case()
    case.model.register_parameter("again", case.model.get_parameter("first.weight"))
    case.experts = dict.fromkeys("ab", case.model)
    made = case.adapt("frank_wolfe", steps=0).state
    assert made["again"].data_ptr() == made["first.weight"].data_ptr()


# Refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", PREDICTING)
def test_heads_that_hold_nan_or_are_no_modules(method: str) -> None:
    case = Case()
    case.heads["b"].bias.data[1] = torch.inf
    with pytest.raises(ValueError, match="'bias' of the head of task 'b' holds Inf in 1 of 3"):
        case.adapt(method)
    for head in (None, lambda x: x, nn.Linear(5, 3).state_dict()):
        case.heads["b"] = head
        with pytest.raises(TypeError, match=r"of task 'b' is a .* expected a torch\.nn"):
            ml.adapt(method, case.experts, pretrained=case.model, data=case.data, heads=case.heads)


class Pair(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class Pooled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mean(0, keepdim=True)


@pytest.mark.parametrize("method", PREDICTING)
@pytest.mark.parametrize(
    ("head", "message"),
    [
        (
            nn.Linear(4, 3),
            r"with the head does not run on inputs of task 'b' of shape \(2, 6",
        ),
        (Pair(5, 3), "head returns tuple for 2 examples of task 'b', expected a tensor"),
        (Pooled(5, 3), r"head returns \(1, 3\) for 2 examples of task 'b', expected a tensor"),
    ],
)
def test_heads_that_do_not_fit(method: str, head: nn.Module, message: str) -> None:
    case = Case()
    case.heads["b"] = head
    before = case()
    with pytest.raises(ValueError, match=message):
        case.adapt(method)
    assert case() == before


@pytest.mark.parametrize("method", sorted({*PREDICTING} - {"surgery", "cogram"}))
def test_the_prediction_of_one_class_teaches_nothing(method: str) -> None:
    case = Case()
    for head in (nn.Linear(5, 1), nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))):
        case.heads["b"] = head
        with pytest.raises(ValueError, match=r"of task 'b', expected logits of at least tw"):
            case.adapt(method)


@learning
@pytest.mark.parametrize(
    "inputs", [torch.rand(9, 7), torch.rand(9), torch.rand(9, 1, 6), torch.ones(9, 6).byte()]
)
def test_inputs_that_the_model_does_not_take(method: str, inputs: Tensor) -> None:
    case = Case()
    case.data["b"] = inputs, torch.arange(9) % 3
    advice = "pass transform=" if inputs.dtype == torch.uint8 else ""
    with pytest.raises(ValueError, match=rf"does not run on inputs of task 'b'.*{advice}"):
        case.adapt(method)


X, Y = torch.rand(8, 6), torch.arange(8) % 3


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([(X, Y[:7]), (X[:7], Y)], "task 'b' has 8 inputs and 7 labels"),
        ([{"x": X, "y": X[:7]}, {"x": X, "y": X}], "task 'b' has 8 inputs and 7 'y'"),
        ([(X, Y), (torch.rand(4, 7), Y[:4])], r"'b' has batches .*, from \(8, 6\) to \(4, 7\)"),
        ([X, Y], r"cannot be joined, from \(8, 6\) to \(8,\).* labels as a tuple"),
        ([(X, Y), (X / 0, Y)], "inputs of task 'b' holds NaN or Inf"),
        ([], "task 'b' has no inputs"),
    ],
)
def test_batches_of_a_loader(batches: list[Any], message: str) -> None:
    """Labels that are missing in one batch and too many in another would move to other inputs."""
    case = Case()
    with pytest.raises(ValueError, match=message):
        case.adapt("multitask", data={**case.data, "b": batches})


def test_a_loader_that_fails_is_heard() -> None:
    def failing() -> Any:
        yield X, Y
        raise OSError("the disk is gone")

    case = Case()
    before = case()
    with pytest.raises(OSError, match="the disk is gone"):
        case.adapt("adamerging", data={"a": failing()})
    assert case() == before


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("adamerging", {}, "the loss of task 'a' became nan.*or lower learning_rate"),
        ("adarank", {}, "the loss of task 'a' became nan"),
        ("multitask", {}, "the loss of task 'a' became nan"),
        ("surgery", {"steps": 3}, "the result of surgery holds NaN or Inf in 'a: 0.down.weight'"),
    ],
)
def test_a_learning_rate_that_is_too_high(method: str, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case().adapt(method, learning_rate=1e20, **options)


def test_a_last_step_that_fails() -> None:
    """No loss is computed after it."""
    with pytest.raises(ValueError, match="the result of multitask holds NaN or Inf in 'first"):
        Case().adapt("multitask", steps=1, learning_rate=3e37, weight_decay=20.0)


def test_a_result_beyond_float16() -> None:
    case = Case()
    for module in (case.model, *case.experts.values()):
        module.half()
    with pytest.raises(ValueError, match=r"holds NaN or Inf in 'first.*pass the models in float32"):
        case.adapt("multitask", steps=1, learning_rate=1e5)


def test_another_default_dtype() -> None:
    expected = {method: Case().adapt(method) for method in METHODS}
    case = Case()
    torch.set_default_dtype(torch.float64)
    try:
        made = {method: case.adapt(method) for method in METHODS}
    finally:
        torch.set_default_dtype(torch.float32)
    for method in METHODS:
        for key, tensor in expected[method].state.items():
            torch.testing.assert_close(made[method].state[key], tensor)


def test_one_output_is_enough_to_regress() -> None:
    case = Case(head=lambda width, _: nn.Linear(width, 1))
    case.data = {task: (x, torch.randn(20, 1)) for task, (x, _) in case.data.items()}
    made = case.adapt("cogram", loss="mse")
    assert all(torch.isfinite(tensor).all() for tensor in made.state.values())
