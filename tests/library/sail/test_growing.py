"""Grown networks compute what they should, for every family, width and depth; misfits are named."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergebook.suites import models
from mergelib.problems.calling import call_with
from mergelib.sail.growth.depth import depth_rows
from mergelib.sail.growth.width import WIDTHS, Widening, Width, expander
from mergelib.statedict import tied_keys
from mergelib.structure import structure_of
from tests.library.align.families import bert, gpt2
from tests.library.sail.families import gpt, inputs, mlp, perturbed, resnet, vit


@torch.no_grad()
def error(source: nn.Module, target: nn.Module, *, train: bool = False, **options: Any) -> float:
    """The largest change of a logit."""
    state = ml.grow(source, target, generator=torch.Generator().manual_seed(2), **options)
    target.load_state_dict(state)
    x = inputs(source)
    return float((source.train(train)(x) - target.train(train)(x)).abs().max())


def wider(source: Any, **sizes: int) -> nn.Module:
    """A network of Hugging Face with other sizes."""
    return perturbed(type(source)(type(source.config)(**{**source.config.to_dict(), **sizes})))


GROWTHS: dict[str, Callable[[], tuple[nn.Module, nn.Module]]] = {
    "mlp": lambda: (mlp(24), mlp(37)),
    "gpt by heads": lambda: (gpt(), gpt(96, 2, 8)),
    "gpt by size of heads": lambda: (gpt(), gpt(96, 2, 4)),
    "gpt by both, unevenly": lambda: (gpt(), gpt(96, 3, 6)),
    "resnet": lambda: (resnet(), resnet(7)),
    "vit": lambda: (vit(), vit(64, 3, 4)),
}


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("name", GROWTHS)
def test_copies_keep_the_function(name: str, noise: float) -> None:
    assert error(*GROWTHS[name](), noise=noise) < 1e-10


@pytest.mark.parametrize(
    "pair",
    [
        *(lambda: (gpt(), gpt(72)), lambda: (gpt(), gpt(80, 2, 5)), lambda: (gpt(), gpt(72, 3, 6))),
        *(lambda: (vit(), vit(48)), lambda: (mlp(24), mlp(37)), lambda: (resnet(), resnet(7))),
    ],
)
def test_padding_keeps_the_function_at_any_width(
    pair: Callable[[], tuple[nn.Module, nn.Module]],
) -> None:
    assert error(*pair(), width="mean") < 1e-10


@pytest.mark.parametrize(
    ("source", "target"),
    [(gpt(), gpt(48, 5)), (resnet(), resnet(4, (2, 3, 1))), (vit(), vit(32, 3))],
)
@pytest.mark.parametrize("train", [False, True])
def test_new_layers_change_nothing(source: nn.Module, target: nn.Module, train: bool) -> None:
    assert error(source, target, train=train) < 1e-10


@pytest.mark.parametrize("width", ["replicate", "mean"])
def test_a_batch_in_training_mode_too(width: str) -> None:
    assert error(resnet(), resnet(7, (2, 1, 2)), width=width, train=True) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_stay(dtype: torch.dtype) -> None:
    source, target = models.GPT(48, 1, 4).to(dtype), models.GPT(96, 1, 8)
    state = ml.grow(source, target, noise=0.1)
    assert {tensor.dtype for tensor in state.values()} == {dtype}
    if dtype == torch.float32:
        target.load_state_dict(state)
        ids = torch.arange(100).view(2, 50)
        assert (source(ids) - target(ids)).abs().max() < 1e-5


def test_hugging_face() -> None:
    ids = torch.arange(1, 25).view(2, 12)
    source: Any = perturbed(gpt2("GPT2LMHeadModel"))
    target: Any = wider(source, n_embd=64, n_layer=3)
    for width in ("replicate", "mean"):
        state = ml.grow(source, target, width=width)
        assert state["lm_head.weight"] is state["transformer.wte.weight"]
        target.load_state_dict(state)
        assert (source(ids).logits - target(ids).logits).abs().max() < 1e-10
    source = perturbed(bert("BertForMaskedLM"))
    options = {"hidden_size": 64, "intermediate_size": 100}
    config = type(source.config)(**{**source.config.to_dict(), **options})
    target = perturbed(type(source)(config))
    target.load_state_dict(ml.grow(source, target))
    assert (source(ids).logits - target(ids).logits).abs().max() < 1e-10
    with pytest.raises(ValueError, match="'mean' cannot keep the function"):
        ml.grow(source, target, width="mean")
    config.num_hidden_layers = 3
    with pytest.raises(ValueError, match=r"'bert.encoder.layer.2' has no residual branch"):
        ml.grow(source, perturbed(type(source)(config)))


def test_a_hidden_layer_by_hand() -> None:
    source = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    state = {
        "0.weight": torch.tensor([[1.0], [2.0]]),
        "0.bias": torch.tensor([3.0, 4.0]),
        "2.weight": torch.tensor([[6.0, 5.0]]),
        "2.bias": torch.tensor([7.0]),
    }
    target = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    copied = ml.grow(source, target, state=state)
    assert copied["0.weight"].flatten().tolist() == [1, 2, 1]
    assert copied["0.bias"].tolist() == [3, 4, 3]
    assert torch.allclose(copied["2.weight"], torch.tensor([[3.0, 5.0, 3.0]]))
    padded = ml.grow(source, target, state=state, width="mean")
    assert padded["0.weight"].flatten().tolist() == [
        1,
        2,
        target.state_dict()["0.weight"][2].item(),
    ]
    assert padded["2.weight"].flatten().tolist() == [6, 5, 0]
    assert torch.equal(state["2.weight"], torch.tensor([[6.0, 5.0]]))


def test_new_units_of_the_next_layer_by_hand() -> None:
    source = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 1))
    target = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3)), nn.Linear(3, 1))
    state = {
        "0.0.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "0.0.bias": torch.tensor([5.0, 6.0]),
        "0.1.weight": torch.tensor([[7.0, 8.0], [9.0, 10.0]]),
        "0.1.bias": torch.tensor([11.0, 12.0]),
        "1.weight": torch.tensor([[13.0, 14.0]]),
        "1.bias": torch.tensor([15.0]),
    }
    grown = ml.grow(source, target, state=state, width="aki")
    assert {key: value.tolist() for key, value in grown.items()} == {
        "0.0.weight": [[1, 2], [3, 4], [7, 8]],
        "0.0.bias": [5, 6, 11],
        "0.1.weight": [[3.5, 8, 3.5], [4.5, 10, 4.5], [3.5, 8, 3.5]],  # the last: copies
        "0.1.bias": [11, 12, 11],
        "1.weight": [[6.5, 14, 6.5]],
        "1.bias": [15],
    }


def test_new_heads_and_hidden_units_of_the_next_block() -> None:
    source, target = gpt(48, 3), gpt(96, 3, 8)
    own = source.state_dict()
    copied, grown = (ml.grow(source, target, width=width) for width in ("replicate", "aki"))
    rows = {"fc1": 192, "attn.qkv": 48}
    for block, (name, count) in product(range(3), rows.items()):
        key = f"blocks.{block}.{name}"
        parts = 3 if name == "attn.qkv" else 1
        for kind in ("weight", "bias"):
            halves = grown[f"{key}.{kind}"].view(parts, 2, count, -1)
            mapped = copied[f"{key}.{kind}"].view(parts, 2, count, -1)
            later = copied[f"blocks.{min(block + 1, 2)}.{name}.{kind}"].view(parts, 2, count, -1)
            assert torch.equal(halves[:, 0], mapped[:, 0])
            assert torch.equal(halves[:, 1], later[:, 1])
    new = grown["blocks.1.fc1.weight"][192:]
    assert torch.allclose(new, own["blocks.2.fc1.weight"].repeat(1, 2) / 2), "inputs by copies"
    others = [key for key in grown if not any(f".{name}." in key for name in rows)]
    assert len(others) == 28
    assert all(torch.equal(grown[key], copied[key]) for key in others), "the stream has copies"


def test_copies_of_the_stream_part_beside_units_of_the_next_block() -> None:
    source, target = gpt(48, 3), gpt(96, 3, 8)
    plain, noisy = (ml.grow(source, target, width="aki", noise=noise) for noise in (0.0, 0.3))
    changed = {key for key in plain if not torch.equal(plain[key], noisy[key])}
    read = ("attn.qkv.weight", "fc1.weight")
    assert changed == {f"blocks.{block}.{name}" for block, name in product(range(3), read)}
    x = inputs(source)
    assert (call_with(target, plain, x) - call_with(target, noisy, x)).abs().max() < 1e-10


def test_a_next_block_after_a_stack() -> None:
    """First wider, then deeper: new units of a copy are of what is behind it in the source."""
    source = gpt(48, 2)
    wide = ml.grow(source, gpt(72, 2, 6), width="aki")
    both = ml.grow(source, gpt(72, 3, 6), width="aki", depth="stack_top")
    for key, value in both.items():
        assert torch.equal(value, wide[key.replace("blocks.2", "blocks.1")])


NO_NEXT = ("mlp", "resnet", "resnet of two blocks")  # where each layer has a shape of its own
NEXT: dict[str, Callable[[], tuple[nn.Module, nn.Module]]] = {
    "deep mlp": lambda: (mlp(24, 4), mlp(37, 4)),
    "resnet of three blocks": lambda: (resnet(4, (1, 3)), resnet(7, (1, 3))),
    "resnet of two blocks": lambda: (resnet(4, (1, 2)), resnet(7, (1, 2))),
}


@pytest.mark.parametrize("name", ["mlp", "resnet", *NEXT, *list(GROWTHS)[1:4], "vit", "bert"])
def test_the_next_layer_in_every_family(name: str) -> None:
    source, target = {**GROWTHS, **FURTHER, **NEXT}[name]()
    check_next_layer(source, target, possible=name not in NO_NEXT)


def check_next_layer(source: nn.Module, target: nn.Module, *, possible: bool = True) -> None:
    options: dict[str, Any] = {"width": "aki", "depth": "stack_top"}
    if not possible:
        with pytest.raises(ValueError, match="the source has no list of layers of one shape"):
            ml.grow(source, target, **options)
        return
    for parameter in target.parameters():
        parameter.data.fill_(float("nan"))
    state = ml.grow(source, target, **options)
    fresh = target.state_dict()
    assert {key: value.shape for key, value in state.items()} == {
        key: value.shape for key, value in fresh.items()
    }
    assert not any(value.isnan().any() for value in state.values()), "nothing is the target's"
    assert tied_keys(state) == tied_keys(fresh)


FURTHER: dict[str, Callable[[], tuple[nn.Module, nn.Module]]] = {
    "gpt-2": lambda: ((small := gpt2("GPT2LMHeadModel")), wider(small, n_embd=64)),
    "bert": lambda: (
        (small := bert("BertForMaskedLM")),
        wider(small, hidden_size=64, intermediate_size=100),
    ),
}


@pytest.mark.parametrize("name", [*GROWTHS, *FURTHER])
@pytest.mark.parametrize("width", ["replicate", "svd", "interpolate"])
def test_reading_undoes_writing_on_every_axis(name: str, width: Any) -> None:
    check_reading_undoes_writing(*{**GROWTHS, **FURTHER}[name](), width)


def check_reading_undoes_writing(source: nn.Module, target: nn.Module, width: Any) -> None:
    before, after = structure_of(source), structure_of(target)
    sizes = {name: before.groups[name].size for name in after.groups if name in before.groups}
    sizes = {name: sizes.get(name, group.size) for name, group in after.groups.items()}
    widening = Widening(after, sizes, width)
    writing, reading = {}, {}
    for key, axes in after.axes.items():
        for number, axis in enumerate(axes):
            if axis.role in ("write", "both"):
                writing[axis.layout] = widening.axis(key, number)
            elif axis.role == "read":
                reading[axis.layout] = widening.axis(key, number)
    shared = writing.keys() & reading.keys()
    assert shared
    for layout in shared:
        product = reading[layout].T @ writing[layout]
        assert torch.allclose(product, torch.eye(len(product), dtype=product.dtype), atol=1e-12)


@pytest.mark.parametrize("name", GROWTHS)
def test_every_entry_is_written_and_none_is_left_to_the_target(name: str) -> None:
    source, target = GROWTHS[name]()
    if name in ("gpt by both, unevenly", "vit"):  # their new layers are the target's
        target = type(target)(*target) if isinstance(target, nn.Sequential) else target
        own = {key for key in target.state_dict() if ".blocks.2." in f".{key}"}
    else:
        own = set()
    state = ml.grow(source, target)
    shapes = {key: value.shape for key, value in state.items()}
    assert shapes == {key: value.shape for key, value in target.state_dict().items()}
    for parameter in target.parameters():
        parameter.data.fill_(float("nan"))
    again = ml.grow(source, target)
    assert {key for key in state if again[key].isnan().any()} <= own
    assert all(torch.equal(again[key], state[key]) for key in state.keys() - own)


def test_counters_are_copied_and_sources_left_alone() -> None:
    source, target = resnet(), resnet(6, (2, 1, 1))
    source.train()(inputs(source))
    before = {key: value.clone() for key, value in source.state_dict().items()}
    state = ml.grow(source, target)
    counters = [key for key in state if key.endswith("num_batches_tracked")]
    assert {int(state[key]) for key in counters} == {0, 1}  # 0 in the new block
    assert all(torch.equal(before[key], value) for key, value in source.state_dict().items())
    state["1.bias"].zero_()
    assert torch.equal(before["1.bias"], source.state_dict()["1.bias"])


def test_an_untreated_tie_doubles_the_logits() -> None:
    """Copies of the table's columns write and read: what is read is told twice."""
    source, target = gpt(), gpt(96, 2, 4)
    x = inputs(source)
    state = ml.grow(source, target)
    untied = {**state, "norm.weight": 2 * state["norm.weight"], "norm.bias": 2 * state["norm.bias"]}
    target.load_state_dict(untied)
    assert torch.allclose(target(x), 2 * source(x))


