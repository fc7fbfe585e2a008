"""Learned growth begins where `grow` does, has the right gradients, and lowers the loss."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergebook.suites.models import ResNet
from mergelib.activations import normalising_by_batch
from mergelib.problems.calling import call_with, evaluating
from mergelib.sail.growth import learning
from mergelib.sail.growth.maps import Transformation
from mergelib.sail.growth.width import Width
from tests.library.align.families import gpt2
from tests.library.sail.families import gpt, inputs, mlp, perturbed, resnet

pytestmark = pytest.mark.filterwarnings("ignore:copies of units")
FAMILIES = {
    "mlp": lambda: (mlp(24), mlp(30)),
    "gpt": lambda: (gpt(), gpt(96, 2, 8)),
}
STARTS: list[dict[str, Any]] = [
    {"width": "replicate"},
    {"width": "replicate", "noise": 0.3},
    {"width": "mean"},
    {"width": "svd"},
]


def linear(*sizes: int) -> nn.Module:
    layers = (nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))
    return perturbed(nn.Sequential(*layers), seed=sum(sizes))


def instance_normed(width: int) -> nn.Module:
    norm = nn.InstanceNorm2d(width, affine=True, track_running_stats=True)
    body = [nn.Conv2d(3, width, 3), nn.ReLU(), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return perturbed(nn.Sequential(*body, nn.Linear(width, 5)))


def examples(model: nn.Module, count: int = 4) -> tuple[Tensor, Tensor]:
    x = inputs(model)[:count]
    generator = torch.Generator().manual_seed(3)
    shape = model(x).shape
    return x, torch.randint(0, shape[-1], shape[:-1], generator=generator)


def risk(model: nn.Module, state: dict[str, Tensor], data: tuple[Tensor, Tensor]) -> Tensor:
    outputs = call_with(model, state, data[0]).flatten(0, -2)
    return nn.functional.cross_entropy(outputs, data[1].flatten())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("options", STARTS)
def test_it_begins_where_grow_does(name: str, options: dict[str, Any]) -> None:
    source, target = FAMILIES[name]()
    expected = ml.grow(source, target, generator=torch.Generator().manual_seed(0), **options)
    learned = ml.learn_growth([source], target, examples(source), steps=0, **options)
    assert learned.state.keys() == expected.keys()
    for key, value in expected.items():
        assert value.dtype == learned.state[key].dtype
        if "noise" in options or options["width"] == "mean":  # these are added to what is mapped
            assert torch.allclose(learned.state[key], value, rtol=0, atol=1e-12)
        else:
            assert torch.equal(learned.state[key], value)
    assert len(learned.history) == 0


def test_units_of_the_next_layer_are_a_start_too() -> None:
    source, target = mlp(24, 3), mlp(30, 3)
    expected = ml.grow(source, target, width="aki")
    learned = ml.learn_growth([source], target, examples(source), steps=0, width="aki")
    assert all(torch.equal(learned.state[key], value) for key, value in expected.items())


def test_depth_begins_where_grow_does() -> None:
    source, target = gpt(48, 2), gpt(96, 5, 8)
    options: dict[str, Any] = {"width": "replicate", "depth": "interlace", "gap": 3.0}
    expected = ml.grow(source, target, **options)
    learned = ml.learn_growth([source], target, examples(source), steps=0, **options)
    assert all(torch.allclose(learned.state[k], v, atol=1e-12) for k, v in expected.items())


def test_the_printed_shapes_repaired() -> None:
    """∂L/∂c_in = G c_out θᵀ and ∂L/∂c_out = Gᵀ c_in θ with G = ∂L/∂θ̃; here θ = Wᵀ."""
    source, target = linear(3, 4, 5, 2), linear(3, 6, 7, 2)
    transformation = Transformation(source, target, width="interpolate")
    state = transformation()
    for value in state.values():
        value.retain_grad()
    weight, middle = source.state_dict()["1.weight"], state["1.weight"]
    x, y = torch.randn(8, 3).double(), torch.tensor([0, 1] * 4)
    risk(target, state, (x, y)).backward()
    maps = dict(zip(transformation._rows, transformation.maps, strict=True))
    assert set(maps) == {("0", "write"), ("0", "read"), ("1", "write"), ("1", "read")}
    assert middle.grad is not None
    slope = middle.grad.T  # G, (d_in′, d_out′)
    assert torch.allclose(maps["0", "read"].grad, slope @ maps["1", "write"] @ weight)
    assert torch.allclose(maps["1", "write"].grad, slope.T @ maps["0", "read"] @ weight.T)


@pytest.mark.parametrize(
    ("source", "target", "options"),
    [
        (mlp(6), mlp(8), {"width": "replicate"}),
        (gpt(8, 2, 2), gpt(16, 3, 4), {"width": "mean", "depth": "stack", "gap": 2.0}),
        (mlp(6, 3), mlp(6, 4), {"depth": "stack", "gap": 2.0}),
    ],
)
def test_gradients_of_maps_and_logits(
    source: nn.Module, target: nn.Module, options: dict[str, Any]
) -> None:
    transformation = Transformation(source, target, **options)
    data = examples(source, 2)
    risk(target, transformation(), data).backward()
    generator = torch.Generator().manual_seed(0)
    for parameter in transformation.parameters():
        assert parameter.grad is not None
        way = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        values = []
        for step in (1e-6, -2e-6):
            parameter.data.add_(way, alpha=step)
            values.append(risk(target, transformation(), data).item())
        parameter.data.add_(way, alpha=1e-6)
        numeric = (values[0] - values[1]) / 2e-6
        assert float((parameter.grad * way).sum()) == pytest.approx(numeric, rel=1e-4, abs=1e-7)


def by_batch(model: nn.Module, state: dict[str, Tensor], data: tuple[Tensor, Tensor]) -> Tensor:
    """`risk` in evaluation mode, with each batch's statistics."""
    with evaluating(model), normalising_by_batch(model):
        return risk(model, state, data)


