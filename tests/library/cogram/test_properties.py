"""What holds for CoGraM on every network, and what it refuses."""

import copy
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mergelib as ml
from tests.library.cogram.cases import (
    ORDERS,
    Case,
    State,
    between,
    both_orders,
    general,
    small,
)
from tests.library.cogram.reference import LEVELS


def descends(case: Case, log: pd.DataFrame, state: State) -> None:
    """What is kept lowers the loss; all of it is what separates the start from the result."""
    kept = log[log["accepted"]]
    assert (kept["after"] < kept["before"]).all()
    first, found = case.loss(case.start), case.loss(state)
    assert log["before"].iloc[0] == pytest.approx(first, abs=1e-9)
    assert (log["before"] <= first + 1e-9).all()
    assert (log["before"].diff().dropna() <= 1e-9).all(), "it never rises on the way"
    assert found <= log["before"].iloc[-1] + 1e-9


@given(
    seed=st.integers(0, 10**6),
    order=st.sampled_from(ORDERS),
    levels=st.sampled_from([("neuron",), ("weight",), ("neuron", "weight")]),
    steepness=st.sampled_from([0.0, 5.5, 1e3]),
    experts=st.integers(2, 3),
)
@settings(max_examples=12)
def test_the_loss_never_rises(
    seed: int, order: str, levels: Any, steepness: float, experts: int
) -> None:
    case, _ = small("three", seed=seed, experts=experts, scale=2.0)
    options: Any = {"order": order, "steepness": steepness, "thresholds": {"neuron": (0.01, 0.3)}}
    made = case.run(levels=levels, iterations=2, **options)
    descends(case, made.history, made.state)


@pytest.mark.parametrize("name", ["convolutions", "residual", "sequences"])
@both_orders
def test_the_loss_never_rises_in_general(order: str, name: str) -> None:
    case, _ = general(name)
    made = case.run(order=order, levels=("neuron", "weight"), thresholds=between(case))
    descends(case, made.history, made.state)


@both_orders
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("levels", [("layer",), ("neuron",), ("weight",)])
def test_equal_networks_stay(order: str, dtype: torch.dtype, levels: Any) -> None:
    case, _ = general("convolutions")
    case.start = {k: v.to(dtype) if v.is_floating_point() else v for k, v in case.start.items()}
    case.experts = {"a": case.start, "b": case.start}
    made = case.run(order=order, levels=levels, iterations=2)
    for key, value in case.start.items():
        torch.testing.assert_close(made.state[key], value, rtol=1e-12, atol=0)
    if levels != ("layer",):
        assert not made.history["accepted"].any()
        assert all(torch.equal(made.state[key], value) for key, value in case.start.items())
    assert (made.history["spread"] == 0).all()


@pytest.mark.parametrize(("option", "value"), [("steepness", 0.0), ("shrinkage", 1.0)])
def test_a_flat_mixture_is_the_average(option: str, value: float) -> None:
    case, _ = general("residual")
    case.experts["c"] = case.near(case.start, 1.0)
    made = case.run(**{option: value})
    assert made.history.filter(like="alpha").to_numpy() == pytest.approx(1 / 3)
    for key, tensor in made.state.items():
        if tensor.is_floating_point():
            mean = torch.stack([each[key] for each in case.experts.values()]).mean(0)
            torch.testing.assert_close(tensor, mean, rtol=1e-12, atol=1e-14)


@both_orders
def test_the_order_of_experts_is_a_name(order: str) -> None:
    case, _ = small("three", experts=3)
    options: Any = {"order": order, "levels": LEVELS, "thresholds": between(case)}
    one = case.run(**options)
    other = case.run(experts=dict(reversed(case.experts.items())), **options)
    assert list(one.history) != list(other.history)
    pd.testing.assert_frame_equal(one.history, other.history[list(one.history)], rtol=1e-9)
    for key, value in one.state.items():
        torch.testing.assert_close(other.state[key], value, rtol=1e-9, atol=1e-12)