def scores(model: Any, x: Tensor) -> Tensor:
    """What the softmax of the first block's attention takes, by head, query and key."""
    attn, stream = model.blocks[0].attn, model.token_embed(x) + model.pos_embed
    q, k, _ = attn.qkv(model.blocks[0].norm1(stream)).unflatten(-1, (3, attn.heads, -1)).unbind(2)
    products: Tensor = torch.einsum("bqhs,bkhs->bhqk", q, k) / math.sqrt(q.shape[-1])
    return products


def test_without_their_factor_heads_twice_the_size_have_sharper_scores() -> None:
    """Twice the products over √2 times the scale: times √2, unless q and k are × 2^−¼ each."""
    source, target = gpt(), gpt(96, 2, 4)
    x = inputs(source)
    state = ml.grow(source, target)
    target.load_state_dict(state)
    assert torch.allclose(scores(target, x), scores(source, x))
    for key in state:
        if ".qkv." in key:
            state[key][: 2 * 96] *= 2**0.25
    target.load_state_dict(state)
    assert torch.allclose(scores(target, x), math.sqrt(2) * scores(source, x))


@pytest.mark.parametrize(
    ("scheme", "first"), [("replicate", -7 / math.sqrt(41)), ("mean", -3 / math.sqrt(5))]
)
def test_uneven_copies_under_a_layer_norm_by_hand(scheme: Width, first: float) -> None:
    """(1, 2, 3, 4) is normalised to begin with −1.34, (1, 2, 3, 4, 1, 2) to begin with −1.09."""
    before, wide = structure_of(gpt(4, 1, 1)), structure_of(gpt(6, 1, 1))
    sizes = {name: group.size for name, group in before.groups.items()}
    widening = Widening(wide, sizes, scheme)
    stream = widening.apply("pos_embed", torch.tensor([[1.0, 2, 3, 4]], dtype=torch.float64))[0]
    gain = widening.apply("blocks.0.norm1.weight", torch.ones(4, dtype=torch.float64))
    normal = nn.functional.layer_norm(stream, (6,), gain, eps=0)
    assert float(normal[0]) == pytest.approx(first)


