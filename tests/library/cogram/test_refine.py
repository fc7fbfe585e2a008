"""CoGraM against plain loops of whole forward passes: the same decisions, the same network."""

import copy
from collections import Counter
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch
from torch import nn

from mergebook.suites.models import GPT, VisionTransformer
from mergelib.cogram import attention_heads
from tests.library.cogram.cases import (
    CHAINS,
    GENERAL,
    Case,
    Shared,
    agree,
    between,
    both_orders,
    chain,
    general,
    numbers,
    perceptron,
    small,
)
from tests.library.cogram.reference import LEVELS


@both_orders
@pytest.mark.parametrize("levels", [("neuron",), ("neuron", "weight")])
@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str, order: str, levels: Any) -> None:
    case, layers = small(name)
    agree(case, layers, order=order, levels=levels, thresholds=between(case, order=order))


@both_orders
def test_three_experts_iterations_and_shrinkage(order: str) -> None:
    case, layers = small("three", experts=3)
    options: Any = {"order": order, "shrinkage": 0.3, "steepness": 20.0}
    agree(case, layers, levels=LEVELS, thresholds=between(case), iterations=2, **options)


@both_orders
def test_batches_of_candidates(order: str) -> None:
    """So many numbers that the candidates of a layer do not go in at once."""
    torch.manual_seed(0)
    model, layers = perceptron()
    case = Case(model, numbers(3000, 6), 5)
    agree(case, layers, order=order, levels=("neuron", "weight"), thresholds={"neuron": (9, 9)})
    make, _, layers = GENERAL["convolutions"]
    case = Case(make().eval(), numbers(1500, 2, 6, 6), 4)
    agree(case, layers, order=order, levels=("neuron",))


@pytest.mark.parametrize("level", ["neuron", "weight"])
def test_what_helps_alone_but_not_together_is_halved(level: str) -> None:
    """Eight numbers whose sum is the output: from 0 each alone comes closer, all overshoot."""
    wanted = 1 + torch.tensor([[0.4, 0.3, 0.1, 0.2, 0.7, 0.6, 0.5, 0.8]]).double()
    if level == "weight":
        case = Case(nn.Linear(8, 1, bias=False), torch.ones(3, 8).double(), 1)
        layers, states = {"": True}, [{"weight": each} for each in (0 * wanted, wanted)]
    else:  # as many neurons, which the second layer adds
        case = Case(chain(*(nn.Linear(*shape, bias=False) for shape in ((1, 8), (8, 1))))[0],
                    torch.ones(3, 1).double(), 1)  # fmt: skip
        ones = torch.ones(1, 8).double()
        layers = {"0": True, "1": True}
        states = [{"0.weight": each.T, "1.weight": ones} for each in (0 * wanted, wanted)]
    case.start = states[0]
    case.experts = {"a": states[1], "b": {key: 1.01 * t for key, t in states[1].items()}}
    if level == "neuron":
        case.experts["b"]["1.weight"] = states[0]["1.weight"]
    options: Any = {"order": "simultaneous", "levels": (level,), "loss": "mse"}
    for target, kept in ((1, [2]), (3, [4, 7])):  # of eight none, of four none; of two, for a 3
        case.data = {"t": (case.data["t"][0], torch.full((3, 1), float(target)))}
        log = agree(case, layers, **options)
        log = log[log["layer"] == next(iter(layers))]
        assert (log["after"] < log["before"]).all(), "each helps alone"
        assert log[level if level == "weight" else "unit"][log["accepted"]].tolist() == kept


def test_halving_in_a_network() -> None:
    """Inputs nearly alike, experts far off on one side: all that helps alone is too much."""
    case, layers = small(scale=1.0)
    inputs, labels = case.data["t"]
    case.data = {"t": (1 + 0.1 * inputs, labels)}
    for expert in case.experts.values():
        for value in expert.values():
            value += 0.6 * torch.ones_like(value).cumsum(0).remainder(3)
    log = agree(case, layers, order="simultaneous", levels=("weight",))
    halved = (log["after"] < log["before"] - 1e-6) & ~log["accepted"]
    assert halved.sum() > 5
    assert log["accepted"].any()


@both_orders
@pytest.mark.parametrize("rollback", [(), ("layer",), ("weight",), LEVELS])
def test_rollback_at_some_levels(order: str, rollback: Any) -> None:
    case, layers = small("three")
    options: Any = {"rollback": rollback, "order": order, "levels": LEVELS}
    log = agree(case, layers, thresholds=between(case), **options)
    merged = log[log["case"] == "merge"]
    if not rollback:
        assert merged["accepted"].all(), "nothing is rolled back"
    for level in rollback:
        kept = merged[merged["accepted"] & (merged["level"] == level)]
        assert (kept["after"] < kept["before"]).all()


@both_orders
def test_two_tasks_with_heads(order: str) -> None:
    case, layers = small()
    torch.manual_seed(1)
    case.heads = {"t": nn.Linear(5, 3), "u": nn.Sequential(nn.ReLU(), nn.Linear(5, 4))}
    case.data = {
        "u": (torch.randn(9, 6), torch.randint(4, (9,))),
        "t": (torch.randn(4, 6), torch.randint(3, (4,))),
    }
    agree(case, layers, order=order, levels=("neuron", "weight"), thresholds=between(case))


@both_orders
def test_regression(order: str) -> None:
    case, layers = small("three")
    case.data = {"t": (torch.randn(15, 6), torch.randn(15, 5))}
    thresholds = between(case, loss="mse")
    agree(case, layers, order=order, loss="mse", levels=LEVELS, thresholds=thresholds)


