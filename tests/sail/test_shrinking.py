"""Shrunk networks lose nothing where activations have few directions, and else what PCA must."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergelib.problems.calling import call_with
from tests.align.families import gpt2
from tests.sail.families import gpt, mlp, perturbed, resnet


def chain(*layers: nn.Module) -> nn.Module:
    return perturbed(nn.Sequential(*layers))


def pictures(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 32, 32, generator=generator).double()


def test_few_directions_are_enough_for_a_linear_network() -> None:
    """Three inputs and no biases: no layer has more than three directions."""
    source = chain(*(nn.Linear(a, b, bias=False) for a, b in ((3, 9), (9, 8), (8, 2))))
    target = chain(*(nn.Linear(a, b, bias=False) for a, b in ((3, 3), (3, 5), (5, 2))))
    x = torch.randn(50, 3).double()
    state = ml.shrink(source, target, x)
    elsewhere = torch.randn(20, 3).double()
    assert (call_with(target, state, elsewhere) - source(elsewhere)).abs().max() < 1e-10


def test_more_directions_lose_what_principal_components_lose() -> None:
    """Behind an orthogonal reader the error is the sum of the eigenvalues left out."""
    source = chain(nn.Linear(7, 8), nn.Linear(8, 8))
    with torch.no_grad():
        source.get_parameter("1.weight").copy_(torch.linalg.qr(torch.randn(8, 8).double()).Q)
    x = torch.randn(100, 7).double()
    values = torch.linalg.svdvals(source.get_submodule("0")(x).detach()).square()
    for size in (1, 4, 7):
        target = chain(nn.Linear(7, size), nn.Linear(size, 8))
        outputs = call_with(target, ml.shrink(source, target, x), x)
        error = (outputs - source(x)).square().sum().detach()
        assert float(error) == pytest.approx(float(values[size:].sum()), rel=1e-8)


def test_selected_units_by_hand() -> None:
    """Of ReLU(x) and ReLU(2x) the larger is kept, and read for both."""
    source = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
    target = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1))
    state = {
        "0.weight": torch.tensor([[1.0], [2.0]]),
        "2.weight": torch.tensor([[3.0, 5.0]]),
        "2.bias": torch.tensor([7.0]),
    }
    shrunk = ml.shrink(source, target, torch.randn(10, 1), state=state)
    assert shrunk["0.weight"].tolist() == [[2]]
    assert shrunk["2.weight"].item() == pytest.approx(6.5)
    assert shrunk["2.bias"].tolist() == [7]


def test_the_estimate_of_what_is_left_out_is_the_best() -> None:
    source, target = mlp(24, 1), mlp(10, 1)
    x = pictures(40)
    state = ml.shrink(source, target, x)
    outputs = call_with(target, state, x)
    worse = []
    for sign in (1, -1):
        for column in range(10):
            moved = {key: value.clone() for key, value in state.items()}
            moved["1.weight"][:, column] += sign * 1e-3
            worse.append((call_with(target, moved, x) - source(x)).square().sum())
    assert (outputs - source(x)).square().sum() < min(worse)


def test_it_undoes_growing() -> None:
    source, wide = mlp(24), mlp(40)
    wide.load_state_dict(ml.grow(source, wide, noise=0.3))
    back = ml.shrink(wide, mlp(24), pictures(200))
    x = pictures(5, seed=1)
    assert (call_with(mlp(24), back, x) - source(x)).abs().max() < 1e-8


def test_hugging_face_feed_forward_layers() -> None:
    source: Any = perturbed(gpt2("GPT2LMHeadModel"))
    config = type(source.config)(**{**source.config.to_dict(), "n_inner": 160})
    wide: Any = perturbed(type(source)(config))
    wide.load_state_dict(ml.grow(source, wide))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 50, (20, 16), generator=generator)
    state = ml.shrink(wide, source, {"input_ids": ids})
    assert state["lm_head.weight"] is state["transformer.wte.weight"]
    expected = source(ids[:2]).logits
    assert (call_with(source, state, ids[:2]) - expected).abs().max() < 1e-8


@pytest.mark.parametrize(
    ("source", "target", "inputs", "message"),
    [
        (mlp(24), mlp(30), pictures(4), "has 30 units in the target, more than the source's 24"),
        (resnet(6), resnet(4), pictures(4), "is no group of hidden units alone"),
        (gpt(48), gpt(24), torch.zeros(2, 16).long(), "is no group of hidden units alone"),
        (mlp(24, 2), mlp(24, 1), pictures(4), "the source has '0.layers.1"),
    ],
)
def test_misfits_are_named(
    source: nn.Module, target: nn.Module, inputs: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ml.shrink(source, target, inputs)


def test_convolutions_are_refused() -> None:
    layers = [
        [nn.Conv2d(3, size, 3), nn.ReLU(), nn.Conv2d(size, 2, 30), nn.Flatten()] for size in (8, 4)
    ]
    source, target = (chain(*part) for part in layers)
    with pytest.raises(ValueError, match=r"'2.weight' reads '0', and is no linear layer"):
        ml.shrink(source, target, pictures(4))
