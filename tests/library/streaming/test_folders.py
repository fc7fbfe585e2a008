"""Model folders: shards, their index, and the files beside the weights."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mergelib.io import Checkpoint, load_state_dict, save_state_dict
from mergelib.merging import merge
from mergelib.streaming import merge_files
from tests.library.streaming.cases import State, assert_same, raw


def make_model_folder(folder: Path, states: list[State], files: list[Path]) -> Path:
    """The pretrained model as a sharded folder, as `merge_files` itself writes it."""
    merge_files("average", [files[0]], folder, max_shard_size=3000)
    assert_same(load_state_dict(folder), states[0])
    (folder / "config.json").write_text('{"model_type": "tiny"}')
    (folder / "tokenizer.model").write_text("tokens")
    (folder / "training_args.bin").write_text("a pickle")
    (folder / ".cache").write_text("hidden")
    return folder


def test_sharded_in_sharded_out(tmp_path: Path, states: list[State], files: list[Path]) -> None:
    base = make_model_folder(tmp_path / "base", states, files)
    shards = sorted(base.glob("*.safetensors"))
    assert len(shards) > 2
    output = merge_files("ties", files[1:], tmp_path / "out", pretrained=base)
    expected = merge("ties", states[1:], pretrained=states[0])
    assert_same(load_state_dict(output), expected)
    index = json.loads((output / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(len(raw(tensor)) for tensor in expected.values())
    assert index["weight_map"] == {
        key: path.name for path in shards for key in load_file(output / path.name)
    }
    assert (output / "config.json").read_text() == '{"model_type": "tiny"}'
    kept = {path.name for path in shards} | {"model.safetensors.index.json", "config.json"}
    assert set(os.listdir(output)) == kept | {"tokenizer.model", "README.md"}
    listing = "".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in shards)
    for shard in sorted(output.glob("*.safetensors")):
        recorded = json.loads(Checkpoint(shard).metadata["mergelib.inputs"])
        assert recorded["pretrained"] == hashlib.sha256(listing.encode()).hexdigest()
        assert recorded["expert 0"] == hashlib.sha256(files[1].read_bytes()).hexdigest()

    single = merge_files("ties", files[1:], tmp_path / "single.safetensors", pretrained=base)
    assert_same(load_file(single), expected)
    whole = merge_files(
        "ties", files[1:], tmp_path / "whole", pretrained=base, max_shard_size="1GB"
    )
    assert_same(load_file(whole / "model.safetensors"), expected)
    assert not (whole / "model.safetensors.index.json").exists()


@pytest.mark.parametrize("size", [1, 500, "2KB", "0.26 MiB"])
def test_shards_are_as_large_as_allowed(
    tmp_path: Path, states: list[State], files: list[Path], size: int | str
) -> None:
    limit = {"1": 1, "500": 500, "2KB": 2000, "0.26 MiB": 0.26 * 2**20}[str(size)]
    output = merge_files("average", files[:1], tmp_path / "out", max_shard_size=size)
    assert_same(load_state_dict(output), states[0])
    shards = [load_file(path) for path in sorted(output.glob("*.safetensors"))]
    sizes = [[len(raw(tensor)) for tensor in shard.values()] for shard in shards]
    assert all(sum(shard) <= limit or len(shard) == 1 for shard in sizes)
    assert len(shards) == {1: 6, 500: 4, "2KB": 3, "0.26 MiB": 1}[size]


def test_folder_is_overwritten_only_if_a_merge_wrote_it(
    tmp_path: Path, states: list[State], files: list[Path]
) -> None:
    output = tmp_path / "out"
    output.mkdir()  # an empty folder is in nobody's way
    merge_files("average", files[:1], output)
    with pytest.raises(ValueError, match="exists; pass overwrite=True"):
        merge_files("average", files[1:], output)
    merge_files("average", files[1:2], output, overwrite=True)
    assert_same(load_state_dict(output), states[1])
    save_state_dict(states[0], output / "model.safetensors")
    with pytest.raises(ValueError, match="a folder that no merge wrote"):
        merge_files("average", files[1:], output, overwrite=True)
    assert_same(load_state_dict(output), states[0])
