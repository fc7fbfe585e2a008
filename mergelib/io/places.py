"""Read tensors from their places in files."""

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from mergelib.io.files import InputFile

_AT_ONCE = 2**20  # bytes inflated at a time


@dataclass(frozen=True)
class Packed:
    """A compressed archive member: ``size`` deflated bytes from ``start``, with its checksum."""

    start: int
    size: int
    crc: int


@dataclass(frozen=True)
class Place:
    """A tensor in bytes ``start`` to ``end`` of a file, or of the member ``packed`` in it.

    The ``stride`` counts entries and is None for a contiguous tensor.
    """

    file: InputFile
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int
    stride: tuple[int, ...] | None = None
    packed: Packed | None = None

    def read(self) -> Tensor:
        """Return the tensor in memory of its own; ValueError if the file is damaged or changed."""
        if self.start == self.end:
            return torch.empty(self.shape, dtype=self.dtype)
        size = self.end - self.start
        raw = self._inflate() if self.packed else self.file.read(self.start, size)
        tensor = raw.view(self.dtype)
        if self.stride is None:
            return tensor.view(self.shape)
        tensor = tensor.as_strided(self.shape, self.stride)
        return tensor.clone() if tensor.numel() * tensor.itemsize < size else tensor

    def _inflate(self) -> Tensor:
        """Inflate the member piece by piece and return bytes ``start`` to ``end`` of it."""
        assert self.packed is not None
        content, position, crc = bytearray(), 0, 0
        left, machine = self.packed.size, zlib.decompressobj(-zlib.MAX_WBITS)
        with self.file.opened() as stream:
            stream.seek(self.packed.start)
            while not machine.eof:
                deflated = machine.unconsumed_tail
                if not deflated:
                    deflated = stream.read(min(left, _AT_ONCE))
                    left -= len(deflated)
                try:
                    piece = machine.decompress(deflated, _AT_ONCE)
                except zlib.error as error:
                    raise self._damaged(str(error)) from None
                if not (piece or left or machine.eof):
                    raise self._damaged("it ends too early")
                content += piece[max(0, self.start - position) : max(0, self.end - position)]
                position, crc = position + len(piece), zlib.crc32(piece, crc)
        if crc != self.packed.crc or len(content) != self.end - self.start:
            raise self._damaged("its checksum differs")
        return torch.frombuffer(content, dtype=torch.uint8)

    def _damaged(self, reason: str) -> ValueError:
        return ValueError(f"{self.file.path} is damaged where a tensor is compressed: {reason}")
