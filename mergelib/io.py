"""Weights in files: safetensors, Hugging Face folders and pickles, read lazily, written whole.

A safetensors file is the length of its header (8 bytes, little-endian), a JSON header that gives
dtype, shape and place of every tensor, and the raw tensors. So a tensor can be mapped by itself,
and a file can be written as its tensors arrive, once their shapes are known. Every output is
written under a hidden name beside its target, flushed to the disk and renamed: a run killed at
any point leaves no half-written output, and the next run for the same target removes what it left.
"""

import contextlib
import errno
import json
import mmap
import os
import pickle
import secrets
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mergelib.statedict import StateDict, check_keys, check_tensor

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be deleted anyway
    fcntl = None  # type: ignore[assignment]

AnyPath = str | os.PathLike[str]

_DTYPES = {
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
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def cache_folder() -> Path:
    """``MERGELIB_CACHE`` if it is set, else ``~/.cache/mergelib``."""
    chosen = os.environ.get("MERGELIB_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "mergelib"


# Reading -----------------------------------------------------------------------------------------


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
    def pickled(self) -> dict[str, Tensor]:
        """The tensors from pickles, which may be tied to one another; others never are."""
        return {key: entry for key, entry in self._entries.items() if isinstance(entry, Tensor)}


def load_state_dict(path: AnyPath) -> dict[str, Tensor]:
    """Read a state dict into memory, whatever `Checkpoint` understands; errors are its own."""
    path = Path(path)
    if path.is_file() and path.suffix != ".safetensors":
        return _read_pickle(path, mapped=False)
    return {key: tensor.clone() for key, tensor in Checkpoint(path).items()}


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
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{file}: {key!r} has the unsupported dtype {entry['dtype']}")
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        places[key] = _Place(file, _DTYPES[entry["dtype"]], tuple(entry["shape"]), start, end)
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
    found = [state for state in (loaded, *inner) if _is_state_dict(state)]
    if len(found) != 1:
        raise ValueError(
            f"{file} is refused: expected one state dict of tensors, plain or under 'state_dict' "
            f"or 'model', found {len(found)}"
        )
    return {key: tensor.detach() for key, tensor in found[0].items()}


def _is_state_dict(found: object) -> bool:
    return (
        isinstance(found, Mapping)
        and len(found) > 0
        and all(
            isinstance(key, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided
            for key, tensor in found.items()
        )
    )


# Writing -----------------------------------------------------------------------------------------


def save_state_dict(
    state: StateDict, path: AnyPath, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a state dict to a safetensors file, all of it or nothing; folders are made.

    Tied tensors are stored once for each of their names.

    Raises:
        OSError: naming the path, if it cannot be written.
        ValueError: a dtype that safetensors has no name for.
    """
    keys = sorted(state, key=lambda key: -state[key].dtype.itemsize)  # keeps tensors aligned
    layout = {key: state[key] for key in keys}
    with staged(Path(path)) as file:
        write_tensors(file, layout, layout.items(), {"format": "pt", **(metadata or {})})


def write_tensors(
    file: Path,
    layout: StateDict,
    tensors: Iterable[tuple[str, Tensor]],
    metadata: Mapping[str, str],
) -> None:
    """Write a safetensors file as tensors arrive, in the order and of the kinds of ``layout``."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for key, tensor in layout.items():
        if tensor.dtype not in _CODES:
            raise ValueError(f"{key!r} has dtype {tensor.dtype}, which safetensors cannot hold")
        start, end = end, end + size_of(tensor)
        shape = list(tensor.shape)
        header[key] = {"dtype": _CODES[tensor.dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for key, tensor in tensors:
            check_tensor(key, layout[key], tensor, "merged", "its inputs")
            raw = tensor.detach().cpu().contiguous().reshape(-1)
            stream.write(raw.view(torch.uint8).numpy().data)
            del tensor, raw  # else they would live on while the next one is made
        stream.flush()
        os.fsync(stream.fileno())


def size_of(tensor: Tensor) -> int:
    """Bytes of its entries."""
    return tensor.numel() * tensor.element_size()


@contextlib.contextmanager
def staged(output: Path, *, folder: bool = False) -> Iterator[Path]:
    """A hidden new file or folder that becomes ``output`` if the block succeeds, else vanishes."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        message = os.strerror(errno.ENOTDIR)
        raise NotADirectoryError(errno.ENOTDIR, message, str(output.parent)) from None
    for stale in output.parent.glob(f".{escape(output.name)}.*.partial"):
        if (lock := _lock(stale)) is not None:  # whoever wrote it is dead
            _remove(stale)
            os.close(lock)
    partial, lock = _hidden(output), None
    try:
        partial.mkdir() if folder else partial.touch(exist_ok=False)
        lock = _lock(partial)
        yield partial
        _put(partial, output)
    except OSError as error:
        if error.filename is None or str(partial) in str(error.filename):
            raise OSError(error.errno, error.strerror or str(error), str(output)) from error
        raise
    finally:
        _remove(partial)
        if lock is not None:
            os.close(lock)


def _put(partial: Path, output: Path) -> None:
    """Rename, also a folder in place of another, which the system would not do in one step."""
    if not output.is_dir():
        os.replace(partial, output)
        return
    old = _hidden(output)
    os.replace(output, old)
    try:
        os.replace(partial, output)
    except OSError:
        os.replace(old, output)
        raise
    _remove(old)


def _hidden(output: Path) -> Path:
    return output.with_name(f".{output.name}.{secrets.token_hex(4)}.partial")


def _lock(path: Path) -> int | None:
    """Lock a file or folder for as long as this process lives.

    Returns the descriptor that holds the lock, or None if another does, or the path is gone, or
    the file system knows no locks (then what a killed run leaves stays until someone removes it).
    """
    if fcntl is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