def test_spectra() -> None:
    source, target = mlp(24), mlp(40)
    key = "0.layers.1.weight"
    values = torch.linalg.svdvals(source.state_dict()[key])
    for width in ("svd", "svd_random"):
        grown = ml.grow(source, target, width=width, generator=torch.Generator().manual_seed(0))
        assert torch.allclose(torch.linalg.svdvals(grown[key])[:24], values)
    kept = ml.grow(source, target, width="svd")[key]
    rows = torch.arange(40) % 24
    ratio = kept / source.state_dict()[key][rows][:, rows]
    counts = rows.bincount()[rows].double()
    assert torch.allclose(ratio, (counts[:, None] * counts).rsqrt())
    noise = ml.grow(source, target, width="svd", noise=0.3)[key] - kept
    assert noise.norm() > 0.1 * kept.norm()
    assert (noise @ expander("svd", 24, 40)).abs().max() < 1e-12, "what copies hold, none reads"


@pytest.mark.parametrize("width", [*WIDTHS, "aki"])
@pytest.mark.parametrize("pair", [lambda: (mlp(24, 3), mlp(37, 3)), lambda: (gpt(), gpt(96, 2, 8))])
def test_a_grown_matrix_has_no_more_rank(
    pair: Callable[[], tuple[nn.Module, nn.Module]], width: Width
) -> None:
    """R W Eᵀ spans no more than W (Eq. 8), but with units that have weights of their own."""
    source, target = pair()
    own, grown = source.state_dict(), ml.grow(source, target, width=width)
    ranks = {
        key: tuple(int(torch.linalg.matrix_rank(state[key])) for state in (own, grown))
        for key in own
        if own[key].dim() == 2
        and all(new > old for new, old in zip(grown[key].shape, own[key].shape, strict=True))
    }
    assert all(before < min(grown[key].shape) for key, (before, _) in ranks.items())
    raised = [key for key, (before, after) in ranks.items() if after > before]
    assert bool(raised) == (width == "mean"), raised


