"""Integers and ties that differ between models are refused, in memory and in files alike."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergelib.merging import compare

State = dict[str, Tensor]
BASE = {"fc.weight": torch.ones(3, 3)}
Door = Callable[[list[State], Path], Any]


def saved(folder: Path, states: list[State]) -> list[Path]:
    files = [folder / f"{i}.safetensors" for i in range(len(states))]
    for file, state in zip(files, states, strict=True):
        ml.save_state_dict(state, file)
    return files


DOORS: dict[str, Door] = {
    "merge": lambda states, _: ml.merge("average", states),
    "merge_files": lambda states, folder: ml.merge_files(
        "average", saved(folder, states), folder / "out.safetensors", overwrite=True
    ),
    "adapt": lambda states, _: ml.adapt("uniform_soup", states, pretrained=states[0]),
    "adapt files": lambda states, folder: ml.adapt(
        "uniform_soup", saved(folder, states), pretrained=saved(folder, states)[0]
    ),
    "compress": lambda states, _: ml.compress("cart_indexing", states),
    "emr": lambda states, _: ml.compress("emr", states, pretrained=states[0]),
}


def pair(key: str, one: Tensor, other: Tensor) -> list[State]:
    """Two models with such a key besides a weight."""
    weights = [torch.randn(3, 3, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    return [{"fc.weight": weights[i], key: (one, other)[i].clone()} for i in range(2)]


def integers(dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    high = 2 if dtype == torch.bool else 100
    return torch.randint(0, high, (4, 6), generator=generator).to(dtype)


# Under names that no list knows: as MXFP4's blocks and scales, a pruning mask, …
DIFFERING: dict[str, torch.dtype] = {
    "mlp.experts.gate_up_proj_blocks": torch.uint8,
    "mlp.experts.gate_up_proj_scales": torch.uint8,
    "q_proj.codes": torch.uint8,
    "layer.packed_codes": torch.int32,
    "layer.w4": torch.int16,
    "layer.indices": torch.int64,
    "layer.short": torch.uint16,
    "layer.keep": torch.bool,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("key", DIFFERING)
def test_integers_that_differ_are_refused_by_name(door: str, key: str, tmp_path: Path) -> None:
    dtype = DIFFERING[key]
    states = pair(key, integers(dtype, 0), integers(dtype, 1))
    if door == "emr":
        states = [*states[:1], *states]
    message = f"[{key!r}] differs from that of "
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        DOORS[door](states, tmp_path)
    assert "dequantise the models first" in str(caught.value)
    assert str(dtype) in str(caught.value)
    assert ("exclude=" in str(caught.value)) == (door not in ("compress", "emr"))
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        ("bn.num_batches_tracked", torch.tensor(3), torch.tensor(5)),
        ("bns.num_batches_tracked", torch.tensor([3, 4]), torch.tensor([5, 6])),
        ("embeddings.position_ids", torch.arange(8)[None], torch.arange(8)[None] + 1),
        ("queue_ptr", torch.tensor([17]), torch.tensor([20])),
        ("mask", torch.ones(2, 2, dtype=torch.bool), torch.ones(2, 2, dtype=torch.bool)),
        ("codes", torch.ones(4, 4, dtype=torch.uint8), torch.ones(4, 4, dtype=torch.uint8)),
    ],
)
def test_counters_may_differ_and_the_rest_may_agree(
    door: str, key: str, one: Tensor, other: Tensor, tmp_path: Path
) -> None:
    DOORS[door](pair(key, one, other), tmp_path)


def test_they_may_be_left_out_and_only_what_is_merged_counts() -> None:
    states = pair("codes", integers(torch.int32, 0), integers(torch.int32, 1))
    merged = ml.merge("average", states, exclude="codes")
    assert torch.equal(merged["codes"], states[0]["codes"])
    assert torch.equal(
        ml.merge("average", states, include="fc.*")["codes"], integers(torch.int32, 0)
    )
    with pytest.raises(ValueError, match=r"^expert 0\['codes'\] .* that of pretrained"):
        ml.merge("task_arithmetic", states[:1], pretrained=states[1])


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e8m0fnu]
)
def test_float8_is_to_be_dequantised(dtype: torch.dtype, tmp_path: Path) -> None:
    states = [{"w": torch.ones(4, 4).to(dtype), "w_scale": torch.tensor(1.0 + i)} for i in range(2)]
    for door in ("merge", "adapt", "compress"):
        with pytest.raises(ValueError, match=r"'w'.*torch.float8.*: (dequantise or cast|pass deq)"):
            DOORS[door](states, tmp_path)


# Ties --------------------------------------------------------------------------------------------


def language(tie: bool, seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    table, head = (torch.randn(9, 4, generator=generator) for _ in range(2))
    body = torch.randn(4, 4, generator=generator)
    return {"embed.weight": table, "body.weight": body, "lm_head.weight": table if tie else head}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("door", [door for door in DOORS if door != "emr"])
def test_tied_and_untied_heads_do_not_mix(door: str, first: bool, tmp_path: Path) -> None:
    """The untied head was lost where the first model was tied."""
    states = [language(first, 0), language(not first, 1)]
    message = r"ties 'lm_head.weight' to 'embed.weight', but (expert \d|pretrained) holds two"
    with pytest.raises(ValueError, match=message) as caught:
        DOORS[door](states, tmp_path)
    assert "tie_word_embeddings: false" in str(caught.value)
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("door", DOORS)
def test_the_advice_on_ties_works(door: str, tmp_path: Path) -> None:
    """A tensor of its own under each name; and ties that a file does not note are no others."""
    tied = language(True, 0)
    cloned = {key: value.clone() for key, value in tied.items()}
    DOORS[door]([cloned, language(False, 1)], tmp_path)
    DOORS[door]([tied, {key: value.clone() for key, value in language(True, 1).items()}], tmp_path)
    DOORS[door]([tied, language(True, 1)], tmp_path)


def test_what_is_merged_of_cloned_heads_is_the_average() -> None:
    tied, untied = language(True, 0), language(False, 1)
    cloned = {key: value.clone() for key, value in tied.items()}
    merged = ml.merge("average", [cloned, untied])
    expected = (tied["embed.weight"] + untied["lm_head.weight"]) / 2
    torch.testing.assert_close(merged["lm_head.weight"], expected)


@pytest.mark.parametrize("lacking", ["pretrained", "expert"])
@pytest.mark.parametrize("missing", ["error", "base", "skip"])
def test_a_head_that_a_file_leaves_out(missing: Any, lacking: str) -> None:
    """As Hugging Face writes a tied model; a trained head was dropped, or was the base's."""
    whole, cut = language(False, 0), language(True, 1)
    del cut["lm_head.weight"]
    base, expert = (cut, whole) if lacking == "pretrained" else (whole, cut)
    for door in (ml.merge, ml.adapt):
        name = "average" if door is ml.merge else "uniform_soup"
        with pytest.raises(ValueError, match=r"lacks 'lm_head.weight', which .* ties it to 'embed"):
            door(name, [expert], pretrained=base, missing=missing)


