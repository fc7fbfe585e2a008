"""Adapters are known by their structure, whatever they are called; whole models never are."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergelib.messages.adapters import factors_of

State = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]
# What PEFT 0.21 saves for one layer, behind base_model.model.l.0.q
PEFT: dict[str, Shapes] = {
    "vera": {"vera_lambda_b": (16,), "vera_lambda_d": (4,)},
    "oft": {"oft_R.weight": (4, 6)},
    "boft": {"boft_R": (1, 4, 4, 4), "boft_s": (16, 1)},
    "hra": {"hra_u": (16, 4)},
    "vblora": {"vblora_logits_A": (4, 4, 8), "vblora_logits_B": (4, 4, 8)},
    "randlora": {"randlora_gamma": (1, 16), "randlora_lambda": (32, 1)},
    "delora": {"delora_A": (8, 16), "delora_B": (16, 8), "delora_lambda": (1,)},
    "gralora": {"gralora_A": (2, 8, 32), "gralora_B": (2, 32, 8)},
    "lily": {"lily_A.weight": (32, 16), "lily_B.weight": (64, 16)},
    "osf": {"osf_svd_params.S_low": (8,), "osf_svd_params.U_low": (16, 8)},
    "not yet invented": {"xyz_a": (16,), "xyz_b": (16,)},
}
ADDITIVE: dict[str, Shapes] = {
    "ia3": {"ia3_l": (16, 1)},
    "fourierft": {"fourierft_spectrum": (10,)},
    "layer norm": {"ln_tuning_layers.weight": (16,), "ln_tuning_layers.bias": (16,)},
}


def two(shapes: Shapes, seed: int = 0) -> list[State]:
    """Two experts of these shapes."""
    generator = torch.Generator().manual_seed(seed)
    return [{k: torch.randn(s, generator=generator) for k, s in shapes.items()} for _ in range(2)]


def wrapped(layer: Shapes) -> Shapes:
    places = [f"base_model.model.l.{i}.{name}" for i in range(2) for name in "qv"]
    return {f"{place}.{key}": shape for place in places for key, shape in layer.items()}


def files(states: list[State], folder: Path) -> list[Path]:
    paths = [folder / f"{i}.safetensors" for i in range(len(states))]
    for path, state in zip(paths, states, strict=True):
        ml.save_state_dict(state, path)
    return paths


@pytest.mark.parametrize("kind", PEFT)
def test_what_peft_saves_is_refused(kind: str, tmp_path: Path) -> None:
    shapes = wrapped(PEFT[kind])
    states = two(shapes)
    message = re.escape(f" holds adapters ({next(iter(shapes))!r} and ")
    calls: list[Callable[[], Any]] = [
        lambda: ml.merge("average", states),
        lambda: ml.merge_files("average", files(states, tmp_path), tmp_path / "out"),
        lambda: ml.adapt("uniform_soup", states, pretrained=states[0]),
        lambda: ml.compress("cart_indexing", states),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert "merge_and_unload" in str(caught.value)


@pytest.mark.parametrize("kind", ADDITIVE)
def test_what_is_linear_passes(kind: str) -> None:
    states = two(wrapped(ADDITIVE[kind]))
    merged = ml.merge("average", states)
    assert all(torch.equal(t, (states[0][k] + states[1][k]) / 2) for k, t in merged.items())


def test_saved_modules_are_merged_where_they_are_asked_for() -> None:
    shapes = wrapped(PEFT["oft"])
    shapes |= {"base_model.model.head.weight": (4, 16), "base_model.model.head.bias": (4,)}
    states = two(shapes)
    with pytest.raises(ValueError, match="holds adapters"):
        ml.merge("average", states)
    head = ml.merge("average", states, exclude="*oft_R*")["base_model.model.head.weight"]
    first, second = (state["base_model.model.head.weight"] for state in states)
    assert torch.equal(head, (first + second) / 2)
    with pytest.raises(ValueError, match="holds adapters"):
        ml.merge("average", states, exclude="*.head.*")


UNWRAPPED: dict[str, Shapes] = {
    "names of one's own": {"q.A": (2, 16), "q.B": (16, 2), "v.A": (2, 16), "v.B": (16, 2)},
    "bottlenecks": {
        f"{i}.{n}.weight": s for i in "ab" for n, s in (("in", (2, 9)), ("to", (8, 2)))
    },
    "LyCORIS": {"l_q.oft_blocks": (2, 4, 4), "l_q.alpha": (), "l_v.oft_blocks": (2, 4, 4)}
    | {"l_v.alpha": ()},
}


@pytest.mark.parametrize("kind", UNWRAPPED)
def test_adapters_of_other_libraries(kind: str) -> None:
    with pytest.raises(ValueError, match="holds adapters"):
        ml.merge("average", two(UNWRAPPED[kind]))


@pytest.mark.parametrize("layer", [*PEFT.values(), {"A": (2, 16), "B": (16, 2)}])
@pytest.mark.filterwarnings("ignore:missing=")
def test_what_hangs_below_a_layer_of_the_base(layer: Shapes) -> None:
    """Without PEFT's prefix, beside a trained head, and where keys may differ."""
    base = two({"q.weight": (16, 16), "q.bias": (16,), "head.weight": (4, 16)})[0]
    shapes = {f"q.{key}": shape for key, shape in layer.items()} | {"head.weight": (4, 16)}
    matrices = [shape for shape in layer.values() if len(shape) > 1]
    if any("." in key for key in layer) or len(matrices) > 1:
        with pytest.raises(ValueError, match="holds adapters"):
            ml.merge("ties", two(shapes), pretrained=base, missing="skip")
    with pytest.raises(ValueError):  # noqa: PT011  # one of two refusals
        ml.merge("ties", two(shapes), pretrained=base)


