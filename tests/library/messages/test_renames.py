"""Keys that differ by a prefix or by old names: the change that makes them match is proposed."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import mergelib as ml
from mergelib.messages.renames import explain_names

KEYS = [f"encoder.layer.{i}.{n}.{p}" for i in range(3) for n in "qv" for p in ("weight", "bias")]
KEYS += ["embed.LayerNorm.weight", "embed.LayerNorm.bias"]


def state(keys: list[str]) -> dict[str, Tensor]:
    return {key: torch.ones(2) if "Norm" in key else torch.ones(2, 2) for key in keys}


CASES = {
    "module.": ([f"module.{k}" for k in KEYS], "all 14", "the prefix 'module.' removed"),
    "compiled": ([f"_orig_mod.{k}" for k in KEYS], "all 14", "the prefix '_orig_mod.' removed"),
    "both": (
        [f"module._orig_mod.{k}" for k in KEYS],
        "all 14",
        "the prefix 'module._orig_mod.' removed",
    ),
    "without": (
        [k.removeprefix("encoder.") for k in KEYS if k.startswith("encoder.")],
        "all 12",
        "the prefix 'encoder.'",
    ),
    "a head beside": (
        [*(f"bert.{k}" for k in KEYS), "classifier.weight"],
        "14 of its 15",
        "the prefix 'bert.' removed",
    ),
    "old names": (
        [re.sub("Norm.bias", "Norm.beta", re.sub("Norm.weight", "Norm.gamma", k)) for k in KEYS],
        "all 14",
        "'weight' and 'bias' in place of 'gamma' and 'beta'",
    ),
    "a part inside": (
        [k.replace("encoder.layer", "model.language_model.layer") for k in KEYS],
        "",
        "'encoder.' in place of the prefix 'model.language_model.'",
    ),
    "old, and a prefix": (
        [f"bert.{re.sub('Norm.weight', 'Norm.gamma', k)}" for k in KEYS],
        "all 14",
        "the prefix 'bert.' removed and 'weight' and 'bias' in place",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_of_names_is_proposed(case: str, tmp_path: Path) -> None:
    keys, share, words = CASES[case]
    message = re.escape(f"{share} keys of expert 0 match those of pretrained with {words}")
    message = message if share else re.escape(f"match those of pretrained with {words}")
    with pytest.raises(ValueError, match=message) as caught:
        ml.merge("average", [state(keys)], pretrained=state(KEYS))
    assert "only heads differ" not in str(caught.value)
    ml.save_state_dict(state(keys), tmp_path / "a.safetensors")
    ml.save_state_dict(state(KEYS), tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=message):
        ml.merge_files(
            "average",
            [tmp_path / "a.safetensors"],
            tmp_path / "o.safetensors",
            pretrained=tmp_path / "b.safetensors",
        )


def test_gpt2_without_its_prefix() -> None:
    """As its first files were saved, and the model of another key than all others is the base."""
    keys = ["wte.weight", "wpe.weight", *(f"h.{i}.attn.c_attn.weight" for i in range(4))]
    text = explain_names("a", keys, "b", [f"transformer.{k}" for k in keys] + ["lm_head.weight"])
    assert "all 6 keys of a match those of b with the prefix 'transformer.'" in text
    with pytest.raises(ValueError, match=r"nothing to merge.*all 6 keys of expert 0 match"):
        ml.merge(
            "average",
            [state(keys)],
            pretrained=state([f"transformer.{k}" for k in keys]),
            missing="skip",
        )


@pytest.mark.parametrize(
    "keys",
    [
        KEYS[:-1],
        [*KEYS, "head.weight"],
        ["a.weight", "b.weight"],
        [k.replace("weight", "kernel") for k in KEYS],
    ],
)
def test_other_differences_are_not_explained_by_names(keys: list[str]) -> None:
    assert explain_names("a", keys, "b", KEYS) == ""