def shades(count: int, seed: int = 4) -> tuple[Tensor, Tensor]:
    """Pictures whose class is a shade of grey, under noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 5, (count,), generator=generator)
    noise = torch.randn(count, 3, 32, 32, generator=generator).double()
    return 0.3 * (labels - 2).double().view(-1, 1, 1, 1) + noise, labels


@pytest.mark.parametrize("width", ["mean", "svd", "replicate"])
def test_gradients_through_batch_norms(width: Any) -> None:
    torch.manual_seed(0)
    """Of single entries of every map, where a batch's statistics depend on the maps as well."""
    source, target = resnet(), resnet(6, (1, 2, 1))
    transformation, data = Transformation(source, target, width=width), examples(source, 4)
    state = transformation()
    assert not state["0.stem.1.running_var"].requires_grad, "which no map reaches"
    by_batch(target, state, data).backward()
    slopes = []
    for parameter in transformation.parameters():
        assert parameter.grad is not None
        at = divmod(int(parameter.grad.abs().argmax()), parameter.shape[1])
        values = []
        for step in (1e-6, -2e-6):
            parameter.data[at] += step
            values.append(by_batch(target, transformation(), data).item())
        parameter.data[at] += 1e-6
        slopes.append(float(parameter.grad[at]))
        assert slopes[-1] == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-3, abs=1e-7)
    assert len(slopes) == 12, "E and R of three stages, and of the inside of a block of each"
    assert min(map(abs, slopes)) > 1e-5


@pytest.mark.parametrize("mode", ["joint", "alone"])
def test_the_loss_of_a_normed_network_falls_and_the_target_stays(mode: Any) -> None:
    torch.manual_seed(3)
    sources = {"a": resnet(), "b": perturbed(resnet(), seed=5)}
    target, data = resnet(6, (1, 2, 1)), shades(48)
    target.train()
    target.get_submodule("0.stem.1").eval()
    fresh = {name: value.clone() for name, value in target.state_dict().items()}
    modes = [module.training for module in target.modules()]
    options: dict[str, Any] = {"mode": mode, "batch_size": 16, "learning_rate": 1e-2}
    start = ml.learn_growth(sources, target, data, steps=0, **options)
    first = ml.learn_growth(sources, target, data, steps=1, **{**options, "batch_size": 48}).history
    begun = [start.state] if mode == "joint" else [*start.states.values()]
    losses = [float(by_batch(target, state, data)) for state in begun]
    assert first.iloc[0].tolist() == pytest.approx(losses, rel=1e-9), "by the batch's statistics"
    learned = ml.learn_growth(sources, target, data, steps=20, **options)
    assert [module.training for module in target.modules()] == modes
    assert all(getattr(m, "track_running_stats", True) for m in target.modules())
    assert all(torch.equal(fresh[name], value) for name, value in target.state_dict().items())
    assert (learned.history.tail(3).mean() < 0.9 * learned.history.head(3).mean()).all()
    target.eval()  # with the statistics that are given back
    ended, held = [learned.state] if mode == "joint" else [*learned.states.values()], shades(48, 6)
    for before, after in zip(begun, ended, strict=True):
        assert float(risk(target, after, held)) < 0.9 * float(risk(target, before, held))


