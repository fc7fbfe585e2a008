"""Regular input files that are refused once they have changed.

A merge reads headers first and tensors later. If a file changes in between, the old offsets would
give weights of neither version, so its identity is stored with the header and compared at every
read. Files are never mapped into memory: touching a mapped page of a truncated file kills the
process.
"""

import contextlib
import os
import stat
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_AT_ONCE = 2**30  # bytes per call: systems take 2 GiB at most
_LARGE = 2**20  # bytes from which memory is used again: new memory costs more than reading into it

Bytes = NDArray[np.uint8]
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class Memory:
    """Buffers that are reused between reads, because allocating them costs more than reading.

    A returned buffer is kept until a tensor of another size is read.
    """

    def __init__(self) -> None:
        self._spare: list[Bytes] = []

    def take(self, size: int) -> Bytes:
        """Return a buffer of ``size`` bytes, reused if one of that size was returned.

        Only the tensor made from the buffer holds the view that is handed out, so the buffer
        returns when the tensor and everything that shares its storage are gone.
        """
        if size < _LARGE:
            return np.empty(size, np.uint8)
        owned = self._spare.pop() if self._spare else None
        if owned is None or owned.size != size:
            self._spare.clear()
            del owned  # before as much is taken again
            owned = np.empty(size, np.uint8)
        view = owned[:]
        weakref.finalize(view, self._spare.append, owned).atexit = False
        return view


@dataclass(frozen=True)
class InputFile:
    """A regular file with its ``stamp`` (identity, size and times); every read opens it again.

    No descriptor stays open, because a model of many shards would exhaust them.
    """

    path: Path
    stamp: tuple[int, ...]
    memory: Memory | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[type["InputFile"], tuple[Path, tuple[int, ...]]]:
        return InputFile, (self.path, self.stamp)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.stamp[2]

    def check(self) -> None:
        """Raise ``ValueError`` unless the path still holds the same file with the same content."""
        with self.opened():
            pass

    @contextlib.contextmanager
    def opened(self) -> Iterator[FileIO]:
        """Open the file for reading; ValueError if it changed before or after the block."""
        try:
            with _open(self.path) as stream:
                self._compare(stream)
                yield stream
                self._compare(stream)
        except FileNotFoundError:
            raise self.changed() from None
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(self.path)) from error

    def read(self, start: int, size: int) -> Tensor:
        """Return ``size`` bytes from ``start`` as a new byte tensor."""
        content = np.empty(size, np.uint8) if self.memory is None else self.memory.take(size)
        view = content.data
        with self.opened() as stream:
            stream.seek(start)
            while view:
                count = stream.readinto(view[:_AT_ONCE])
                if not count:
                    raise self.changed()
                view = view[count:]
        return torch.from_numpy(content)

    def changed(self) -> ValueError:
        """Return the error for a file that changed."""
        return ValueError(
            f"{self.path} changed while merging, so the data read from it are not valid: merge "
            "again"
        )

    def _compare(self, stream: FileIO) -> None:
        if _stamp(stream) != self.stamp:
            raise self.changed()


@dataclass(frozen=True)
class Place:
    """A tensor in bytes ``start`` to ``end`` of a file.

    The ``stride`` counts entries and is None for a contiguous tensor.
    """

    file: InputFile
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int
    stride: tuple[int, ...] | None = None

    def read(self) -> Tensor:
        """Return the tensor in memory of its own; ValueError if the file is damaged or changed."""
        if self.start == self.end:
            return torch.empty(self.shape, dtype=self.dtype)
        size = self.end - self.start
        tensor = self.file.read(self.start, size).view(self.dtype)
        if self.stride is None:
            return tensor.view(self.shape)
        tensor = tensor.as_strided(self.shape, self.stride)
        return tensor.clone() if tensor.numel() * tensor.itemsize < size else tensor


def input_file(path: Path, memory: Memory | None = None) -> InputFile:
    """Return the regular file at a path; ValueError for others, as reading a pipe may never end."""
    with _open(path) as stream:
        return InputFile(path, _stamp(stream), memory)


def _open(path: Path) -> FileIO:
    _check_regular(path, os.stat(path))  # opening alone makes some devices act
    # A pipe that took the file's place must not make `open` wait.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    stream = FileIO(os.open(path, flags), "rb")
    try:
        _check_regular(path, os.fstat(stream.fileno()))
    except ValueError:
        stream.close()
        raise
    return stream


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise ValueError(f"{path} is {kind}, expected a regular file")


def _stamp(stream: FileIO) -> tuple[int, ...]:
    status = os.fstat(stream.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
