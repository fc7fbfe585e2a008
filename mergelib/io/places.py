"""Read tensors from their places in files."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mergelib.io.files import InputFile


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