def test_rows_of_depth() -> None:
    assert depth_rows("stack", 2, 5).argmax(1).tolist() == [0, 1, 0, 1, 0]
    assert depth_rows("interlace", 2, 5).argmax(1).tolist() == [0, 0, 0, 1, 1]
    assert depth_rows("interpolate", 2, 3).tolist() == [[1, 0], [0.5, 0.5], [0, 1]]
    assert depth_rows("identity", 1, 3).tolist() == [[1], [0], [0]]
    assert depth_rows("stack_top", 2, 3).argmax(1).tolist() == [0, 1, 1]
    assert depth_rows("stack_top", 3, 8).argmax(1).tolist() == [0, 1, 2, 0, 1, 2, 1, 2]
    assert torch.equal(depth_rows("stack_top", 3, 6), depth_rows("stack", 3, 6))
    soft = depth_rows("stack", 3, 6, gap=6.0)
    assert torch.allclose(soft.sum(1), torch.ones(6).double())
    assert soft.max() == pytest.approx(0.995, abs=1e-3)


def test_layers_are_copied_mixed_and_taken_back() -> None:
    source, deep = gpt(48, 2), gpt(48, 4)
    state = ml.grow(source, deep, depth="stack")
    own = source.state_dict()
    assert torch.equal(state["blocks.3.fc1.weight"], own["blocks.1.fc1.weight"])
    middle = ml.grow(source, gpt(48, 3), depth="interpolate")["blocks.1.fc1.weight"]
    halves = (own["blocks.0.fc1.weight"] + own["blocks.1.fc1.weight"]) / 2
    assert torch.allclose(middle, halves)
    wide = mlp(24, 4)
    state = ml.grow(mlp(24, 2), wide, depth="interlace")  # the first layer is of another shape
    assert torch.equal(state["0.layers.3.weight"], state["0.layers.1.weight"])


