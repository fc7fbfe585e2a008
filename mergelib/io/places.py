"""Where tensors lie in files, and how they are read from there."""

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from mergelib.io.files import InputFile

_AT_ONCE = 2**20  # bytes inflated at a time


@dataclass(frozen=True)
class Packed:
    """A compressed member of an archive: ``size`` deflated bytes from ``start`` on.

    Attributes:
        start: of the first byte.
        size: in the file.
        crc: checksum of what it inflates to.
    """

    start: int
    size: int
    crc: int


@dataclass(frozen=True)
class Place:
    """A tensor in a file: bytes ``start`` to ``end`` of it, or of what is packed in it.

    Attributes:
        file: the file.
        dtype: the tensor's.
        shape: the tensor's.
        start: of the first byte.
        end: behind the last byte.
        stride: in entries, if the tensor is not contiguous.
        packed: what has to be inflated first.
    """

    file: InputFile
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int
    stride: tuple[int, ...] | None = None
    packed: Packed | None = None

    def read(self) -> Tensor:
        """The tensor, in memory of its own.

        Raises:
            ValueError: a file that changed, or does not inflate to what it should.
            OSError: naming the file, if it cannot be read.
        """
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
        """Bytes ``start`` to ``end`` of the packed member, which is inflated piece by piece."""
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
