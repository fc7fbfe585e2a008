"""What is said of files that are no weights of one model: what they are, and what to do."""

import argparse
import collections
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mergelib.io import Checkpoint, load_state_dict, save_state_dict


def weights(fill: float = 1.0) -> dict[str, Tensor]:
    return {"fc.weight": torch.full((2, 2), fill), "fc.bias": torch.ones(2)}


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize(
    ("content", "name"),
    [
        (argparse.Namespace(path=Path("x")), "pathlib.PosixPath"),
        (Path("x"), "pathlib.PosixPath"),
        (collections.deque([1]), "collections.deque"),
        ({"a": pickle.PickleBuffer}, "pickle.PickleBuffer"),
    ],
)
def test_what_a_refused_pickle_holds_is_named(
    tmp_path: Path, content: Any, name: str, archive: bool
) -> None:
    path = tmp_path / "a.ckpt"
    saved = {"state_dict": weights(), "hyper_parameters": content}
    torch.save(saved, path, _use_new_zipfile_serialization=archive)
    message = rf"a\.ckpt is refused: it holds .*{name.rpartition('.')[2]}.* weights_only=False"
    with pytest.raises(ValueError, match=message) as caught:
        Checkpoint(path)
    assert "\n" not in str(caught.value)


def test_all_names_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    torch.save({"a": Path(), "b": collections.deque(), "w": weights()}, path)
    with pytest.raises(ValueError, match=r"holds collections.deque, pathlib.PosixPath besides"):
        Checkpoint(path)


@pytest.mark.parametrize("archive", [True, False])
def test_checkpoints_of_timm_are_read(tmp_path: Path, archive: bool) -> None:
    """They hold the options of the training; another reader of pickles still refuses these."""
    path = tmp_path / "model_best.pth.tar"
    saved = {"epoch": 3, "arch": "resnet50", "state_dict": weights(2.0), "metric": 0.5}
    saved |= {"optimizer": {"state": {}}, "args": argparse.Namespace(lr=0.1, mean=(0.5, 0.5))}
    torch.save(saved, path, _use_new_zipfile_serialization=archive)
    state = load_state_dict(path)
    assert state.keys() == weights().keys()
    assert torch.equal(state["fc.weight"], weights(2.0)["fc.weight"])
    with pytest.raises(pickle.UnpicklingError, match="Namespace"):
        torch.load(path, weights_only=True)


SETS: list[tuple[dict[str, Any], str, str]] = [
    ({"state_dict": 1.0, "state_dict_ema": 2.0}, "'state_dict'", "'state_dict_ema'"),
    ({"model": 1.0, "params_ema": 2.0, "epoch": None}, "'model'", "'params_ema'"),
    ({"state_dict": 1.0, "ema": {"module": 2.0}}, "'state_dict'", "'ema.module'"),
    ({"model": 1.0, "discriminator": 2.0, "d2": 3.0}, "'model'", "'discriminator', 'd2'"),
]


def filled(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: filled(part) for name, part in content.items()}
    return weights(content) if isinstance(content, float) else content


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize(("content", "read", "others"), SETS)
def test_one_of_several_sets_is_read_and_named(
    tmp_path: Path, content: Any, read: str, others: str, archive: bool
) -> None:
    path = tmp_path / "a.pt"
    torch.save(filled(content), path, _use_new_zipfile_serialization=archive)
    said = re.escape(f"holds several sets of weights: {read} is read, and {others} is not")
    with pytest.warns(UserWarning, match=said):
        state = load_state_dict(path)
    assert torch.equal(state["fc.weight"], torch.ones(2, 2))


@pytest.mark.parametrize(
    ("content", "listed"),
    [
        ({"params": 1.0, "params_ema": 2.0}, "found 2 ('params', 'params_ema')"),
        ({"generator": 1.0, "discriminator": 2.0}, "('generator', 'discriminator')"),
        ({"state_dict": 1.0, "model": 2.0}, "found 2 ('state_dict', 'model')"),
    ],
)
def test_sets_of_other_names_are_listed(tmp_path: Path, content: Any, listed: str) -> None:
    path = tmp_path / "a.pt"
    torch.save(filled(content), path)
    first, last = content
    with pytest.raises(ValueError, match=re.escape(f"{listed}: choose one, as in {path}::{first}")):
        Checkpoint(path)
    assert load_state_dict(f"{path}::{last}")["fc.weight"].max() == 2