WHOLE: dict[str, Shapes] = {
    "autoencoder": {"encoder.weight": (4, 64), "decoder.weight": (64, 4)},
    "layers with biases": {
        **{f"{i}.{n}.weight": s for i in "ab" for n, s in (("to", (2, 9)), ("fro", (9, 2)))},
        **{f"{i}.{n}.bias": (9,) for i in "ab" for n in ("to", "fro")},
    },
    "bottlenecks in a network": {
        **{f"{i}.{n}.weight": s for i in "ab" for n, s in (("to", (2, 9)), ("fro", (9, 2)))},
        "stem.weight": (9, 9),
    },
    "scaled blocks": {"0.alpha": (), "0.w.weight": (4, 4), "head.weight": (2, 4)},
    "feed-forward": {"0.up.weight": (32, 8), "0.down.weight": (8, 32), "0.q.weight": (8, 8)},
}


@pytest.mark.parametrize("kind", WHOLE)
def test_whole_models_are_no_adapters(kind: str) -> None:
    states = two(WHOLE[kind])
    assert ml.merge("average", states).keys() == WHOLE[kind].keys()


def test_keys_that_a_base_lacks_are_no_adapters_yet() -> None:
    base = two({"q.weight": (4, 4), "bn.weight": (4,)})[0]
    for key in (
        "q.kernel",
        "q.bias",
        "bn.running_mean",
        "q.weight_scale_inv",
        "q.parametrizations.weight.0",
    ):
        more = {**base, key: torch.ones(4) if "b" in key else torch.ones(2, 2)}
        assert factors_of(more, base, {*more}) == []


@pytest.mark.parametrize("name", ["timm", "transformers"])
def test_real_models_are_no_adapters(name: str) -> None:
    library = pytest.importorskip(name)
    if name == "timm":
        names = ["resnet10t", "vit_tiny_patch16_224", "mobilenetv3_small_050", "mixer_s32_224"]
        models: list[nn.Module] = [library.create_model(n) for n in [*names, "convnext_atto"]]
    else:
        small = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
        small |= {"intermediate_size": 64, "vocab_size": 50}
        models = [
            library.LlamaForCausalLM(library.LlamaConfig(**small)),
            library.BertModel(library.BertConfig(**small)),
            library.T5Model(library.T5Config(d_model=8, d_ff=64, num_layers=1, vocab_size=9)),
            library.MambaModel(library.MambaConfig(hidden_size=8, num_hidden_layers=2)),
        ]
    for model in models:
        state = model.state_dict()
        assert factors_of(state, {}, {*state}) == []
        assert factors_of(state, state, {*state}) == []


def test_real_adapters(tmp_path: Path) -> None:
    """Of PEFT itself, where it is installed."""
    peft = pytest.importorskip("peft")
    target = {"target_modules": ["0", "2"]}
    kinds = {
        "lora": peft.LoraConfig(r=2, modules_to_save=["3"], **target),
        "dora": peft.LoraConfig(r=2, use_dora=True, **target),
        "vera": peft.VeraConfig(r=2, **target),
        "oft": peft.OFTConfig(r=0, oft_block_size=4, **target),
        "hra": peft.HRAConfig(r=2, **target),
        "randlora": peft.RandLoraConfig(**target),
        "ia3": peft.IA3Config(feedforward_modules=[], **target),
    }
    for kind, config in kinds.items():
        layers = [nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 2)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peft.get_peft_model(nn.Sequential(*layers), config).save_pretrained(tmp_path / kind)
        saved = tmp_path / kind / "adapter_model.safetensors"
        with pytest.raises(ValueError, match="holds an adapter but no model"):
            ml.merge("average", [tmp_path / kind])
        if kind == "ia3":
            ml.merge("average", [saved])
            continue
        with pytest.raises(ValueError, match="holds adapters"):
            ml.merge("average", [saved])
