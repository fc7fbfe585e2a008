"""Models, heads and inputs of 16 bits, or of precisions that differ, are adapted in float32."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

import mergelib as ml
from tests.library.procedures.conftest import METHODS, Case

SINGLE, SHORT = torch.float32, torch.bfloat16
CASES = [kinds for kinds in product((SINGLE, SHORT), repeat=3) if kinds != (SINGLE,) * 3]
LAYERS = ("esm", "regmean", "regmean_plusplus")  # which need no gradient


def cast(state: Any, kind: torch.dtype) -> Any:
    return {key: x.to(kind) if x.is_floating_point() else x for key, x in state.items()}


def case_of(model: torch.dtype, head: torch.dtype, inputs: torch.dtype) -> Case:
    """The case with weights and inputs that bfloat16 holds exactly, in these precisions."""
    case = Case()
    case.model.to(model)
    case.pretrained = cast(cast(case.pretrained, SHORT), model)
    case.experts = {k: cast(cast(own, SHORT), model) for k, own in case.experts.items()}
    case.heads = {task: own.to(SHORT).to(head) for task, own in case.heads.items()}
    case.data = {task: (x.to(SHORT).to(inputs), y) for task, (x, y) in case.data.items()}
    return case


@pytest.mark.parametrize("kinds", CASES, ids=str)
@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"uniform_soup"}))
def test_every_combination_is_computed_in_float32(
    method: str, kinds: tuple[torch.dtype, torch.dtype, torch.dtype]
) -> None:
    model, head, inputs = kinds
    case = case_of(*kinds)
    made = case.adapt(method, **METHODS[method])
    known = case_of(SINGLE, SINGLE, SINGLE).adapt(method, **METHODS[method])
    alone = method in LAYERS and model == inputs == SHORT  # no head runs, and the model as it is
    for key, tensor in known.state.items():
        rounded = tensor.to(case.pretrained[key].dtype)
        assert made.state[key].dtype == rounded.dtype
        near = 0.05 if alone else 0.0
        torch.testing.assert_close(made.state[key], rounded, rtol=near, atol=near)
    for task, own in known.heads.items():
        assert {p.dtype for p in made.heads[task].parameters()} == {head}
        torch.testing.assert_close(
            cast(made.heads[task].state_dict(), SINGLE),
            cast(cast(own.state_dict(), head), SINGLE),
            rtol=0.0,
            atol=0.0,
        )


def test_arguments_keep_their_precision() -> None:
    case = case_of(SHORT, SHORT, SINGLE)
    case.adapt("symerge", steps=1)
    modules = [case.model, *case.heads.values()]
    assert {p.dtype for module in modules for p in module.parameters()} == {SHORT}
    assert {x.dtype for x, _ in case.data.values()} == {SINGLE}


def test_tied_weights_of_16_bits_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.out.weight = self.into.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.out(self.into(x))
            return logits

    torch.manual_seed(0)
    base, experts = Tied().bfloat16(), {"a": Tied().bfloat16(), "b": Tied().bfloat16()}
    data = {task: torch.randint(5, (8,)) for task in experts}
    made = ml.adapt("adamerging", experts, pretrained=base, data=data, steps=1).state
    assert made["into.weight"].dtype == SHORT
    assert made["into.weight"].data_ptr() == made["out.weight"].data_ptr()


def test_inputs_of_float64_and_what_a_transform_returns() -> None:
    case = case_of(SINGLE, SINGLE, torch.float64)
    known = case_of(SINGLE, SINGLE, SINGLE).adapt("adamerging", steps=2).state
    for options in ({}, {"transform": lambda x: x.half()}):
        made = case.adapt("adamerging", steps=2, **options).state
        torch.testing.assert_close(made["first.weight"], known["first.weight"], rtol=0, atol=1e-3)


def test_a_head_that_does_not_fit_is_told_once() -> None:
    case = case_of(SHORT, SHORT, SINGLE)
    case.heads["a"] = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="the model with the head does not run") as caught:
        case.adapt("adamerging", steps=1)
    assert isinstance(caught.value.__context__, RuntimeError)
    assert caught.value.__context__.__context__ is None
