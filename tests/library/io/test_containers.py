"""One of several sets of weights in a training program's file is chosen as FILE::KEY."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergelib import cli
from mergelib.io import Checkpoint, load_state_dict, save_state_dict
from tests.commands import fail, runner, succeed


def weights(fill: float) -> dict[str, Tensor]:
    return {"fc.weight": torch.full((2, 2), 1.0 * fill), "fc.bias": torch.full((2,), 1.0 * fill)}


def behind(prefix: str, fill: float) -> dict[str, Tensor]:
    return {f"{prefix}{key}": value for key, value in weights(fill).items()}


# As these programs save, and the key of the weights that are 3.
PROGRAMS: dict[str, tuple[dict[str, Any], str]] = {
    "BasicSR": ({"params": weights(1), "params_ema": weights(3)}, "params_ema"),
    "timm": ({"state_dict": weights(1), "state_dict_ema": weights(3)}, "state_dict_ema"),
    "PyTorch's tutorial": ({"epoch": 3, "model_state_dict": weights(3)}, "model_state_dict"),
    "DeepSpeed": (
        {
            "module": OrderedDict(weights(3)),
            "buffer_names": ["fc.mean"],
            "optimizer": None,
            "param_shapes": [OrderedDict(fc=torch.Size([2, 2]))],
            "ds_version": "0.14.0",
        },
        "module",
    ),
    "Lightning": (
        {
            "epoch": 1,
            "pytorch-lightning_version": "2.2.0",
            "state_dict": weights(3),
            "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.ones(())}},
            "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(2, 2)}}, "param_groups": []}],
            "hyper_parameters": {"lr": 0.1},
        },
        "state_dict",
    ),
    "ema beside": ({"model": weights(1), "ema": {"module": weights(3), "n": 9}}, "ema.module"),
    "DINO": (
        {
            "student": weights(1),
            "teacher": weights(3),
            "dino_loss": {"center": torch.ones(1, 8)},
        },
        "teacher",
    ),
}


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_named_set_is_read(program: str, archive: bool, tmp_path: Path) -> None:
    content, key = PROGRAMS[program]
    path = tmp_path / "last.ckpt"
    torch.save(content, path, _use_new_zipfile_serialization=archive)
    assert load_state_dict(f"{path}::{key}")["fc.bias"].tolist() == [3, 3]
    with pytest.raises(ValueError, match=rf"no weights under 'other'; it has .*'{key}'"):
        Checkpoint(f"{path}::other")


def test_wrong_keys(tmp_path: Path) -> None:
    torch.save(weights(1), tmp_path / "plain.pt")
    with pytest.raises(ValueError, match=r"has no weights under 'ema'; it has weights under no na"):
        Checkpoint(tmp_path / "plain.pt::ema")
    torch.save({"epoch": 3}, tmp_path / "none.pt")
    with pytest.raises(ValueError, match=r"expected one state dict of tensors, found none$"):
        Checkpoint(tmp_path / "none.pt::model")
    save_state_dict(weights(1), tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"s holds one set of weights: leave ::ema out"):
        Checkpoint(tmp_path / "a.safetensors::ema")
    with pytest.raises(FileNotFoundError, match=r"no such file or folder: .*absent.pt$"):
        Checkpoint(tmp_path / "absent.pt::ema")
    odd = tmp_path / "a::b.safetensors"  # as systems other than Windows allow
    save_state_dict(weights(5), odd)
    assert load_state_dict(odd)["fc.bias"].tolist() == [5, 5]


def test_one_spelling_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Python, on the command line and in recipes; by hand (3 + 5) / 2 = 4."""
    monkeypatch.chdir(tmp_path)
    ema = {"state_dict": weights(1), "ema": behind("module.", 5)}
    torch.save({"model": weights(1), "params_ema": weights(3)}, "a.pt")
    Path("b").mkdir()
    torch.save(ema, "b/pytorch_model.bin")
    Path("b/config.json").write_text('{"model_type": "mine"}')
    paths, rename = ["a.pt::params_ema", "b::ema"], {"module.*": "*"}
    run = runner(cli.main, "mergelib", monkeypatch, capsys)
    command = ["merge", "average", *paths, "-o", "command.safetensors"]
    assert "--rename 'module.*=*'" in fail(run, *command)
    succeed(run, *command, "--rename", "module.*=*")
    succeed(run, "inspect", *paths, "--rename", "module.*=*")
    written: list[str | Path] = [
        ml.merge_files("average", paths, "folder", rename=rename),
        "command.safetensors",
    ]
    assert Path("folder/config.json").is_file()
    if pytest.importorskip("yaml"):
        models = "".join(f"  - model: {path}\n" for path in paths)
        text = f"merge_method: average\nmodels:\n{models}rename: {{'module.*': '*'}}\n"
        Path("recipe.yml").write_text(text)
        written.append(ml.run_recipe("recipe.yml", "recipe.safetensors"))
        Path("recipe.yml").write_text(f"merge_method: average\nmodels:\n{models}rename: ema\n")
        with pytest.raises(ValueError, match="line 5: rename is 'ema', expected a mapping"):
            ml.run_recipe("recipe.yml", "o.safetensors")
    for state in (ml.merge("average", paths, rename=rename), *map(load_state_dict, written)):
        assert {key: value.mean().item() for key, value in state.items()} == dict.fromkeys(
            weights(1), 4
        )
    files = Checkpoint("command.safetensors").metadata["mergelib.files"]
    assert files == '{"expert 0": "a.pt::params_ema", "expert 1": "b::ema"}'


def test_a_set_of_weights_may_have_no_matrix(tmp_path: Path) -> None:
    """Under a usual name; elsewhere vectors alone are statistics, or an optimiser's."""
    norm = nn.LayerNorm(3).state_dict()
    torch.save({"model": norm, "scales": {"a": torch.ones(3)}}, tmp_path / "a.pt")
    assert load_state_dict(tmp_path / "a.pt").keys() == norm.keys()