def test_the_head_is_in_evaluation_mode() -> None:
    case, layers = small()
    case.heads = {"t": nn.Sequential(nn.Dropout(0.5))}
    agree(case, layers, levels=("neuron",))


@pytest.mark.parametrize(
    ("levels", "order"),
    [
        (LEVELS, "sequential"),
        (LEVELS, "simultaneous"),
        (("neuron",), "simultaneous"),
        (("weight",), "sequential"),
    ],
)
@pytest.mark.parametrize("name", GENERAL)
def test_general_networks(name: str, levels: Any, order: str) -> None:
    case, layers = general(name)
    agree(case, layers, order=order, levels=levels, thresholds=between(case, order=order))


def block(name: str) -> dict[str, bool]:
    parts = {"norm1": False, "attn.qkv": True, "attn.proj": True, "norm2": False}
    parts |= {"fc1": True, "fc2": True}
    return {f"{name}.{part}": refinable for part, refinable in parts.items()}


@both_orders
def test_vision_transformer(order: str) -> None:
    torch.manual_seed(0)
    case = Case(VisionTransformer(8, 1, 2, 2).eval(), numbers(3, 3, 32, 32), 8)
    layers = {"": False, "stem.0": True, "stem.2": True, "stem.4": True}
    layers |= block("blocks.0") | {"norm": False}
    options: Any = {"levels": ("layer", "neuron"), "thresholds": {"layer": (0, 1e-6)}}
    agree(case, layers, order=order, **options)
    heads = {"blocks.0.attn.qkv": attention_heads(2, 8).tolist()}
    log = agree(case, layers, order=order, units=heads, **options)
    assert (log["layer"] == "blocks.0.attn.qkv").sum() == 1 + 2


@both_orders
def test_language_model(order: str) -> None:
    torch.manual_seed(0)
    case = Case(GPT(8, 1, 2, 2, vocabulary=12, context=6).eval(), torch.randint(12, (3, 6)), 12)
    layers = {"": False, "token_embed": False} | block("blocks.0") | {"norm": False}
    agree(case, layers, order=order, levels=LEVELS[:2], thresholds={"layer": (0, 1e-6)})


@both_orders
def test_shared_layers_merge_as_a_whole(order: str) -> None:
    torch.manual_seed(0)
    case = Case(Shared().eval(), numbers(5, 3, 6), 6)
    for state in (case.start, *case.experts.values()):
        state["tied.weight"] = state["out.weight"]
    log = case.run(order=order, levels=LEVELS, thresholds={"layer": (9.0, 9.0)}).history
    finer = set(log["layer"][log["level"] != "layer"])
    assert finer == {"once"}
    whole = log[(log["level"] == "layer") & (log["layer"] != "once")]
    assert set(whole["layer"]) == {"", "twice", "attend", "attend.out_proj", "out"}
    assert set(whole["case"]) == {"merge"}, "nothing finer follows, whatever the thresholds"


@both_orders
@pytest.mark.parametrize("levels", [("neuron",), ("neuron", "weight"), ("weight",)])
def test_units_of_several_rows(order: str, levels: Any) -> None:
    case, layers = small()
    units = {"0": [[0, 3, 6, 1, 2, 5, 4]], "2": [[4], [0], [1], [3], [2]]}
    options: Any = {"order": order, "levels": levels, "thresholds": {"neuron": (9, 9)}}
    log = agree(case, layers, units=units, **options)
    assert not log.duplicated(["layer", "level", "unit", "weight"]).any()


class Counted(nn.Linear):
    """A layer that counts its runs, by its width."""

    runs: ClassVar[Counter[int]] = Counter()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Counted.runs[self.out_features] += 1
        return super().forward(x)


def test_what_comes_before_a_layer_is_run_once() -> None:
    """Four layers of two experts: A, B, the mixture and a check for each."""
    widths = (3, 4, 5, 6, 7)
    torch.manual_seed(0)
    case = Case(nn.Sequential(*map(Counted, widths, widths[1:])), torch.randn(8, 3).double(), 7)
    layers = dict.fromkeys(map(str, range(4)), True)
    agree(case, layers, levels=("layer",), iterations=2)
    Counted.runs.clear()
    case.run(levels=("layer",), iterations=2)
    first, *middle, last = (Counted.runs[width] for width in widths[1:])
    setup = 4
    assert first == setup + 2 * (1 + 3), "a trace, and its own candidates"
    assert last == setup + 2 * (1 + 4 * 4 - 1)
    assert sorted(middle) == [first + 2 * 4, first + 2 * 8]


def test_attention_heads_by_hand() -> None:
    """Two heads of width 3 in queries 0 to 5, keys 6 to 11, values 12 to 17."""
    expected = [[0, 1, 2, 6, 7, 8, 12, 13, 14], [3, 4, 5, 9, 10, 11, 15, 16, 17]]
    assert attention_heads(2, 6).tolist() == expected
    assert attention_heads(3, 6, parts=1).tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="4 heads do not divide a width of 6"):
        attention_heads(4, 6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@both_orders
@pytest.mark.parametrize("name", ["convolutions", "sequences"])
def test_cuda_agrees_with_the_cpu(order: str, name: str) -> None:
    case, _ = general(name)
    options: Any = {"order": order, "levels": LEVELS, "thresholds": between(case)}
    here = case.run(**options)
    there = case.run(model=copy.deepcopy(case.model).cuda(), **options)
    pd.testing.assert_frame_equal(there.history, here.history, rtol=0, atol=1e-9)
    for key, value in here.state.items():
        torch.testing.assert_close(there.state[key], value, rtol=0, atol=1e-9)
