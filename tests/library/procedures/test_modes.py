"""Models and heads run in evaluation mode everywhere, and come back in the modes they were in."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergelib.align.activations import activation_matching
from mergelib.evaluation.loops import evaluate
from mergelib.evaluation.tasks import Split, Suite, Task
from mergelib.problems.calling import evaluating
from mergelib.problems.examples import Examples
from mergelib.problems.problem import Problem
from mergelib.procedures.fisher import diagonal_fisher
from tests.library.procedures.conftest import METHODS

State = dict[str, Tensor]


def network() -> nn.Sequential:
    """Parts of a model in different modes, as of one whose trunk is frozen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 5))
    model.train()
    model[1].eval()
    return model


def noisy_head() -> nn.Module:
    """Dropout and BatchNorm in training mode: another answer each time, or an error for one row."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(5), nn.Linear(5, 3)).train()


def modes(*modules: nn.Module) -> list[bool]:
    return [part.training for module in modules for part in module.modules()]


class Case:
    def __init__(self) -> None:
        self.model, self.heads = network(), {"a": noisy_head(), "b": noisy_head()}
        generator = torch.Generator().manual_seed(2)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        self.base = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.experts = {
            name: {key: value + 0.1 * draw(*value.shape) for key, value in self.base.items()}
            for name in "ab"
        }
        self.data = {name: (draw(9, 4), torch.arange(9) % 3) for name in "ab"}

    @property
    def problem(self) -> Problem:
        data = {name: Examples(*pair) for name, pair in self.data.items()}
        return Problem(self.experts, self.base, self.model, data, self.heads)

    def adapt(self, method: str, **options: Any) -> Any:
        return ml.adapt(
            method,
            self.experts,
            pretrained=self.base,
            model=self.model,
            heads=self.heads,
            data=self.data,
            **METHODS[method],
            **options,
        )

    def suite(self) -> Suite:
        parts = {name: Split(*pair) for name, pair in self.data.items()}
        tasks = {n: Task(n, ("x", "y", "z"), p, p, p) for n, p in parts.items()}
        return Suite("modes", 0, tasks, {})

    def evaluate(self, suite: Suite | None = None, **options: Any) -> Any:
        return evaluate(self.model, self.base, self.heads, suite or self.suite(), **options)


def same(one: State, other: State) -> bool:
    return all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("method", METHODS)
def test_heads_in_training_mode_change_no_result(method: str) -> None:
    noisy, still = Case(), Case()
    for head in still.heads.values():
        head.eval()
    statistics = {name: copy.deepcopy(head.state_dict()) for name, head in noisy.heads.items()}
    before = modes(noisy.model, *noisy.heads.values())
    assert same(noisy.adapt(method).state, still.adapt(method).state)
    assert modes(noisy.model, *noisy.heads.values()) == before
    assert len({*before}) == 2, "a case worth testing"
    for name, head in noisy.heads.items():
        assert same(head.state_dict(), statistics[name]), "a BatchNorm in training mode learns"


CALLS: dict[str, Callable[[Case], Any]] = {
    "evaluate": Case.evaluate,
    "diagonal_fisher": lambda case: diagonal_fisher(
        case.model, case.base, case.heads["a"], *case.data["a"]
    ),
    "activation_matching": lambda case: activation_matching(
        case.experts["a"], case.experts["b"], case.model, case.data["a"][0]
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_repeats_and_leaves_modes_alone(call: str) -> None:
    if call == "activation_matching":
        pytest.importorskip("scipy")
    case = Case()
    before = modes(case.model, *case.heads.values())
    first, second = (CALLS[call](case) for _ in range(2))
    if call == "evaluate":
        assert first.equals(second)
    elif call == "diagonal_fisher":
        assert same(first, second)
    assert modes(case.model, *case.heads.values()) == before


def test_evaluate_is_the_plain_pass_in_evaluation_mode() -> None:
    case = Case()
    table = case.evaluate().set_index("task")
    model, heads = copy.deepcopy(case.model).eval(), copy.deepcopy(case.heads)
    for task, (inputs, labels) in case.data.items():
        logits = heads[task].eval()(model(inputs))
        assert table["correct"][task] == int((logits.argmax(1) == labels).sum())


class Broken(nn.Module):
    """It passes the check of two examples before a procedure begins."""

    def forward(self, inputs: Tensor) -> Tensor:
        if len(inputs) > 2:
            raise RuntimeError("broken")
        return inputs


@pytest.mark.parametrize("method", ["evaluate", *sorted(METHODS.keys() - {"uniform_soup"})])
def test_modes_come_back_after_an_error(method: str) -> None:
    case = Case()
    case.heads["b"] = nn.Sequential(noisy_head(), Broken())
    if method in ("esm", "regmean", "regmean_plusplus", "surgery"):  # which do not call heads
        case.model.append(Broken())
    before = modes(case.model, *case.heads.values())
    with pytest.raises(RuntimeError, match="broken"):
        case.evaluate() if method == "evaluate" else case.adapt(method)
    assert modes(case.model, *case.heads.values()) == before


def test_parts_that_two_models_share() -> None:
    shared = nn.Dropout().eval()
    one, other = nn.Sequential(shared).train(), nn.Sequential(shared).eval()
    before = modes(one, other)
    with evaluating(one, other):
        assert not any(modes(one, other))
    assert modes(one, other) == before


def test_a_head_stays_where_it_lies() -> None:
    """On the meta device nothing can be judged, but a head that is moved there would be lost."""
    case = Case()
    with pytest.raises(RuntimeError):
        case.evaluate(device="meta")
    assert {p.device.type for head in case.heads.values() for p in head.parameters()} == {"cpu"}
