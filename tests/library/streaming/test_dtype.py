"""Files in a chosen dtype: bits as in memory, sizes of shards, and what the configuration says."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mergelib.io import load_state_dict, save_state_dict
from mergelib.merging import merge
from mergelib.streaming import merge_files
from tests.library.inspection.cases import edit, make_llama, transformers
from tests.library.streaming.cases import State, assert_same, raw, save_all

DTYPES = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ["average", "ties", "cart"])
def test_files_and_memory_agree(
    tmp_path: Path, states: list[State], method: str, dtype: str
) -> None:
    states[0] = {k: v.bfloat16() if v.is_floating_point() else v for k, v in states[0].items()}
    base, *files = save_all(tmp_path, states)
    expected = merge(method, states[1:], pretrained=states[0], dtype=dtype)
    kinds = {tensor.dtype for tensor in expected.values()}
    assert kinds == {getattr(torch, dtype), torch.int64}
    for output, size in (("one.safetensors", None), ("folder", None), ("shards", "1KB")):
        out = merge_files(
            method, files, tmp_path / output, pretrained=base, dtype=dtype, max_shard_size=size
        )
        assert_same(load_state_dict(out), expected)
    shards = [load_file(file) for file in sorted((tmp_path / "shards").glob("*.safetensors"))]
    sizes = [[len(raw(tensor)) for tensor in shard.values()] for shard in shards]
    assert len(sizes) == (4 if dtype == "float32" else 3)
    assert all(sum(shard) <= 1000 or len(shard) == 1 for shard in sizes)
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(map(sum, sizes))


def test_tensors_stay_aligned(tmp_path: Path) -> None:
    """Of one width before, but not afterwards; readers may map a file and look at it in place."""
    state = {"a": torch.ones(3), "n": torch.tensor([7], dtype=torch.int32), "b": torch.ones(5)}
    save_state_dict(state, tmp_path / "a.safetensors")
    out = merge_files("average", [tmp_path / "a.safetensors"], tmp_path / "out", dtype="bfloat16")
    expected = {**state, "a": state["a"].bfloat16(), "b": state["b"].bfloat16()}
    assert_same(load_file(out / "model.safetensors"), expected)
    assert_same(load_state_dict(out), expected)
    content = (out / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    starts = {key: 8 + length + header[key]["data_offsets"][0] for key in state}
    assert all(starts[key] % tensor.itemsize == 0 for key, tensor in expected.items())


@pytest.mark.parametrize("options", [{}, {"exclude": "large"}])
def test_nothing_is_written_if_values_are_too_large(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    state = {"a": torch.ones(3), "large": torch.full((3,), 7e4)}
    save_state_dict(state, tmp_path / "a.safetensors")
    before = sorted(tmp_path.iterdir())
    for output in ("out", "out.safetensors"):
        with pytest.raises(ValueError, match=r"'large' overflowed: .* reaches 70000, and float16"):
            merge_files(
                "average",
                [tmp_path / "a.safetensors"],
                tmp_path / output,
                dtype="float16",
                **options,
            )
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("entry", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_transformers_loads_the_dtype(tmp_path: Path, dtype: str, entry: str) -> None:
    folders = [make_llama(tmp_path / name, i) for i, name in enumerate("ab")]
    named = {"dtype": None, "torch_dtype": None, entry: "float32", "inner": {entry: None}}
    for folder in folders:
        edit(folder / "config.json", **named)
    out = merge_files("average", folders, tmp_path / "out", dtype=dtype)
    config = json.loads((out / "config.json").read_text())
    before = json.loads((folders[0] / "config.json").read_text())
    assert config == {**before, entry: dtype, "inner": {entry: dtype}}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    assert loaded.dtype == getattr(torch, dtype)
    merged = load_state_dict(out)
    assert_same({key: loaded.state_dict()[key] for key in merged}, merged)


def test_a_configuration_without_a_dtype_is_copied(tmp_path: Path) -> None:
    text = '{"model_type":   "tiny"}'
    save_state_dict({"w": torch.ones(2)}, tmp_path / "a" / "model.safetensors")
    for output, dtype in (("out", "bfloat16"), ("same", None)):
        (tmp_path / "a" / "config.json").write_text(text)
        out = merge_files("average", [tmp_path / "a"], tmp_path / output, dtype=dtype)
        assert (out / "config.json").read_text() == text
        text = '{"dtype":   "bfloat16"}'