@both_orders
def test_iterations_are_calls_in_a_row(order: str) -> None:
    case, _ = small("three")
    options: Any = {"order": order, "levels": LEVELS, "thresholds": between(case)}
    twice = case.run(iterations=2, **options)
    first = case.run(**options)
    second = case.run(start=first.state, **options)
    assert all(torch.equal(twice.state[key], value) for key, value in second.state.items())
    second.history["iteration"] = 1
    rows = pd.concat([first.history, second.history], ignore_index=True)
    pd.testing.assert_frame_equal(twice.history, rows)


def test_a_layer_by_hand() -> None:
    """One weight w, inputs 1, targets 0: the loss is w². A = 1, B = 3, λ = ln(3) / 8."""
    case = Case(nn.Linear(1, 1, bias=False), torch.ones(4, 1).double(), 1)
    case.start = {"weight": torch.tensor([[2.0]])}
    case.experts = {"a": {"weight": torch.ones(1, 1)}, "b": {"weight": 3 * torch.ones(1, 1)}}
    case.data = {"t": (torch.ones(4, 1), torch.zeros(4, 1))}
    # ΔL = 1 - 9 = -8, so α = 1 / (1 + e^(-ln 3)) = 3/4; w = 3/4 + 3/4 = 1.5.
    options: Any = {"loss": "mse", "steepness": 1.0986122886681098 / 8}
    made = case.run(**options)
    row = made.history.iloc[0].to_dict()
    assert (row["layer"], row["level"], row["unit"], row["weight"]) == ("", "layer", -1, -1)
    assert (row["loss a"], row["loss b"], row["spread"]) == pytest.approx((1, 9, 8))
    assert (row["alpha a"], row["alpha b"]) == pytest.approx((0.75, 0.25))
    assert (row["before"], row["after"], row["accepted"]) == pytest.approx((4, 2.25, True))
    assert made.state["weight"].item() == pytest.approx(1.5)
    # From M = 1.25 the mixture is no gain: kept by a layer, rolled back by a neuron or a weight.
    case.start = {"weight": torch.tensor([[1.25]])}
    assert case.run(**options).state["weight"].item() == pytest.approx(1.5)
    for rolled in ({"levels": ("neuron",)}, {"levels": ("weight",)}, {"rollback": ("layer",)}):
        made = case.run(**options, **rolled)
        assert made.state["weight"].item() == 1.25
        assert made.history["after"].item() == pytest.approx(2.25)
        assert not made.history["accepted"].item()


@pytest.mark.parametrize(
    ("ends", "level"),
    [((0, 8), "layer"), ((8, 8), "layer"), ((0, 7.9), "neuron"), ((8.1, 99), "neuron")],
)
def test_thresholds_include_their_ends(ends: Any, level: str) -> None:
    """The spread of `test_a_layer_by_hand` is 8."""
    case = Case(nn.Linear(1, 1, bias=False), torch.ones(4, 1).double(), 1)
    case.experts = {"a": {"weight": torch.ones(1, 1)}, "b": {"weight": 3 * torch.ones(1, 1)}}
    case.start = {"weight": torch.tensor([[2.0]])}
    case.data = {"t": (torch.ones(4, 1), torch.zeros(4, 1))}
    made = case.run(loss="mse", levels=("layer", "neuron"), thresholds={"layer": ends})
    assert made.history["level"].iloc[-1] == level
    first = made.history.iloc[0]
    expected = "merge" if level == "layer" else "coarse" if ends[1] < 8 else "uncertain"
    assert first["case"] == expected
    assert (first["after"] == first["after"]) == (level == "layer"), "NaN where left to neurons"


def test_a_rolled_back_layer_never_raises_the_loss() -> None:
    for seed in range(5):
        case, _ = small("three", seed=seed, scale=2.0)
        made = case.run(rollback=("layer",), iterations=2)
        descends(case, made.history, made.state)