def test_statistics_are_those_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every state, over batches of one size, layer by layer behind the ones before."""
    sources, target = [resnet(), perturbed(resnet(), seed=5)], resnet(6, (1, 2, 1))
    data, norms = shades(40), ["0.stem.1", "0.stages.1.1.bn2", "0.stages.2.0.downsample.1"]

    def seen(state: dict[str, Tensor], batches: list[Tensor]) -> dict[str, list[Tensor]]:
        given: dict[str, list[Tensor]] = {name: [] for name in norms}
        handles = [
            target.get_submodule(name).register_forward_pre_hook(
                lambda _, x, name=name: given[name].append(x[0].transpose(0, 1).flatten(1))
            )
            for name in norms
        ]
        with evaluating(target), normalising_by_batch(target):
            for batch in batches:
                call_with(target, state, batch)
        for handle in handles:
            handle.remove()
        return given

    def check(grown: learning.LearnedGrowth, batches: list[Tensor]) -> None:
        assert len(grown.states) == 2
        for state in (grown.state, *grown.states.values()):
            for name, rows in seen(state, batches).items():
                for key, wanted in (
                    ("running_mean", [x.mean(1) for x in rows]),
                    ("running_var", [x.var(1) for x in rows]),
                ):
                    mean = torch.stack(wanted).mean(0)
                    assert torch.allclose(state[f"{name}.{key}"], mean, rtol=1e-9, atol=1e-12)
            assert int(state["0.stem.1.num_batches_tracked"]) == len(batches)

    check(ml.learn_growth(sources, target, data, steps=2, learning_rate=1e-2), [data[0]])
    monkeypatch.setattr(learning, "MEASURED", 21)
    drawn = torch.randperm(40, generator=torch.Generator().manual_seed(3))[:21]
    parts = [data[0][rows] for rows in drawn.split([6, 5, 5, 5])]
    check(ml.learn_growth(sources, target, data, steps=2, batch_size=6, seed=3), parts)


def test_without_steps_a_normed_network_is_grown_and_measured() -> None:
    source, target = resnet(), resnet(6, (1, 2, 1))
    expected = ml.grow(source, target, width="svd")
    start = ml.learn_growth([source], target, shades(8), steps=0, width="svd")
    measured = {key for key in expected if not torch.equal(start.state[key], expected[key])}
    kinds = {key.rpartition(".")[2] for key in measured}
    assert kinds == {"running_mean", "running_var", "num_batches_tracked"}
    assert start.state is start.states["source 0"]
    float32 = resnet(6).float()
    kept = ml.learn_growth([source], float32, shades(8), steps=0).state
    assert kept["0.stem.1.running_var"].dtype == torch.float64, "the source's"


def test_there_is_no_dropout_beside_batch_norms() -> None:
    pytest.importorskip("torchvision")

    def dropping(width: int, rate: float) -> nn.Module:
        torch.manual_seed(0)
        body = ResNet(width, (1, 1))
        return perturbed(nn.Sequential(body, nn.Dropout(rate), nn.Linear(body.width, 5)))

    with_it, without = (
        ml.learn_growth(
            [dropping(4, rate)], dropping(6, rate).train(), shades(24), steps=3, batch_size=8
        )
        for rate in (0.5, 0.0)
    )
    assert with_it.history.equals(without.history)
    assert all(torch.equal(with_it.state[key], value) for key, value in without.state.items())


@pytest.mark.parametrize("mode", ["joint", "alone"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_loss_falls_and_sources_stay(name: str, mode: Any) -> None:
    (source, target), (other, _) = FAMILIES[name](), FAMILIES[name]()
    sources = {"a": source, "b": perturbed(other, seed=5)}
    before = {n: {k: v.clone() for k, v in m.state_dict().items()} for n, m in sources.items()}
    fresh = {key: value.clone() for key, value in target.state_dict().items()}
    data = examples(source)
    options: dict[str, Any] = {"mode": mode, "steps": 10, "batch_size": 8, "learning_rate": 3e-3}
    target.train()
    learned = ml.learn_growth(sources, target, data, weights=[0.7, 0.3], **options)
    assert target.training
    target.eval()
    assert (learned.history.iloc[-1] < learned.history.iloc[0]).all()
    for n, net in sources.items():
        assert all(torch.equal(before[n][k], v) for k, v in net.state_dict().items())
    assert all(torch.equal(fresh[k], v) for k, v in target.state_dict().items())
    assert learned.history.size == (10 if mode == "joint" else 20)
    for key, value in learned.state.items():
        parts = [learned.states[n][key] for n in sources]
        if value.is_floating_point():
            assert torch.allclose(value, 0.7 * parts[0] + 0.3 * parts[1], atol=1e-12)
    last = risk(target, learned.state, data)
    if mode == "joint":
        assert float(last.detach()) < learned.history["joint"].iloc[0]
    else:
        singly = ml.learn_growth([source], target, data, **options)
        assert singly.history["source 0"].tolist() == learned.history["a"].tolist()
        assert all(torch.equal(learned.states["a"][k], v) for k, v in singly.state.items())


def test_the_loss_falls_on_examples_that_were_not_learned_from() -> None:
    source, target = mlp(24), mlp(30)
    x, labels = shades(96)
    seen, held = (x[:64], labels[:64]), (x[64:], labels[64:])
    start = ml.learn_growth([source], target, seen, steps=0).state
    learned = ml.learn_growth([source], target, seen, steps=40, batch_size=16, learning_rate=1e-2)
    assert float(risk(target, learned.state, held)) < 0.9 * float(risk(target, start, held))


@pytest.mark.parametrize("width", ["replicate", "svd"])
def test_copies_part_by_noise_alone(width: Width, recwarn: pytest.WarningsRecorder) -> None:
    source, target = mlp(24), mlp(48)
    data = examples(source)
    for noise, parts in ((0.0, False), (0.3, True)):
        learned = ml.learn_growth(
            [source], target, data, width=width, noise=noise, steps=5, learning_rate=1e-2
        )
        first, second = learned.state["0.layers.0.weight"].chunk(2)
        assert torch.equal(first, second) is not parts
        told = [str(caught.message) for caught in recwarn]
        assert any("stay copies" in text for text in told) is not parts
        recwarn.clear()


def test_a_known_optimum_is_found() -> None:
    """Logits must learn which of two layers the target's data were labelled by."""
    source, target = gpt(16, 2, 2), gpt(16, 3, 2)
    ml_state = ml.grow(source, target, depth="stack_top")
    x = inputs(source)
    labels = call_with(target, ml_state, x).detach()

    def distance(outputs: Tensor, wanted: Tensor) -> Tensor:
        return (outputs - wanted.view(outputs.shape)).square().mean()

    options: dict[str, Any] = {
        "depth": "interpolate",
        "gap": 1.0,
        "learning_rate": 0.2,
        "steps": 150,
    }
    learned = ml.learn_growth([source], target, (x, labels), loss=distance, **options)
    assert learned.history["joint"].iloc[-1] < 1e-3 * learned.history["joint"].iloc[0]
    key = "blocks.1.fc1.weight"
    gap = (learned.state[key] - ml_state[key]).norm() / ml_state[key].norm()
    assert gap < 0.05