def test_ties_in_separate_layers_stay() -> None:
    assert tied_keys(gpt2("GPT2LMHeadModel").state_dict()) == {
        "lm_head.weight": "transformer.wte.weight"
    }


def test_a_tie_that_the_source_lacks_is_refused() -> None:
    target = gpt2("GPT2LMHeadModel")
    state = {key: value.clone() for key, value in target.state_dict().items()}
    assert torch.equal(
        ml.grow(target, target, state=state)["lm_head.weight"], state["lm_head.weight"]
    )
    state["lm_head.weight"] += 1
    with pytest.raises(ValueError, match=r"'lm_head\.weight' is tied to"):
        ml.grow(target, target, state=state)


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        (gpt(), gpt(24), {}, "'token_embed' has 24 units .* fewer than the source's 48"),
        (gpt(), gpt(72), {}, r"'token_embed' grows from 48 to 72, no whole multiple.*'mean'"),
        (gpt(), gpt(48, 1), {}, "'blocks' has 1 layers in the target, fewer than the source's 2"),
        (gpt(), gpt(96, 2, 16), {}, "keys' has 6 units in the target, fewer"),
        (
            gpt(),
            perturbed(models.GPT(48, 2, 4, vocabulary=60, context=16)),
            {},
            "50 entries.*fixed",
        ),
        (
            mlp(),
            mlp(24, 2, 6),
            {},
            "'1' has 5 entries in the source and 6 .*visible in",
        ),
        (mlp(), mlp(24, 4), {}, r"'0.layers.2' has no residual branch"),
        (mlp(24, 1), mlp(24, 3), {"depth": "stack"}, "no layer that depth 'stack' could repeat"),
        (resnet(), resnet(4, (1, 1)), {}, "'0.stages' has 2 layers in the target, fewer"),
        (resnet(4, (1, 1)), resnet(), {}, "'0.stages.2' has no residual branch"),
        (
            resnet(),
            mlp(),
            {},
            "the source lacks key '0.layers.0",
        ),
        (gpt(), gpt(), {"depth": "twice"}, "depth is 'twice', expected 'identity'"),
        (gpt(), gpt(), {"width": "zero"}, "width is 'zero', expected 'replicate'"),
        (gpt(), gpt(), {"noise": -1.0}, "noise is -1"),
        (gpt(), gpt(), {"noise": 0.1, "width": "mean"}, "except for 'replicate', 'svd', 'aki'"),
        (gpt(), gpt(48, 3), {"gap": 6.0}, "gap is 6"),
        (gpt(), gpt(), {"state": mlp()}, "state lacks key 'pos_embed'|state lacks key"),
        (nn.LSTM(3, 4), nn.LSTM(3, 5), {}, "LSTM, which has no description"),
    ],
)
def test_misfits_are_named(
    source: nn.Module, target: nn.Module, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ml.grow(source, target, **options)


def post_norm(width: int, heads: int) -> nn.Module:
    source: Any = bert("BertForMaskedLM")
    sizes = {"hidden_size": width, "num_attention_heads": heads}
    model: nn.Module = type(source)(type(source.config)(**{**source.config.to_dict(), **sizes}))
    return model


def normed(norm: Callable[[int], nn.Module]) -> Callable[[int], nn.Module]:
    return lambda width: nn.Sequential(
        nn.Linear(3, width), norm(width), nn.GELU(), nn.Linear(width, 5)
    )


UNEVEN: dict[str, Callable[[], tuple[nn.Module, nn.Module]]] = {
    "bert": lambda: (post_norm(32, 4), post_norm(48, 6)),
    "bert, a little wider": lambda: (post_norm(32, 4), post_norm(40, 5)),
    "rms norm": lambda: (normed(nn.RMSNorm)(6), normed(nn.RMSNorm)(9)),
    "group norm": lambda: (
        normed(lambda n: nn.GroupNorm(1, n))(6),
        normed(lambda n: nn.GroupNorm(1, n))(9),
    ),
    "pre-norm": lambda: (gpt(48, 1), gpt(72, 1)),
}


@pytest.mark.parametrize("case", UNEVEN)
def test_advice_on_width_is_good(case: str) -> None:
    """It went round in a circle: 'replicate' said 'mean', which said 'replicate'."""
    check_advice(*UNEVEN[case](), possible=case == "pre-norm")


def check_advice(source: nn.Module, target: nn.Module, *, possible: bool) -> None:
    refused = {}
    for width in ("replicate", "mean"):
        try:
            ml.grow(source, target, width=width)
        except ValueError as error:
            refused[width] = str(error)
    assert "replicate" in refused, "no whole multiple"
    if "mean" in refused:
        for text in refused.values():
            assert "cannot keep the function either" in text
            assert "use width=" not in text
        ml.grow(source, target, width="svd")
        ml.grow(source, target, width="interpolate")
    else:
        assert possible
        assert refused["replicate"].endswith("; use width='mean'")


def test_advice_looks_at_all_groups() -> None:
    """The stream could have a mean, but the group within it could not; so neither way is open."""

    def build(width: int, inner: int) -> nn.Module:
        block = nn.Sequential(nn.Linear(width, inner), nn.RMSNorm(inner), nn.Linear(inner, 5))
        return nn.Sequential(nn.Linear(3, width), nn.ReLU(), block)

    with pytest.raises(
        ValueError, match=r"no whole multiple.* and width 'mean' cannot keep the function either"
    ):
        ml.grow(build(4, 6), build(6, 9))
    with pytest.raises(ValueError, match=r"'mean' cannot keep the function; use width='replicate'"):
        ml.grow(build(4, 6), build(6, 12), width="mean")
    ml.grow(build(4, 6), build(6, 12))


def test_what_is_not_finite_is_named() -> None:
    state = dict(mlp().state_dict())
    state["1.bias"] = state["1.bias"].index_fill(0, torch.tensor([2]), float("nan"))
    with pytest.raises(ValueError, match=r"state\['1.bias'\] contains NaN or Inf"):
        ml.grow(mlp(), mlp(30), state=state)
