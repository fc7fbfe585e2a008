"""Inputs that cannot be read as they are: the message says what they are and what to do."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import mergelib as ml
from mergelib.cli import app
from mergelib.io import load_state_dict
from mergelib.merging import merge

STATE = {"encoder.weight": torch.randn(40, 40), "norm.weight": torch.ones(4)}


def test_a_name_on_the_hub_is_to_be_downloaded() -> None:
    for name in ("mistralai/Mistral-7B-v0.1", "google-bert/bert-base-uncased"):
        with pytest.raises(FileNotFoundError, match=f"snapshot_download\\('{name}'\\)"):
            load_state_dict(name)
    with pytest.raises(FileNotFoundError) as caught:
        load_state_dict("models/expert.safetensors")
    assert "hub" not in str(caught.value)


def test_gguf_and_pipelines_of_diffusers(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"is a GGUF file.*dequantise"):
        load_state_dict(tmp_path / "a.gguf")
    for part in ("unet", "vae"):
        (tmp_path / "pipe" / part).mkdir(parents=True)
        weights = tmp_path / "pipe" / part / "diffusion_pytorch_model.safetensors"
        ml.save_state_dict(STATE, weights)
    (tmp_path / "pipe" / "model_index.json").write_text("{}")
    with pytest.raises(ValueError, match=r"pipeline of diffusers.* one part of it: unet, vae"):
        load_state_dict(tmp_path / "pipe")
    with pytest.raises(
        ValueError, match=r"it holds diffusion_pytorch_model.safetensors: pass the f"
    ):
        load_state_dict(tmp_path / "pipe" / "unet")
    assert load_state_dict(weights).keys() == STATE.keys()


def test_what_a_refused_pickle_holds_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    torch.save({"state_dict": STATE, "args": argparse.Namespace(lr=1)}, path)
    with pytest.raises(
        ValueError, match=r"holds an object of argparse.Namespace.*model.state_dict"
    ):
        load_state_dict(path)


def average_of(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: 0.5 * tensor for key, tensor in state.items()}


@pytest.mark.parametrize(
    ("content", "others"),
    [
        ({"state_dict": STATE, "state_dict_ema": average_of(STATE)}, "'state_dict_ema'"),
        ({"model": STATE, "ema": average_of(STATE), "shadow": average_of(STATE)}, "'ema', 'shad"),
    ],
)
def test_other_sets_of_weights_are_named(
    tmp_path: Path, content: dict[str, Any], others: str
) -> None:
    path = tmp_path / "a.ckpt"
    torch.save({**content, "epoch": 3, "optimizer": {"state": {}, "param_groups": []}}, path)
    with pytest.warns(UserWarning, match=f"several sets of weights: .* is read, and not {others}"):
        state = load_state_dict(path)
    assert torch.equal(state["encoder.weight"], STATE["encoder.weight"])


@pytest.mark.parametrize("name", ["model_state_dict", "module", "net", "params_ema"])
def test_the_only_set_of_weights_is_read_under_any_name(tmp_path: Path, name: str) -> None:
    torch.save({name: STATE, "step": 7, "loops": {"a": 1}}, tmp_path / "a.pt")
    assert load_state_dict(tmp_path / "a.pt").keys() == STATE.keys()


def test_several_sets_of_which_none_is_usual_are_refused(tmp_path: Path) -> None:
    torch.save({"params": STATE, "params_ema": average_of(STATE)}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="holds several: 'params', 'params_ema'; save the one"):
        load_state_dict(tmp_path / "a.pt")


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "bert.", "model.language_model."])
@pytest.mark.parametrize("turned", [False, True])
def test_a_prefix_is_named(prefix: str, turned: bool) -> None:
    longer = {prefix + key: tensor for key, tensor in STATE.items()}
    pair = (longer, STATE) if turned else (STATE, longer)
    with pytest.raises(ValueError, match=f"all keys .* with prefix '{prefix}': rename them") as e:
        merge("average", {"a": pair[0]}, pretrained=pair[1])
    assert "heads differ" not in str(e.value)


def test_old_names_are_named() -> None:
    modern = {"LayerNorm.weight": torch.ones(3), "LayerNorm.bias": torch.ones(3)}
    old = {"LayerNorm.gamma": torch.ones(3), "LayerNorm.beta": torch.ones(3)}
    with pytest.raises(ValueError, match=r"a has the old names gamma and beta.*from_pretrained"):
        merge("average", {"a": old}, pretrained=modern)


def test_methods_of_other_programs_are_translated() -> None:
    for name, here in (("linear", "'average' with weights="), ("dare_ties", "combine='ties'")):
        with pytest.raises(ValueError, match=f"unknown method '{name}'; .* is .*{here}"):
            merge(name, [STATE, STATE])


@pytest.mark.parametrize("setting", ["device=cpu", "pretrained=x", "overwrite=true"])
def test_an_option_is_not_a_setting(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "a.safetensors"
    ml.save_state_dict(STATE, path)
    name = setting.partition("=")[0]
    done = CliRunner().invoke(
        app, ["merge", "average", str(path), "-o", str(tmp_path / "o"), "-s", setting]
    )
    assert f"{name} is an option of its own: --{name}" in f"{done.output}{done.exception}"


def test_a_difference_is_no_model() -> None:
    base = {"w": torch.randn(64, 64)}
    with pytest.warns(UserWarning, match=r"delta .*looks like a difference to a model"):
        merge("average", {"delta": {"w": 0.02 * torch.randn(64, 64)}}, pretrained=base)