def test_ties_and_hugging_face() -> None:
    source: Any = perturbed(gpt2("GPT2LMHeadModel"))
    config = type(source.config)(**{**source.config.to_dict(), "n_embd": 64})
    target: Any = perturbed(type(source)(config))
    ids = torch.arange(1, 25).view(2, 12)
    data = {"input_ids": ids, "labels": ids}
    learned = ml.learn_growth([source, source], target, data, steps=5, learning_rate=3e-3)
    assert learned.state["lm_head.weight"] is learned.state["transformer.wte.weight"]
    assert learned.history["joint"].iloc[-1] < 0.95 * learned.history["joint"].iloc[0]
    target.load_state_dict(learned.state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": "svd_random"}, "'svd_random' has no maps of groups"),
        ({"mode": "both"}, "mode is 'both'"),
        ({"weights": [1.0, 1.0]}, r"weights are \[1.0, 1.0\], expected 1"),
        ({"weights": [0.5]}, "of sum 1"),
        ({"steps": -1}, "steps is -1"),
        ({"learning_rate": 0.0}, "learning_rate is 0"),
        ({"width": "mean", "noise": 0.1}, "except for 'replicate', 'svd', 'aki'"),
        ({"depth": "twice"}, "depth is 'twice'"),
    ],
)
def test_misfits_are_named(options: dict[str, Any], message: str) -> None:
    source = mlp()
    with pytest.raises(ValueError, match=message):
        ml.learn_growth([source], mlp(30), examples(source), **options)


def test_more_misfits() -> None:
    source, data = gpt(), examples(gpt())
    with pytest.raises(ValueError, match=r"2\.running_mean' is a running statistic of a module"):
        ml.learn_growth([instance_normed(4)], instance_normed(6), data)
    with pytest.raises(ValueError, match="sources is empty"):
        ml.learn_growth([], gpt(), data)
    with pytest.raises(ValueError, match="there is nothing to learn"):
        ml.learn_growth([source], gpt(), data)
    with pytest.raises(
        ValueError, match="there is nothing to learn"
    ):  # copies of one layer are no mixture
        ml.learn_growth([mlp(24, 2)], mlp(24, 4), examples(mlp(24, 2)), depth="stack")
    with pytest.raises(ValueError, match="needs labels"):
        ml.learn_growth([source], gpt(96, 2, 8), data[0])
    with pytest.raises(ValueError, match="'blocks' contain a 0, which a softmax cannot"):
        ml.learn_growth([source], gpt(48, 3), data, depth="stack", gap=1e4)
