"""What streamed merging refuses, as merging in memory does and before anything is written."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from mergelib.io import save_state_dict
from mergelib.merging import merge
from mergelib.streaming import merge_files
from tests.library.streaming.cases import State


def break_state(state: State, how: str) -> State:
    """One expert made unfit; how is what `test_unfit_inputs` calls it."""
    changed = dict(state)
    if how == "missing":
        del changed["layer.weight"]
    elif how == "extra":
        changed["new"] = torch.ones(2)
    elif how == "shape":
        changed["long"] = changed["long"][1:]
    elif how == "dtype":
        changed["long"] = changed["long"].int()
    elif how == "nan":
        changed["long"] = changed["long"].clone()
        changed["long"][-1] = torch.nan
    return changed


@pytest.mark.parametrize("how", ["missing", "extra", "shape", "dtype", "nan"])
@pytest.mark.parametrize("name", ["average", "ties"])
def test_unfit_inputs_are_refused_as_in_memory(
    tmp_path: Path, states: list[State], files: list[Path], how: str, name: str
) -> None:
    broken = break_state(states[2], how)
    save_state_dict(broken, files[2])
    with pytest.raises(ValueError, match="expert 1") as in_memory:
        merge(name, [states[1], broken], pretrained=states[0])
    with pytest.raises(ValueError, match="expert 1") as streamed:
        merge_files(name, files[1:], tmp_path / "out.safetensors", pretrained=files[0])
    assert str(streamed.value) == str(in_memory.value)
    assert sorted(os.listdir(tmp_path)) == ["a.safetensors", "b.safetensors", "base.safetensors"]


def test_misfits_are_found_in_headers(
    tmp_path: Path, states: list[State], files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_state_dict(break_state(states[2], "shape"), files[2])
    monkeypatch.setattr("mergelib.streaming.merge_tensors", pytest.fail)
    monkeypatch.setattr("mergelib.streaming.hashing", pytest.fail)
    with pytest.raises(ValueError, match="has shape"):
        merge_files("average", files[1:], tmp_path / "out.safetensors", pretrained=files[0])


def test_bad_calls_are_refused(tmp_path: Path, files: list[Path]) -> None:
    out, first = tmp_path / "out.safetensors", files[1]
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "x" / "y").mkdir(parents=True)
    base, again = {"pretrained": files[0]}, {"overwrite": True}
    cases: list[tuple[type[Exception], str, list[Any], dict[str, Any]]] = [
        (ValueError, "unknown method 'averag'", ["averag", [first], out], {}),
        (TypeError, "no hyperparameter 'scale'", ["average", [first], out], {"scale": 1}),
        (ValueError, "needs the pretrained", ["ties", [first], out], {}),
        (ValueError, "density is 2", ["ties", [first], out], {"density": 2, **base}),
        (ValueError, "nothing to merge", ["average", [], out], {}),
        (TypeError, "is a single str", ["average", str(first), out], {}),
        (FileNotFoundError, "no such.*none", ["average", [tmp_path / "none"], out], {}),
        (ValueError, r"or holds expert 0", ["average", [first], first], again),
        (ValueError, r"or holds expert 0", ["average", [first], tmp_path], again),
        (ValueError, "safetensors only", ["average", [first], tmp_path / "out.pt"], {}),
        (ValueError, "needs a folder", ["average", [first], out], {"max_shard_size": 9}),
        (ValueError, "like '5GB'", ["average", [first], tmp_path / "o"], {"max_shard_size": "5X"}),
        (ValueError, "is a folder", ["average", [first], tmp_path / "folder.safetensors"], {}),
        (ValueError, "is a file", ["average", [first], tmp_path / "file"], again),
        (ValueError, "overwrite=True", ["average", [first], files[0]], {}),
        (ValueError, "be named 'pret", ["average", {"pretrained": first}, out], base),
        (ValueError, "no merge wrote", ["average", [first], tmp_path / "x"], again),
    ]
    before = sorted(os.listdir(tmp_path))
    for error, message, arguments, options in cases:
        with pytest.raises(error, match=message):
            merge_files(*arguments, **options)
    assert sorted(os.listdir(tmp_path)) == before


def test_input_is_not_overwritten_through_a_link(tmp_path: Path, files: list[Path]) -> None:
    link = tmp_path / "link.safetensors"
    link.symlink_to(files[1])
    with pytest.raises(ValueError, match="is or holds"):
        merge_files("average", [link], files[1], overwrite=True)


def test_sharded_input_is_not_shadowed(tmp_path: Path, files: list[Path]) -> None:
    """A file of that name would be read in place of the shards."""
    merge_files("average", [files[0]], tmp_path / "in", max_shard_size=3000)
    before = sorted(os.listdir(tmp_path / "in"))
    for model in (tmp_path / "in", tmp_path / "link"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(tmp_path / "in")
        for output in (tmp_path / "in", tmp_path / "link"):
            with pytest.raises(ValueError, match="would be read in place of expert 0"):
                merge_files("average", [model], output / "model.safetensors")
    assert sorted(os.listdir(tmp_path / "in")) == before