@pytest.mark.parametrize(
    "content",
    [{"model_state_dict": 1.0, "epoch": 3}, {"module": 1.0, "optimizer": {}}, {"ema": {"s": 1.0}}],
)
def test_the_only_set_is_read_under_any_name(tmp_path: Path, content: Any) -> None:
    torch.save(filled(content), tmp_path / "a.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_state_dict(tmp_path / "a.pt")["fc.weight"].max() == 1


def test_what_training_keeps_beside_weights_is_no_set(tmp_path: Path) -> None:
    """An optimiser's moments, states of random numbers, scales, and metrics."""
    layer = torch.nn.Linear(2, 2)
    optimiser = torch.optim.Adam(layer.parameters())
    layer(torch.ones(2)).sum().backward()
    optimiser.step()
    beside = {"optimizer": optimiser.state_dict(), "rng": {"cpu": torch.get_rng_state()}}
    beside |= {"scaler": {"scale": torch.tensor(2.0)}, "metrics": {"loss": [1.0]}}
    torch.save({"state_dict": layer.state_dict(), **beside}, tmp_path / "a.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_state_dict(tmp_path / "a.pt")


@pytest.mark.parametrize(
    "name", ["model.gguf", "tf_model.h5", "flax_model.msgpack", "model.onnx", "w.npz", "graph.pb"]
)
def test_formats_of_other_programs(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / name).write_bytes(b"something")
    for path in (folder / name, folder):
        with pytest.raises(
            ValueError, match=rf"{name} is a file of .* which cannot be merged: use"
        ):
            Checkpoint(path)
    (folder / "weights.bin").write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(ValueError, match=r"weights.bin is a file of llama.cpp \(GGUF\)"):
        Checkpoint(folder / "weights.bin")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.zip", "is an archive, which cannot be merged: unpack it"),
        ("model.tar.gz", "is an archive, which cannot be merged: unpack it"),
        ("config.json", "is a text, which cannot be merged: pass the folder of the model"),
        ("model.safetensors.index.json", "is a text, which cannot be merged: pass the folder"),
    ],
)
def test_files_that_hold_no_weights_themselves(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=f"{name} {words}"):
        Checkpoint(tmp_path / name)


def test_folders_whose_weights_lie_deeper(tmp_path: Path) -> None:
    """A pipeline of diffusers, and the checkpoints of a run; a variant is a file to pass."""
    name = "diffusion_pytorch_model"
    pipe = tmp_path / "pipe"
    for part in ("unet", "vae"):
        save_state_dict(weights(), pipe / part / f"{name}.safetensors")
    (pipe / "safety_checker").mkdir()
    (pipe / "safety_checker" / "flax_model.msgpack").write_bytes(b"something")
    message = re.escape(f"it holds unet/, vae/: choose one, as in {pipe / 'unet'}")
    with pytest.raises(ValueError, match=f"{message}$"):
        Checkpoint(pipe)
    assert Checkpoint(pipe / "unet").keys() == weights().keys()
    torch.save({"model_state_dict": weights()}, tmp_path / "step-5.pt")
    save_state_dict(weights(), tmp_path / "step-9" / "model.safetensors")
    message = re.escape(f"it holds step-5.pt: choose one, as in {tmp_path / 'step-5.pt'}")
    with pytest.raises(ValueError, match=f"{message}$"):
        Checkpoint(tmp_path)
    save_state_dict(weights(), tmp_path / "half" / f"{name}.fp16.safetensors")
    with pytest.raises(ValueError, match=re.escape(f"as in {tmp_path / 'half' / name}.fp16.saf")):
        Checkpoint(tmp_path / "half")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"or shards and an index$"):
        Checkpoint(tmp_path / "empty")


@pytest.mark.parametrize("name", ["google/bert-base", "gpt2", "org/model-7B-v0.1"])
def test_names_on_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=rf"no such .*: {name}; .*hf download {name} --local"
    ):
        Checkpoint(name)
    for path in ("a.safetensors", "models/a/b", "/tmp/none", "../none"):
        with pytest.raises(FileNotFoundError, match=rf"no such file or folder: {path}$"):
            Checkpoint(path)


def test_dtypes_that_are_not_known_are_quantised(tmp_path: Path) -> None:
    header = b'{"a":{"dtype":"F8_E8M0","shape":[1],"data_offsets":[0,1]}}'
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(ValueError, match=r"unsupported dtype F8_E8M0: .*dequantise the model"):
        Checkpoint(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "(0 bytes are too few)"),
        (b"<!DOCTYPE html>\n<html>", "(it is a text, which starts with '<!DOCTYPE html>')"),
        (b"Entry not found", "(it is a text, which starts with 'Entry not found')"),
        (b"\xff" * 100, "(its header would take 18446744073709551615 of 100 bytes)"),
    ],
)
def test_what_a_damaged_file_is(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    message = f"{path} is truncated or not safetensors {reason}: copy or download it again"
    with pytest.raises(ValueError, match=re.escape(message)):
        load_state_dict(path)


@pytest.mark.parametrize("name", ["a.safetensors", "pytorch_model.bin", "a.pt"])
def test_pointers_of_git_lfs(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    whole = tmp_path if name == "pytorch_model.bin" else path
    with pytest.raises(ValueError, match=re.escape(f"{path} is a pointer of Git LFS without")):
        load_state_dict(whole)


@pytest.mark.parametrize(
    ("file", "lacked"),
    [
        ("model-00001-of-00002.safetensors", "model.safetensors.index.json"),
        ("pytorch_model-00002-of-00002.bin", "model.safetensors.index.json"),
        ("adapter_model.safetensors", "adapter_config.json"),
    ],
)
def test_a_file_that_lacks_the_one_beside_it(file: str, lacked: str, tmp_path: Path) -> None:
    (tmp_path / file).touch()
    with pytest.raises(ValueError, match=re.escape(f"holds {file} and no {lacked}: copy or")):
        load_state_dict(tmp_path)
