"""Shrunk networks lose nothing where activations have few directions, and else what they must."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergebook.suites import models
from mergelib.problems.calling import call_with
from mergelib.statedict import StateDict
from mergelib.structure import Features, Scope, describes
from tests.library.align.families import gpt2
from tests.library.sail.families import gpt, mlp, perturbed, resnet, vit
from tests.library.sail.families import inputs as inputs_of

pytest.importorskip("scipy")


def chain(*layers: nn.Module) -> nn.Module:
    return perturbed(nn.Sequential(*layers))


def pictures(count: int, seed: int = 0, side: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, side, side, generator=generator).double()


def convolutions(channels: int) -> nn.Module:
    """Plain, depthwise and transposed, with norms and padding, and flattened in the end."""
    more = channels + 2
    return chain(
        *(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.PReLU(channels)),
        *(nn.Conv2d(channels, channels, 3, padding=1, groups=channels), nn.ReLU(inplace=True)),
        *(nn.Conv2d(channels, more, 3, padding=1, stride=2), nn.BatchNorm2d(more), nn.MaxPool2d(2)),
        *(nn.ConvTranspose2d(more, channels, 2), nn.GELU(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.BatchNorm1d(4 * channels), nn.Linear(4 * channels, 5)),
    )


def bottlenecks(factor: int, count: int = 2) -> nn.Module:
    """A stream of 16 channels, and blocks with 4 × factor channels inside."""
    resnet = pytest.importorskip("torchvision.models.resnet")
    blocks = [resnet.Bottleneck(16, 4, base_width=64 * factor) for _ in range(count)]
    stem = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
    pool = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return chain(*stem, nn.Sequential(*blocks), *pool, nn.Linear(16, 5))


def pointwise(channels: int) -> nn.Module:
    """The second layer sees one position at a time."""
    first = nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()
    return chain(*first, nn.Conv2d(channels, 4, 1))


def neighbours(channels: int) -> nn.Module:
    first = nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()
    return chain(*first, nn.Conv2d(channels, 4, 3, padding=1))


def feeding(ratio: int, depth: int = 2) -> nn.Module:
    """A GPT with as many hidden units as ratio times its width."""
    return perturbed(models.GPT(48, depth, 4, ratio, vocabulary=50, context=16))


@torch.no_grad()
def error(source: nn.Module, target: nn.Module, state: StateDict, x: Tensor) -> float:
    """The root mean square of what outputs change by."""
    return float((call_with(target, state, x) - source(x)).square().mean().sqrt())


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


@pytest.mark.parametrize("build", [convolutions, bottlenecks])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_channels_that_are_copies_can_go(
    build: Callable[[int], nn.Module], dtype: torch.dtype, limit: float
) -> None:
    source, wide = build(4).to(dtype), build(9).to(dtype)
    wide.load_state_dict(ml.grow(source, wide))
    back = ml.shrink(wide, source, pictures(40, side=8).to(dtype))
    assert error(source, source, back, pictures(5, seed=1, side=8).to(dtype)) < limit


def test_convolutions_with_nothing_between_need_as_many_channels_as_directions() -> None:
    """Three inputs and an offset are four; around the border are zeros."""
    source, target = (chain(nn.Conv2d(3, n, 1), nn.Conv2d(n, 2, 3, padding=1)) for n in (9, 4))
    state = ml.shrink(source, target, pictures(4, side=8))
    assert error(source, target, state, pictures(4, seed=1, side=8)) < 1e-10


def test_fewer_channels_than_directions_lose_something() -> None:
    source, wide = neighbours(6), neighbours(13)
    wide.load_state_dict(ml.grow(source, wide))
    x = pictures(10, side=8)
    lost = [error(wide, (net := neighbours(n)), ml.shrink(wide, net, x), x) for n in (3, 5, 6)]
    assert lost[0] > lost[1] > 1e-3
    assert lost[2] < 1e-10


@pytest.mark.parametrize("build", [pointwise, neighbours])
def test_estimating_what_is_left_out_is_better_than_leaving_it_out(
    build: Callable[[int], nn.Module],
) -> None:
    torch.manual_seed(0)
    source, target, x = build(9), build(5), pictures(20, side=8)
    state, own = ml.shrink(source, target, x), source.state_dict()
    same = (state["0.weight"][:, None] == own["0.weight"]).flatten(2).all(2)
    kept = same.nonzero()[:, 1]
    assert kept.unique().shape == (5,)
    for name in ("0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"):
        assert torch.equal(state[name], own[name][kept])
    without = {**state, "3.weight": own["3.weight"][:, kept]}
    assert 1e-3 < error(source, target, state, x) < 0.9 * error(source, target, without, x)


def test_no_estimate_of_channels_is_better() -> None:
    source, target, x = pointwise(9), pointwise(5), pictures(20, side=8)
    state = ml.shrink(source, target, x)
    least = error(source, target, state, x)
    for sign in (1, -1):
        for column in range(5):
            moved = {**state, "3.weight": state["3.weight"].clone()}
            moved["3.weight"][:, column] += sign * 1e-3
            assert error(source, target, moved, x) > least


STACKS: list[tuple[Callable[[], nn.Module], Callable[[], nn.Module], dict[str, Any]]] = [
    (gpt, lambda: gpt(48, 4), {"blocks": [0, 1]}),
    (gpt, lambda: gpt(48, 4), {"blocks": [2, 1]}),
    (lambda: mlp(24, 3), lambda: mlp(24, 5), {"0.layers": range(3)}),
    (lambda: mlp(24, 3), lambda: mlp(24, 5), {"0.layers": [0, 3, 4]}),
    (
        lambda: resnet(4, (2, 3, 1)),
        lambda: resnet(4, (4, 5, 1)),
        {"0.stages.0": [0, 1], "0.stages.1": [0, 3, 2]},
    ),
]


@pytest.mark.parametrize(("source", "deep", "layers"), STACKS)
def test_it_undoes_stacking(
    source: Callable[[], nn.Module], deep: Callable[[], nn.Module], layers: dict[str, Any]
) -> None:
    small, large = source(), deep()
    large.load_state_dict(ml.grow(small, large, depth="stack"))
    back = ml.shrink(large, source(), inputs_of(small), layers=layers)
    own = small.state_dict()
    assert back.keys() == own.keys()
    assert all(torch.equal(back[key], value) for key, value in own.items())
    path, chosen = next(iter(layers.items()))
    swapped = {**layers, path: [*chosen[:-1], chosen[-1] - 1]}
    other = ml.shrink(large, source(), inputs_of(small), layers=swapped)
    assert any(not torch.equal(other[key], value) for key, value in own.items())


@pytest.mark.parametrize(("source", "deep", "layers"), STACKS)
def test_layers_are_spread_evenly_by_default(
    source: Callable[[], nn.Module], deep: Callable[[], nn.Module], layers: dict[str, Any]
) -> None:
    small, large = source(), deep()
    large.load_state_dict(ml.grow(small, large, depth="interlace"))
    back = ml.shrink(large, source(), inputs_of(small))
    assert all(torch.equal(back[key], value) for key, value in small.state_dict().items())


def test_a_stage_that_keeps_one_block_keeps_its_first() -> None:
    source, target = resnet(4, (3, 3, 1)), resnet(4, (1, 1, 1))
    state, own = ml.shrink(source, target, pictures(2)), source.state_dict()
    assert all(torch.equal(state[key], own[key]) for key in target.state_dict())


def test_layers_and_hidden_units_at_once() -> None:
    for small, large, path in (
        (feeding(3), feeding(5, 4), "blocks"),
        (mlp(24, 3), mlp(40, 5), "0.layers"),
        (bottlenecks(1), bottlenecks(2, 4), "3"),
    ):
        count = len(small.get_submodule(path))  # type: ignore[arg-type]
        large.load_state_dict(ml.grow(small, large, depth="stack"))
        generator = torch.Generator().manual_seed(3)
        ids = torch.randint(0, 50, (40, 16), generator=generator)
        x = ids if isinstance(small, models.GPT) else pictures(60)
        back = ml.shrink(large, small, x, layers={path: range(count)})
        assert error(small, small, back, x[:4]) < 1e-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_stay_and_sources_are_left_alone(dtype: torch.dtype) -> None:
    source, x = bottlenecks(2, 3).to(dtype).train(), pictures(3, side=8).to(dtype)
    before = {key: value.clone() for key, value in source.state_dict().items()}
    state = ml.shrink(source, bottlenecks(1), x)
    floating = [value for value in state.values() if value.is_floating_point()]
    assert {value.dtype for value in floating} == {dtype}
    assert all(torch.equal(before[key], value) for key, value in source.state_dict().items())
    assert all(module.training for module in source.modules())
    assert not any(module._forward_pre_hooks for module in source.modules())
    for value in state.values():
        value.zero_()
    assert all(torch.equal(before[key], value) for key, value in source.state_dict().items())


def normed(size: int) -> nn.Module:
    layers = nn.Conv2d(3, size, 3), nn.GroupNorm(2, size), nn.Conv2d(size, 2, 30), nn.Flatten()
    return chain(*layers)


def headed(width: int) -> nn.Module:
    return perturbed(nn.Sequential(models.MLP(width, 1), models.Head(torch.randn(5, width))))


class Joined(nn.Module):
    """A layer that reads two groups side by side."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, size), nn.Linear(3, 2)
        self.out = nn.Linear(size + 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        joined: Tensor = self.out(torch.cat([self.left(x), self.right(x)], -1))
        return joined


@describes(Joined)
def _joined(_: Joined, scope: Scope, x: Features | None) -> Features | None:
    left: Features = scope("left", x)
    right: Features = scope("right", x)
    return scope.chain(left + right, "out")


IDS = torch.zeros(2, 16).long()


@pytest.mark.parametrize(
    ("source", "target", "inputs", "message"),
    [
        (mlp(24), mlp(30), pictures(4), "has 30 units in the target, more than the source's 24"),
        (resnet(6), resnet(4), pictures(4), "'0.stem.0' has 6 .* 4 .*is a residual stream"),
        (gpt(48), gpt(24), IDS, "'token_embed' has 48 .* 24 .*is a residual stream, which all"),
        (vit(32), vit(32, 2, 2), pictures(4), "heads' has 4 .* 2 .*a number of attention heads"),
        (gpt(), perturbed(models.GPT(48, 2, 4, 4, 40, 16)), IDS, "50 .* 40 .*is fixed"),
        (
            mlp(24, 2, 5),
            mlp(24, 2, 4),
            pictures(4),
            "'1' has 5 .* 4 .*visible in the",
        ),
        (normed(8), normed(4), pictures(4), "'0' has 8 .* 4 .*is normalised across its units"),
        (headed(8), headed(4), pictures(4), "'1.weight' reads '0.layers.0', but is not a linear"),
        (Joined(5), Joined(4), torch.ones(9, 3), "'out.weight' reads 'left', but is not a linear"),
        (mlp(24, 1), mlp(24, 2), pictures(4), "'0.layers' has 2 layers .*more than .* 1: use grow"),
        (resnet(), resnet(4, (1, 1)), pictures(4), "comes from groups of different sizes"),
        (mlp(), resnet(), pictures(4), "the source lacks key '0.stem.0.weight'"),
        (mlp(24), mlp(12), torch.full((4, 3, 32, 32), torch.nan).double(), "'.* holds NaN"),
    ],
)
def test_misfits_are_named(
    source: nn.Module, target: nn.Module, inputs: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ml.shrink(source, target, inputs)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            {"0.layers": [0, 1]},
            r"layers\['0.layers'\] is \[0, 1\], expected 0, then 2 numbers",
        ),
        ({"0.layers": [1, 2, 3]}, "expected 0, then 2 numbers from 1 to 3"),
        ({"0.layers": [0, 0, 1]}, r"is \[0, 0, 1\]"),
        ({"0.layers": [0, 1, 4]}, r"is \[0, 1, 4\]"),
        ({"0.layers": [0, 1, -1]}, r"is \[0, 1, -1\]"),
        ({"0.layers": [0, 1, 1.5]}, r"is \[0, 1, 1.5\]"),
        ({"layers": [0, 1, 2]}, "layers names 'layers', .*those that do: 0.layers"),
        ({"1": [0]}, "layers names '1'"),
    ],
)
def test_layers_that_do_not_fit_are_named(layers: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ml.shrink(mlp(24, 4), mlp(24, 3), pictures(4), layers=layers)


def test_layers_where_none_are_left_out_are_named() -> None:
    with pytest.raises(ValueError, match=r"names '0.layers', .*those that do: none"):
        ml.shrink(mlp(24), mlp(12), pictures(4), layers={"0.layers": [0, 1]})


def test_weights_that_are_not_finite_are_named() -> None:
    state = dict(mlp().state_dict())
    state["1.bias"] = state["1.bias"].index_fill(0, torch.tensor([2]), torch.nan)
    with pytest.raises(ValueError, match=r"state\['1.bias'\] contains NaN or Inf"):
        ml.shrink(mlp(), mlp(12), pictures(4), state=state)
