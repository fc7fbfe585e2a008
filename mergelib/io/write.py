"""Weights written whole or not at all, as safetensors.

The format lets a file be written as its tensors arrive, once their shapes are known. Every output
is written under a hidden name beside its target, flushed to the disk and renamed: a run killed at
any point leaves no half-written output, and the next run for the same target removes what it left.
"""

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from glob import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mergelib.io.checkpoint import DTYPES, AnyPath
from mergelib.statedict import StateDict, check_tensor

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be deleted anyway
    fcntl = None  # type: ignore[assignment]

_CODES = {dtype: code for code, dtype in DTYPES.items()}


def cache_folder() -> Path:
    """``MERGELIB_CACHE`` if it is set, else ``~/.cache/mergelib``."""
    chosen = os.environ.get("MERGELIB_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "mergelib"


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
