"""Streamed merging: the same bits as in memory, and metadata that tell what was merged."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import mergelib as ml
from mergelib.io import save_state_dict
from mergelib.merging import merge
from mergelib.registry import get_method, method_names
from mergelib.streaming import merge_files
from tests.library.streaming.cases import State, assert_same, make_states, raw, save_all


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", method_names())
def test_streamed_equals_in_memory(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    base, *experts = make_states(dtype)
    paths = save_all(tmp_path, [base, *experts])
    expected = merge(name, experts, pretrained=base)
    file = merge_files(name, paths[1:], tmp_path / "out.safetensors", pretrained=paths[0])
    assert_same(load_file(file), expected)
    if not get_method(name).needs_pretrained:
        file = merge_files(name, paths[1:], tmp_path / "alone.safetensors")
        assert_same(load_file(file), merge(name, experts))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", method_names())
def test_streamed_equals_in_memory_on_gpu(
    tmp_path: Path, states: list[State], files: list[Path], name: str
) -> None:
    expected = merge(name, states[1:], pretrained=states[0], device="cuda")
    file = merge_files(
        name, files[1:], tmp_path / "out.safetensors", pretrained=files[0], device="cuda"
    )
    assert_same(load_file(file), expected)


def test_hyperparameters_and_matrices_reach_the_rule(
    tmp_path: Path, states: list[State], files: list[Path]
) -> None:
    options: dict[str, Any] = {"rank_ratio": 0.3, "is_matrix": lambda key, _: key == "embed.weight"}
    expected = merge("cart", states[1:], pretrained=states[0], **options)
    merge_files("cart", files[1:], tmp_path / "out.safetensors", pretrained=files[0], **options)
    assert_same(load_file(tmp_path / "out.safetensors"), expected)
    assert raw(expected["embed.weight"]) != raw(merge("average", states[1:])["embed.weight"])


def test_pickles_mix_with_safetensors_and_stay_tied(tmp_path: Path) -> None:
    table, other = torch.randn(5, 4), torch.randn(5, 4)
    base = {"table": table, "head": table}
    torch.save({"state_dict": base}, tmp_path / "base.pt")
    save_state_dict({"table": other, "head": other}, tmp_path / "expert.safetensors")
    for name in ("dare", "average"):  # dare draws by key, so a tie that is lost would show
        merged = merge(name, [{"table": other, "head": other}], pretrained=base)
        assert merged["head"] is merged["table"]
        output = tmp_path / f"{name}.safetensors"
        merge_files(
            name, [tmp_path / "expert.safetensors"], output, pretrained=tmp_path / "base.pt"
        )
        assert_same(load_file(output), merged)


@pytest.mark.parametrize("name", ["dare", "della"])
def test_ties_survive_files(tmp_path: Path, name: str) -> None:
    """Methods draw by key: tied names draw alike in memory, from files, and of what was merged."""
    models = [dict.fromkeys(("table", "head"), torch.randn(5, 4)) for _ in range(3)]
    expected = merge(name, models[1:], pretrained=models[0])
    assert expected["head"] is expected["table"]
    paths = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for path, model in zip(paths, models, strict=True):
        save_state_dict(model, path)
    assert_same(merge(name, paths[1:], pretrained=paths[0]), expected)
    for output, size in ((tmp_path / "out.safetensors", None), (tmp_path / "out", 1)):
        merge_files(name, paths[1:], output, pretrained=paths[0], max_shard_size=size)
        assert_same(ml.load_state_dict(output), expected)
        assert ml.Checkpoint(output).tied == {"head": "table"}
    part = merge_files("average", paths, tmp_path / "part.safetensors", missing="skip")
    assert ml.Checkpoint(part).metadata["mergelib.tied"] == '{"head": "table"}'


def test_metadata_tells_what_was_merged(tmp_path: Path, files: list[Path]) -> None:
    experts = {"left": files[1], "right": files[2]}
    output = merge_files(
        "average",
        experts,
        tmp_path / "out.safetensors",
        pretrained=files[0],
        weights=torch.tensor([0.25, 0.75]),
    )
    with safe_open(output, "pt") as file:
        metadata = file.metadata()
    digests = {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in [("pretrained", files[0]), *experts.items()]
    }
    assert json.loads(metadata.pop("mergelib.inputs")) == digests
    assert json.loads(metadata.pop("mergelib.files")) == {
        "pretrained": "base.safetensors",
        "left": "a.safetensors",
        "right": "b.safetensors",
    }
    options = json.loads(metadata.pop("mergelib.hyperparameters"))
    assert options == {"weights": [0.25, 0.75], "normalise": False}
    assert metadata == {
        "format": "pt",
        "made": "by hand",
        "mergelib.method": "average",
        "mergelib.version": ml.__version__,
    }
    merge_files("task_arithmetic", [files[1]], tmp_path / "again.safetensors", pretrained=output)
    with safe_open(tmp_path / "again.safetensors", "pt") as file:
        assert file.metadata()["mergelib.method"] == "task_arithmetic"
        options = json.loads(file.metadata()["mergelib.hyperparameters"])
        assert options == {"scale": 0.3, "normalise": False}