def test_a_classifier_is_no_head_that_is_tied() -> None:
    """BERT's table of two token types has the shape of a head of two classes."""
    base = {"bert.token_type_embeddings.weight": torch.zeros(2, 4), "bert.w": torch.randn(4, 4)}
    tuned = {**base, "bert.w": torch.randn(4, 4), "classifier.weight": torch.ones(2, 4)}
    with pytest.warns(UserWarning, match="missing='skip' leaves 1 of 3 keys"):
        merged = ml.merge("average", [tuned], pretrained=base, missing="skip")
    assert set(merged) == set(base)


def test_another_architecture_is_no_tied_head() -> None:
    """Whisper's table of tokens has the shape of another model's head, under a name of its own."""
    other = {"decoder.embed_tokens.weight": torch.zeros(20, 8), "decoder.w": torch.zeros(8, 8)}
    one = {"model.embed_tokens.weight": torch.zeros(20, 8), "lm_head.weight": torch.zeros(20, 8)}
    for models in ([one, other], [other, one]):
        with pytest.raises(ValueError, match="these are models of different architectures"):
            ml.merge("average", models)


def test_modules_that_tie_and_do_not() -> None:
    transformers = pytest.importorskip("transformers")
    models: list[nn.Module] = []
    for tie in (True, False):
        config = transformers.GPT2Config(
            n_embd=8, n_layer=1, n_head=2, vocab_size=20, n_positions=8, tie_word_embeddings=tie
        )
        models.append(transformers.GPT2LMHeadModel(config))
    for order in (models, models[::-1]):
        with pytest.raises(ValueError, match=r"ties 'lm_head.weight' to 'transformer.wte.weight'"):
            ml.merge("average", order)


def test_an_expert_named_pretrained() -> None:
    with pytest.raises(ValueError, match="an expert may not be named 'pretrained'"):
        ml.merge("task_arithmetic", {"pretrained": BASE}, pretrained=BASE)
    assert ml.merge("average", {"pretrained": BASE})


def test_one_model_agrees_with_itself() -> None:
    compare({"a": BASE}, None).check()