def test_fisher_merging_comes_first() -> None:
    case, _ = small()
    x, y = case.data["t"]
    case.data = {"t": (x.float(), y)}
    case.model.float()
    experts = {k: {n: t.float() for n, t in v.items()} for k, v in case.experts.items()}
    options: Any = {"experts": experts, "levels": ("neuron",)}
    every: Any = {"model": case.model, "heads": dict.fromkeys("ab", nn.Identity())}
    data = dict.fromkeys("ab", case.data["t"])
    merged = ml.adapt("fisher", experts, pretrained=experts["a"], data=data, **every)
    one, other = case.run(start=None, **options), case.run(start=merged.state, **options)
    pd.testing.assert_frame_equal(one.history, other.history)
    named = case.run(start=None, data=data, heads=every["heads"], **options)
    assert named.history["before"].iloc[0] == pytest.approx(one.history["before"].iloc[0])


@both_orders
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes_counters_and_inputs(order: str, dtype: torch.dtype) -> None:
    case, _ = general("convolutions")
    case.model.to(torch.float32).train()

    def rounded(state: State, counter: int) -> State:
        made = {k: v.to(dtype) if v.is_floating_point() else v for k, v in state.items()}
        return {**made, "1.num_batches_tracked": torch.tensor(counter)}

    case.start = rounded(case.start, 7)
    case.experts = {name: rounded(each, 3) for name, each in case.experts.items()}
    given = (case.start, *case.experts.values(), case.model.state_dict())
    before = copy.deepcopy(given)
    levels: Any = ("layer", "neuron", "weight")
    made = case.run(order=order, levels=levels, thresholds={"layer": (0.0, 1e-6)})
    assert made.history["accepted"].any()
    assert [t.dtype for t in made.state.values()] == [t.dtype for t in case.start.values()]
    assert made.state["1.num_batches_tracked"] == 7
    for state, kept in zip(given, before, strict=True):
        assert all(torch.equal(state[key], kept[key]) for key in kept)
    assert case.model.training
    assert all(p.dtype == torch.float32 and p.requires_grad for p in case.model.parameters())
    pointers = {t.data_ptr() for state in given for t in state.values()}
    assert pointers.isdisjoint(t.data_ptr() for t in made.state.values()), "nothing is shared"


def test_a_transform_makes_pictures_into_inputs() -> None:
    case, _ = general("convolutions")
    x, y = case.data["t"]
    pictures = torch.randint(256, x.shape, dtype=torch.uint8)
    options: Any = {"levels": ("neuron",)}
    made = case.run(data={"t": (pictures, y)}, transform=lambda x: x.float() / 255, **options)
    expected = case.run(data={"t": (pictures.float() / 255, y)}, **options)
    pd.testing.assert_frame_equal(made.history, expected.history)


def broken(case: Case, key: str, value: Any) -> dict[str, State]:
    """The experts, b with another tensor."""
    return {**case.experts, "b": {**case.experts["b"], key: value}}


