"""Lazy access to checkpoints: safetensors files, Hugging Face folders and pickles."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from mergelib.io.files import InputFile, Memory, Place, input_file
from mergelib.io.header import read_header
from mergelib.io.pickles import Entry, identity, read_pickle
from mergelib.io.quantised import dequantised
from mergelib.statedict import check_keys, repeated

AnyPath = str | os.PathLike[str]

# Formats that hold weights for other programs, some of them quantised.
_OTHERS = {
    ".gguf": "llama.cpp (GGUF)",
    ".h5": "Keras (HDF5)",
    ".msgpack": "Flax (msgpack)",
    ".npy": "NumPy",
    ".npz": "NumPy",
    ".onnx": "ONNX",
    ".pb": "TensorFlow",
    ".tflite": "TensorFlow Lite",
}
# What cannot be read as a pickle, and what to pass instead.
_ARCHIVE = "an archive", "unpack it, and pass what it holds"
_TEXT = "a text", "pass the folder of the model, or its weights"
_INSTEAD = dict.fromkeys((".7z", ".gz", ".rar", ".tar", ".tgz", ".xz", ".zip", ".zst"), _ARCHIVE)
_INSTEAD |= dict.fromkeys((".json", ".md", ".txt", ".yaml", ".yml"), _TEXT)
_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", *_OTHERS}

# Files that are a folder's model, as transformers and diffusers name them.
DIFFUSION = "diffusion_pytorch_model"
WHOLE = ("model.safetensors", "pytorch_model.bin", f"{DIFFUSION}.safetensors", f"{DIFFUSION}.bin")
_BESIDE = {"-of-": "model.safetensors.index.json", "adapter_model.": "adapter_config.json"}
TIED = "mergelib.tied"  # in metadata: names of one tensor, each further name to the first


class Checkpoint(Mapping[str, Tensor]):
    """A state dict in a file or folder: headers are read at once, tensors on access.

    Every access reads the tensor again. A file that was replaced, rewritten or cut short since its
    header was read is refused; device, inode, size and modification times identify it. A change
    within one tick of the file system's clock (up to 4 ms) is not noticed.

    Args:
        path: a ``.safetensors`` file, a pickled state dict (``.pt``, ``.pth``, ``.bin``), or a
            Hugging Face folder of either, sharded or not. ``"FILE::KEY"`` means the weights under
            that key of a pickle, such as ``"last.ckpt::ema"``.
        memory: buffers for large tensors, shared by checkpoints that are read side by side.
        dequantise: whether FP8 and MXFP4 weights are multiplied by their scales when they are read.

    Raises:
        FileNotFoundError: if the path does not exist.
        ValueError: if a file is truncated, corrupt, refused or not a regular file, if a shard is
            missing, or, on access, if a file changed. The message names the file.
    """

    def __init__(
        self, path: AnyPath, *, memory: Memory | None = None, dequantise: bool = False
    ) -> None:
        self.path, self.key = split_key(path)
        self._memory = memory
        self.metadata: dict[str, str] = {}
        self.shards: dict[Path, list[str]] = {}  # file -> its keys
        self._files: list[InputFile] = []
        self._entries: dict[str, Entry] = {}
        file = _find_weights(self.path)
        if file == self.path or file.suffix != ".json":
            self._add(file)
        else:
            for shard, keys in _read_index(file).items():
                self._add(shard)
                try:
                    check_keys(keys, self.shards[shard], shard.name, file.name)
                except ValueError as error:
                    advice = "load the model with its library and save it again"
                    raise ValueError(f"{error}: correct the index, or {advice}") from None
        if dequantise:
            kept, old = dequantised(self._entries, self.path), self.shards
            self._entries = dict(kept.values())
            self.shards = {f: [kept[k][0] for k in keys if k in kept] for f, keys in old.items()}

    def _add(self, path: Path) -> None:
        file = input_file(path, self._memory)
        if file.read(0, min(file.size, 23)).numpy().tobytes() == b"version https://git-lfs":
            raise ValueError(
                f"{path} is a pointer of Git LFS without the weights: run 'git lfs pull' in its "
                "folder, or download the file"
            )
        entries: Mapping[str, Entry]
        if path.suffix == ".safetensors" and self.key:
            raise ValueError(f"{path} holds one set of weights: leave ::{self.key} out")
        if path.suffix == ".safetensors":
            entries, metadata = read_header(file)
            self.metadata |= metadata
        else:
            try:
                entries = read_pickle(file, self.key)
            except ValueError:
                if path.suffix.lower() not in _INSTEAD:
                    raise
                raise _unmerged(path, *_INSTEAD[path.suffix.lower()]) from None
        self._files.append(file)
        self.shards[path] = sorted(entries, key=lambda key: -entries[key].dtype.itemsize)
        self._entries |= {key: entries[key] for key in self.shards[path]}

    def __getitem__(self, key: str) -> Tensor:
        entry = self._entries[key]
        return entry.read() if isinstance(entry, Place) else entry

    def __contains__(self, key: object) -> bool:
        return key in self._entries  # without reading the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def layout(self) -> dict[str, Tensor]:
        """Shapes and dtypes as tensors on the meta device; reads nothing."""
        return {
            key: torch.empty(entry.shape, dtype=entry.dtype, device="meta")
            for key, entry in self._entries.items()
        }

    @cached_property
    def tied(self) -> dict[str, str]:
        """Map every further name of a tied tensor to its first name.

        Pickles store ties. Safetensors files hold a copy for each name, and
        `mergelib.save_state_dict` records the ties in the metadata; the copies are compared here
        because other programs keep the metadata when they change tensors.
        """
        noted = _read_ties(self.metadata)
        names = {
            key: identity(entry)
            for key, entry in self._entries.items()
            if 0 not in entry.shape  # empty tensors share an address by chance
        }
        names |= {key: noted.get(key, key) for key in {*noted, *noted.values()} & names.keys()}
        return {
            key: first
            for key, first in repeated(names).items()
            if key not in {*noted, *noted.values()} or self.same(key, first)
        }

    def same(self, key: str, other: str) -> bool:
        """Whether two tensors have the same shape, dtype and bytes."""
        entries = self._entries[key], self._entries[other]
        kinds = [(entry.shape, entry.dtype) for entry in entries]
        return kinds[0] == kinds[1] and torch.equal(
            *(self[name].contiguous().view(-1).view(torch.uint8) for name in (key, other))
        )

    @property
    def files(self) -> list[InputFile]:
        """The files that it is made of, as they were when their headers were read."""
        return self._files

    def load(self) -> dict[str, Tensor]:
        """Read everything into memory; tied tensors share memory."""
        state = {key: self[key] for key in self if key not in self.tied}
        self.check()
        return {key: state[self.tied.get(key, key)] for key in self}

    def check(self) -> None:
        """Raise ``ValueError`` if a file has changed since its header was read."""
        for file in self.files:
            file.check()


def split_key(path: AnyPath) -> tuple[Path, str | None]:
    """Return the file of ``"FILE::KEY"`` and the key; None for a path without one."""
    before, _, key = os.fspath(path).rpartition("::")
    return (Path(before), key) if before and key and not Path(path).exists() else (Path(path), None)


def _find_weights(path: Path) -> Path:
    """Return the weight file, or the index of shards, at a path."""
    if not path.exists():
        raise FileNotFoundError(f"no such file or folder: {path}{_hub_hint(path)}")
    if not path.is_dir():
        _check_format(path)
        return path
    for name in WHOLE:
        for file in (path / name, path / f"{name}.index.json"):
            if file.is_file():
                return file
    files = sorted(f for f in (*path.glob("*"), *path.glob("*/*")) if f.suffix in _SUFFIXES)
    readable = [file for file in files if file.suffix not in _OTHERS]
    for file in files[: not readable]:
        _check_format(file)
    folders = dict.fromkeys(f"{file.parent.name}/" for file in readable if file.parent != path)
    names = [file.name for file in readable if file.parent == path] or [*folders]
    for name, lacked in _BESIDE.items():
        if any(name in file for file in names) and not (path / lacked).exists():
            raise ValueError(f"{path} holds {names[0]} and no {lacked}: copy or download that, too")
    there = (
        f"; it holds {', '.join(names[:5])}: choose one, as in {path / names[0]}" if names else ""
    )
    raise ValueError(
        f"{path} holds no weights of one model: expected model.safetensors, or shards and an index"
        f"{there}"
    )


def _check_format(path: Path) -> None:
    """Refuse weights of other programs, recognised by the first bytes or the suffix."""
    kind = _OTHERS.get(path.suffix.lower())
    if path.is_file() and kind is None:
        with path.open("rb") as stream:
            start = stream.read(4)
        kind = {b"GGUF": _OTHERS[".gguf"], b"\x89HDF": _OTHERS[".h5"]}.get(start)
    if kind is not None:
        advice = "use the safetensors or PyTorch files from which it was converted"
        raise _unmerged(path, f"a file of {kind}", advice)


def _unmerged(path: Path, what: str, advice: str) -> ValueError:
    return ValueError(f"{path} is {what}, which cannot be merged: {advice}")


def names_hub_model(name: str, folder: Path = Path()) -> bool:
    """Whether what does not exist in a folder looks like a model's name on the Hugging Face hub."""
    path = folder / name
    fits = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and path.suffix not in _SUFFIXES
    return bool(fits) and (path.parent == folder or not path.parent.exists())


def _hub_hint(path: Path) -> str:
    """Return advice for a missing path that may be a name on the hub."""
    if not names_hub_model(str(path)):
        return ""
    return (
        f"; if this is a model's name on the Hugging Face hub, download it first (hf download "
        f"{path} --local-dir {path.name}) and pass the folder"
    )


def _read_index(index: Path) -> dict[Path, list[str]]:
    """Return the shards that an index lists, each with its keys."""
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        pairs = [(key, str(name)) for key, name in weight_map.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{index} is not an index of shards: {error!r}") from None
    if not pairs:
        raise ValueError(f"{index} is not an index of shards: it lists no shard")
    shards: dict[Path, list[str]] = {}
    for key, name in pairs:
        file = index.parent / name
        if Path(name).name != name or not file.is_file():
            raise ValueError(
                f"{index} names the shard {name!r}, which is not in that folder: copy or "
                "download it there"
            )
        shards.setdefault(file, []).append(key)
    return shards


def _read_ties(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the ties that `save_state_dict` recorded, or none if another program damaged them."""
    try:
        noted = json.loads(metadata.get(TIED, "{}"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(noted, dict) or not all(isinstance(first, str) for first in noted.values()):
        return {}
    return noted
