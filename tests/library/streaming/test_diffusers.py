"""Components of diffusers' pipelines: read and written under the file names that diffusers has."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from mergelib.io import Checkpoint, load_state_dict, save_state_dict
from mergelib.merging import merge
from mergelib.streaming import merge_files
from tests.library.streaming.cases import assert_same

STEM = "diffusion_pytorch_model"


@pytest.mark.parametrize("shards", [1, 3])
def test_a_component_keeps_its_file_names(tmp_path: Path, shards: int) -> None:
    states = [{f"{i}.weight": torch.randn(8, 8) for i in range(3)} for _ in range(2)]
    names = [f"{STEM}-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    for name, state in zip("ab", states, strict=True):
        folder = tmp_path / name / "unet"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"_class_name": "UNet2DModel"}')
        if shards == 1:
            save_state_dict(state, folder / f"{STEM}.safetensors")
            continue
        for file, (key, value) in zip(names, state.items(), strict=True):
            save_state_dict({key: value}, folder / file)
        index = {"weight_map": dict(zip(state, names, strict=True))}
        (folder / f"{STEM}.safetensors.index.json").write_text(json.dumps(index))
    paths = [tmp_path / name / "unet" for name in "ab"]
    out = merge_files("average", paths, tmp_path / "out")
    files = {f"{STEM}.safetensors"} if shards == 1 else {*names, f"{STEM}.safetensors.index.json"}
    assert {file.name for file in out.iterdir()} == {*files, "config.json", "README.md"}
    expected = {key: (value + states[1][key]) / 2 for key, value in states[0].items()}
    assert_same(load_state_dict(out), expected)
    assert_same(merge("average", paths), expected)
    merge_files("average", paths, out, overwrite=True)  # it is known as a merge's
    with pytest.raises(ValueError, match=r"(is or holds|read in place of) expert 0"):
        merge_files("average", paths, paths[0] / f"{STEM}.safetensors", overwrite=True)
    alone = merge_files("average", paths, tmp_path / "unet.safetensors")
    assert_same(load_state_dict(alone), expected)


def unet(diffusers: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    return diffusers.UNet2DModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )


@pytest.mark.parametrize("size", [None, "20kB"])
def test_a_merged_component_loads_in_its_pipeline(tmp_path: Path, size: str | None) -> None:
    diffusers = pytest.importorskip("diffusers")
    nets = [unet(diffusers, seed) for seed in range(2)]
    for name, net in zip("ab", nets, strict=True):
        pipeline = diffusers.DDPMPipeline(net, diffusers.DDPMScheduler())
        pipeline.save_pretrained(tmp_path / name)
    with pytest.raises(ValueError, match=r"it holds unet/: choose one, as in .*unet$"):
        merge_files("average", [tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    paths = [tmp_path / name / "unet" for name in "ab"]
    merged = merge_files("average", paths, tmp_path / "out", max_shard_size=size)
    assert len(Checkpoint(merged).shards) == 1 or size
    shutil.rmtree(paths[0])
    shutil.move(merged, paths[0])
    loaded = diffusers.DDPMPipeline.from_pretrained(tmp_path / "a")
    states = [net.state_dict() for net in nets]
    expected = {key: (value + states[1][key]) / 2 for key, value in states[0].items()}
    assert_same(loaded.unet.state_dict(), expected)
