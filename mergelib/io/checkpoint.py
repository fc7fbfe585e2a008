"""Checkpoints, read lazily: safetensors, Hugging Face folders and pickles.

A safetensors file is the length of its header (8 bytes, little-endian), a JSON header that gives
dtype, shape and place of every tensor, and the raw tensors. So a tensor can be mapped by itself.
"""

import json
import mmap
import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mergelib.statedict import StateDict, check_keys, name_experts, named

AnyPath = str | os.PathLike[str]
Model = StateDict | nn.Module | AnyPath
Models = Mapping[str, Model] | Sequence[Model]

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies in a safetensors file: bytes ``start`` to ``end``."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int

    def map(self) -> Tensor:
        """The tensor, its bytes alone mapped into memory: nothing is read before it is used."""
        if self.start == self.end:
            return torch.empty(self.shape, dtype=self.dtype)
        before = self.start % mmap.ALLOCATIONGRANULARITY
        length, offset = before + self.end - self.start, self.start - before
        with open(self.file, "rb") as stream:
            window = mmap.mmap(stream.fileno(), length, access=mmap.ACCESS_COPY, offset=offset)
        raw = torch.frombuffer(window, dtype=torch.uint8, offset=before)
        if self.start % self.dtype.itemsize:  # the format allows it, a kernel may not
            raw = raw.clone()
        return raw.view(self.dtype).view(self.shape)


class Checkpoint(Mapping[str, Tensor]):
    """The state dict in a file or folder; tensors are mapped when asked for, read when used.

    Args:
        path: a ``.safetensors`` file, a pickled state dict (``.pt``, ``.pth``, ``.bin``), or a
            Hugging Face folder of either, in one file or sharded with an index.

    Raises:
        FileNotFoundError: if there is no such path.
        ValueError: a file truncated, corrupt or refused, a shard missing; it names the file.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(path)
        self.metadata: dict[str, str] = {}
        self.shards: dict[Path, list[str]] = {}  # file -> its keys
        self._entries: dict[str, Tensor | _Place] = {}
        index = _find_index(self.path)
        if index is None:
            self._add(_find_file(self.path))
            return
        for file, keys in _read_index(index).items():
            self._add(file)
            check_keys(keys, self.shards[file], file.name, index.name)

    def _add(self, file: Path) -> None:
        if file.suffix == ".safetensors":
            places, metadata = _read_header(file)
            self.metadata |= metadata
            entries: Mapping[str, Tensor | _Place] = places
        else:
            entries = _read_pickle(file, mapped=zipfile.is_zipfile(file))
        self.shards[file] = sorted(entries, key=lambda key: -entries[key].dtype.itemsize)
        self._entries |= {key: entries[key] for key in self.shards[file]}

    def __getitem__(self, key: str) -> Tensor:
        entry = self._entries[key]
        return entry.map() if isinstance(entry, _Place) else entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def layout(self) -> dict[str, Tensor]:
        """Shapes and dtypes, by tensors without memory: nothing is mapped or read."""
        return {
            key: torch.empty(entry.shape, dtype=entry.dtype, device="meta")
            for key, entry in self._entries.items()
        }

    @property
    def pickled(self) -> dict[str, Tensor]:
        """The tensors from pickles, which may be tied to one another; others never are."""
        return {key: entry for key, entry in self._entries.items() if isinstance(entry, Tensor)}


def load_state_dict(path: AnyPath) -> dict[str, Tensor]:
    """Read a state dict into memory, whatever `Checkpoint` understands; errors are its own."""
    path = Path(path)
    if path.is_file() and path.suffix != ".safetensors":
        return _read_pickle(path, mapped=False)
    return {key: tensor.clone() for key, tensor in Checkpoint(path).items()}


def as_state(model: Model) -> StateDict:
    """The state dict of a model: itself, a module's own (not a copy), or read from a path.

    Anything else is given back as it is, for the checks of who called to name it.
    """
    if isinstance(model, nn.Module):
        state: dict[str, Tensor] = model.state_dict()
        return state
    if isinstance(model, str | os.PathLike):
        return load_state_dict(model)
    return dict(model) if isinstance(model, Checkpoint) else model  # held, mappings stay apart


def as_states(experts: Models) -> dict[str, StateDict]:
    """The experts' state dicts by name, as `mergelib.statedict.name_experts` names them.

    Raises:
        ValueError: if there is no expert; what `load_state_dict` refuses.
        TypeError: for a single model in place of several, or an expert that is no model.
    """
    return name_experts({name: as_state(model) for name, model in named(experts).items()})


def _find_index(path: Path) -> Path | None:
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (path / name).is_file():
            return None
        if (path / f"{name}.index.json").is_file():
            return path / f"{name}.index.json"
    return None


def _find_file(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"no such file or folder: {path}")
    if not path.is_dir():
        return path
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (path / name).is_file():
            return path / name
    raise ValueError(f"{path} holds no weights: expected model.safetensors, or shards and an index")


def _read_index(index: Path) -> dict[Path, list[str]]:
    """The shards an index names, each with its keys."""
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        pairs = [(key, str(name)) for key, name in weight_map.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is no index of shards: {error!r}") from None
    shards: dict[Path, list[str]] = {}
    for key, name in pairs:
        file = index.parent / name
        if Path(name).name != name or not file.is_file():
            raise ValueError(f"{index} names the shard {name!r}, which is not in that folder")
        shards.setdefault(file, []).append(key)
    return shards


def _read_header(file: Path) -> tuple[dict[str, _Place], dict[str, str]]:
    """Places, in the order of the file, and metadata of a safetensors file."""
    try:
        with safe_open(file, framework="pt"):  # checks lengths, offsets and names
            pass
        with open(file, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
    except SafetensorError as error:
        raise ValueError(f"{file} is truncated or not safetensors: {error}") from None
    metadata = header.pop("__metadata__", {})
    places = {}
    for key, entry in header.items():
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"{file}: {key!r} has the unsupported dtype {entry['dtype']}")
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        places[key] = _Place(file, DTYPES[entry["dtype"]], tuple(entry["shape"]), start, end)
    return dict(sorted(places.items(), key=lambda item: item[1].start)), metadata


def _read_pickle(file: Path, *, mapped: bool) -> dict[str, Tensor]:
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{file} is refused: it is damaged or needs arbitrary code; convert it to safetensors"
        ) from None
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{file} is truncated or no pickled state dict: {reason}") from None
    inner = [loaded.get(k) for k in ("state_dict", "model")] if isinstance(loaded, Mapping) else []
    states = [state for state in (loaded, *inner) if _is_state_dict(state)]
    if len(states) != 1:
        raise ValueError(
            f"{file} is refused: expected one state dict of tensors, plain or under 'state_dict' "
            f"or 'model', found {len(states)}"
        )
    return {key: tensor.detach() for key, tensor in states[0].items()}


def _is_state_dict(candidate: object) -> bool:
    return (
        isinstance(candidate, Mapping)
        and len(candidate) > 0
        and all(
            isinstance(key, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided
            for key, tensor in candidate.items()
        )
    )