NAN = torch.full((7, 6), torch.nan, dtype=torch.float64)
BAD: dict[str, tuple[Callable[[Case], dict[str, Any]], str]] = {
    "one expert": (lambda c: {"experts": {"a": c.start}}, "at least 2 experts, got 1"),
    "no expert": (lambda c: {"experts": {}}, "expert"),
    "a key more": (
        lambda c: {"experts": broken(c, "z", c.start["0.bias"])},
        "b has the extra key 'z'",
    ),
    "another shape": (
        lambda c: {"experts": broken(c, "0.weight", NAN[:3])},
        r"b\['0.weight'\] has shape \(3, 6\)",
    ),
    "NaN in an expert": (
        lambda c: {"experts": broken(c, "0.weight", NAN)},
        r"b\['0.weight'\] holds NaN",
    ),
    "NaN in start": (
        lambda c: {"start": {**c.start, "0.weight": NAN}},
        r"start\['0.weight'\] holds NaN",
    ),
    "start lacks a key": (lambda c: {"start": {"0.weight": c.start["0.weight"]}}, "start.*0.bias"),
    "start of another shape": (
        lambda c: {"start": {**c.start, "0.bias": torch.zeros(8).double()}},
        "start.*0.bias",
    ),
    "all of another shape": (
        lambda c: {
            "start": {**c.start, "0.bias": torch.zeros(8)},
            "experts": [{**c.start, "0.bias": torch.zeros(8)}] * 2,
        },
        r"expert 0\['0.bias'\] has shape \(8,\), expected \(7,\) as in the model",
    ),
    "NaN in the data": (
        lambda c: {"data": {"t": (NAN, torch.zeros(7).long())}},
        "NaN",
    ),
    "no labels": (lambda c: {"data": {"t": c.data["t"][0]}}, "labels.*'t'"),
    "too few labels": (lambda c: {"data": {"t": (c.data["t"][0], torch.zeros(3))}}, "3 labels"),
    "a label too high": (
        lambda c: {"data": {"t": (c.data["t"][0], torch.full((15,), 5))}},
        "'t'.*5",
    ),
    "a label below 0": (
        lambda c: {"data": {"t": (c.data["t"][0], torch.full((15,), -1))}},
        "'t'.*-1",
    ),
    "floating labels": (
        lambda c: {"data": {"t": (c.data["t"][0], torch.zeros(15))}},
        "'t'",
    ),
    "targets of another shape": (
        lambda c: {"data": {"t": (c.data["t"][0], torch.zeros(15))}, "loss": "mse"},
        "'t'",
    ),
    "targets that would be broadcast": (
        lambda c: {"data": {"t": (c.data["t"][0], torch.zeros(15, 1))}, "loss": "mse"},
        "'t'",
    ),
    "bytes without transform": (
        lambda c: {"data": {"t": (c.data["t"][0].to(torch.uint8), c.data["t"][1])}},
        "'t'.*uint8",
    ),
    "no head": (lambda c: {"heads": {"u": nn.Identity()}}, "'t' has no head"),
    "no data": (lambda c: {"data": {}}, "no data"),
    "no examples": (lambda c: {"data": {"t": (NAN[:0], NAN[:0])}}, "'t' has no inputs"),
    "an unknown order": (lambda c: {"order": "random"}, "order is 'random'"),
    "an unknown level": (lambda c: {"levels": ("block",)}, r"levels is \('block',\)"),
    "levels as a word": (lambda c: {"levels": "layer"}, "levels is 'layer'"),
    "levels out of order": (lambda c: {"levels": ("neuron", "layer")}, "levels is"),
    "no levels": (lambda c: {"levels": ()}, "levels is empty"),
    "an unknown loss": (lambda c: {"loss": "hinge"}, "loss is 'hinge'"),
    "an unknown rollback": (lambda c: {"rollback": ("all",)}, r"rollback is \('all',\)"),
    "low above high": (lambda c: {"thresholds": {"layer": (2, 1)}}, "thresholds of 'layer'"),
    "a low below 0": (lambda c: {"thresholds": {"neuron": (-1, 1)}}, "thresholds of 'neuron'"),
    "a NaN threshold": (lambda c: {"thresholds": {"layer": (0, torch.nan)}}, "of 'layer'"),
    "one threshold": (lambda c: {"thresholds": {"layer": (0.1,)}}, "of 'layer'"),
    "thresholds nowhere": (lambda c: {"thresholds": {"block": (0, 1)}}, "level 'block'"),
    "steepness below 0": (lambda c: {"steepness": -1.0}, "steepness is -1.0"),
    "steepness NaN": (lambda c: {"steepness": torch.nan}, "steepness is nan"),
    "steepness infinite": (lambda c: {"steepness": torch.inf}, "steepness is inf"),
    "shrinkage above 1": (lambda c: {"shrinkage": 1.1}, "shrinkage is 1.1"),
    "shrinkage NaN": (lambda c: {"shrinkage": torch.nan}, "shrinkage is nan"),
    "no iteration": (lambda c: {"iterations": 0}, "iterations is 0"),
    "units that miss a row": (
        lambda c: {"units": {"0": torch.arange(6)[:, None]}},
        "units\\['0'\\] must contain each of its 7 rows once",
    ),
    "units of no layer": (lambda c: {"units": {"1": torch.zeros(1, 1)}}, "names '1'.*0, 2"),
    "units in one row": (lambda c: {"units": {"0": torch.arange(7)}}, "must contain each of its 7"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    case, _ = small()
    make, match = BAD[name]
    with pytest.raises(ValueError, match=match):
        case.run(**make(case))


def test_unknown_options_are_named() -> None:
    case, _ = small()
    with pytest.raises(TypeError, match="temperature"):
        case.run(temperature=1.0)
