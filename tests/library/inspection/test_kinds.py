"""What is a matrix, by structure where that is known, and what is said to be left."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergelib.inspection.kinds import Matrices, layer_kinds
from mergelib.statedict import is_kernel, is_matrix, is_stack

State = dict[str, Tensor]


def heard(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [text for each in caught if "works on matrices" in (text := str(each.message))]


def models(shapes: dict[str, tuple[int, ...]], count: int = 3) -> list[State]:
    generator = torch.Generator().manual_seed(0)
    base = {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}
    return [
        {key: value + 0.1 * torch.randn(value.shape, generator=generator)
         for key, value in base.items()}
        for _ in range(count)
    ]  # fmt: skip


def same(one: State, other: State) -> set[str]:
    """The keys in which two models are equal."""
    return {key for key in one if torch.equal(one[key], other[key])}


# Fused experts, in the names of transformers 5, GPT-OSS, Llama 4, DBRX, and of nobody.
FUSED: dict[str, tuple[int, ...]] = {
    "model.layers.0.mlp.experts.gate_up_proj": (4, 8, 16),
    "model.layers.0.mlp.experts.down_proj": (4, 16, 8),
    "model.layers.0.mlp.experts.gate_up_proj_bias": (4, 16),
    "model.layers.0.feed_forward.experts.gate_up_proj": (4, 8, 16),
    "transformer.blocks.0.ffn.experts.mlp.w1": (32, 8),
    "moe.input_linear.weight": (2, 40, 36),
}


@pytest.mark.parametrize("key", FUSED)
@pytest.mark.parametrize("method", ["cart", "tsv", "iso_c", "low_rank_task_arithmetic"])
def test_fused_experts_are_merged_one_by_one(method: str, key: str) -> None:
    states = models({key: FUSED[key], "fc.weight": (6, 6)})
    apart = [{f"w{i}": part for i, part in enumerate(state[key])} for state in states]
    for decide in (is_matrix, is_kernel):
        options: dict[str, Any] = {"is_matrix": decide}
        base: dict[str, Any] = {} if method == "cart" else {"pretrained": states[0]}
        texts = heard(partial(ml.merge, method, states[1:], **base, **options))
        assert len(texts) == (len(FUSED[key]) == 2)
        merged = ml.merge(method, states[1:], **base, **options)[key]
        base = {} if method == "cart" else {"pretrained": apart[0]}
        expected = ml.merge(method, apart[1:], **base, **options)
        assert torch.equal(merged, torch.stack([*expected.values()]))
        assert all(f"a mixture's experts in one tensor ({key!r})" in text for text in texts)


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("conv1.weight", (16, 8, 3)),
        ("mlp.experts.0.w1.weight", (8, 8)),
        ("mlp.experts.11.conv.weight", (8, 8, 3)),
        ("mlp.shared_experts.gate_proj.weight", (8, 8)),
        ("mlp.shared_expert.up_proj.weight", (8, 8)),
    ],
)
def test_what_is_no_stack(key: str, shape: tuple[int, ...]) -> None:
    assert not is_stack(key, torch.zeros(shape))
    assert is_kernel(key, torch.zeros(shape))


def test_every_door_names_them(tmp_path: Path) -> None:
    states = models({"mlp.experts.up": (32, 8), "x_embedder.weight": (6, 6), "c.w": (4, 3, 2, 2)})
    model = nn.Linear(6, 6)
    files = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for state, file in zip(states, files, strict=True):
        ml.save_state_dict(state, file)
    doors: dict[str, Callable[[], Any]] = {
        "merge": lambda: ml.merge("cart", states),
        "merge_files": lambda: ml.merge_files("cart", files, tmp_path / "out.safetensors"),
        "compress": lambda: ml.compress("cart_indexing", states, rest="average"),
        "compress whole": lambda: ml.compress("cart_indexing", states),
    }
    for name, call in doors.items():
        (text,) = heard(call)
        assert "\n" not in text
        for key in ("mlp.experts.up", "x_embedder.weight", "c.w"):
            assert f"({key!r})" in text, name
    plain = models({"weight": (6, 6), "bias": (6,)})
    data = {"a": torch.randn(5, 6)}
    assert not heard(
        lambda: ml.adapt("adamerging", plain[1:], pretrained=plain[0], model=model, data=data,
                         steps=1, base="cart")
    )  # fmt: skip
    net = nn.Sequential(nn.Conv1d(6, 4, 3), nn.Flatten(), nn.Linear(4 * 4, 5))
    own = models({key: tuple(value.shape) for key, value in net.state_dict().items()})
    (text,) = heard(
        lambda: ml.adapt("adamerging", own[1:], pretrained=own[0], model=net, steps=1,
                         data={"a": torch.randn(5, 6, 6)}, base="cart")
    )  # fmt: skip
    assert "adamerging with base 'cart' works on matrices, and it leaves to average" in text
    assert "convolutions ('0.weight')" in text


# Names and structure ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["x_embedder.weight", "time_embed.0.weight", "pos_embed.proj.weight", "embed_out.weight"]
)
def test_a_name_that_looks_like_a_table_is_said_or_settled_by_a_bias(key: str) -> None:
    shapes: dict[str, tuple[int, ...]] = {key: (8, 6), "fc.weight": (6, 6)}
    states = models(shapes)
    (text,) = heard(lambda: ml.merge("cart", states))
    assert f"weights whose names look like those of tables ({key!r}): pass is_matrix=" in text
    average = ml.merge("average", states)
    assert key in same(ml.merge("cart", states, rank_ratio=0.3), average)
    linear = models({**shapes, key.replace("weight", "bias"): (8,)})
    assert not heard(lambda: ml.merge("cart", linear))
    merged = ml.merge("cart", linear, rank_ratio=0.3)
    told = ml.merge("cart", linear, rank_ratio=0.3, is_matrix=lambda k, t: t.dim() == 2)
    assert torch.equal(merged[key], told[key])
    assert key not in same(merged, ml.merge("average", linear))


def test_the_usual_tables_are_no_news() -> None:
    names = ["wte", "wpe", "embed_tokens", "embeddings.word_embeddings", "shared", "tok_embeddings",
             "embeddings.position_embeddings", "embeddings.token_type_embeddings"]  # fmt: skip
    shapes = {f"{name}.weight": (8, 6) for name in names}
    assert not heard(
        lambda: ml.merge("cart", models({**shapes, "pos_embed": (8, 6), "cls_token": (1, 1, 6)}))
    )


class Odd(nn.Module):
    """Layers whose names say the opposite of what they are."""

    def __init__(self) -> None:
        super().__init__()
        self.position_embedder = nn.Linear(6, 8, bias=False)
        self.codes = nn.Embedding(8, 6)
        self.wte = nn.Embedding(8, 6)
        self.head = nn.Linear(6, 8, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.position_embedder(self.codes(x)) @ self.head.weight
        return out


def odd(seed: int) -> Odd:
    torch.manual_seed(seed)
    return Odd()


def test_a_modules_layers_decide() -> None:
    modules = [odd(seed) for seed in range(3)]
    assert layer_kinds(modules[0]) == {
        "position_embedder.weight": True,
        "codes.weight": False,
        "wte.weight": False,
        "head.weight": False,
    }
    assert not heard(lambda: ml.merge("cart", modules))
    merged, average = ml.merge("cart", modules, rank_ratio=0.3), ml.merge("average", modules)
    assert same(merged, average) == {"codes.weight", "wte.weight", "head.weight"}
    named = ml.merge("cart", [m.state_dict() for m in modules], rank_ratio=0.3)
    assert same(named, average) == {"position_embedder.weight", "wte.weight", "head.weight"}
    parts = ml.compress("cart_indexing", modules, rank_ratio=0.3)
    assert set(parts.own["expert 0"]["left"]) == {"position_embedder.weight"}
    asked = ml.merge(
        "cart", modules, rank_ratio=0.3, is_matrix=lambda key, _: key == "codes.weight"
    )
    assert "codes.weight" not in same(asked, average), "who passes a function is followed"


def test_adapt_asks_the_model() -> None:
    states = [dict(odd(seed).state_dict()) for seed in range(3)]
    result = ml.adapt(
        "adamerging",
        states[1:],
        pretrained=states[0],
        model=odd(0),
        data={"a": torch.arange(8)[None].repeat(3, 1)[:, 0]},
        base="cart",
        steps=1,
    )
    assert list(result.coefficients) == ["position_embedder.weight"]


def test_weights_of_several_kinds_by_hand() -> None:
    layout = {"emb.weight": torch.zeros(5, 4), "lin.weight": torch.zeros(5, 4), "lin.bias":
              torch.zeros(5), "embed.norm.weight": torch.zeros(4, 4),
              "embed.norm.bias": torch.zeros(4, 4), "embed.row.weight": torch.zeros(1, 4),
              "embed.row.bias": torch.zeros(1)}  # fmt: skip
    decide = Matrices(is_matrix, layout)
    assert [key for key, tensor in layout.items() if decide(key, tensor)] == ["lin.weight"]
    assert not decide("lin.weight", torch.zeros(5, 4, dtype=torch.int64))


def tiny(kind: str) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    if kind == "T5ForConditionalGeneration":
        config = transformers.T5Config(
            vocab_size=50, d_model=32, num_layers=1, d_ff=48, num_heads=4, d_kv=8
        )
    else:
        config = getattr(transformers, kind.replace("ForCausalLM", "Config"))(
            **sizes, num_local_experts=4
        )
    return getattr(transformers, kind)(config)


def test_a_mixture_as_modules_is_merged_expert_by_expert() -> None:
    """Transformers 5 keeps them in one tensor in memory, and one by one in folders."""
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(tiny("MixtralForCausalLM"))
    keys = [key for key in models[0].state_dict() if "experts." in key]
    if any(".0." in key.split("experts")[1] for key in keys):
        pytest.skip("this version of transformers keeps experts apart")
    states = [model.state_dict() for model in models]
    apart = [{f"w{i}": part for i, part in enumerate(state[keys[0]])} for state in states]
    merged = ml.merge("cart", models)[keys[0]]
    assert torch.equal(merged, torch.stack([*ml.merge("cart", apart).values()]))


def test_a_t5s_tables_of_positions_are_tables() -> None:
    """They are two-dimensional, and were decomposed."""
    model = tiny("T5ForConditionalGeneration")
    state = model.state_dict()
    tables = [key for key in state if "relative_attention_bias" in key]
    assert tables
    for decide in (is_matrix, Matrices(is_matrix, state, layer_kinds(model))):
        assert not any(decide(key, state[key]) for key in tables)
