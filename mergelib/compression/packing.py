"""Boolean masks at one bit per entry."""

from collections.abc import Sequence

import torch
from torch import Tensor


def _weights(device: torch.device) -> Tensor:
    return torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=device)


def pack(mask: Tensor) -> Tensor:
    """Return the bits of a boolean mask of n entries as uint8 ``(ceil(n / 8),)``."""
    flat = mask.reshape(-1).to(torch.uint8)
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).view(-1, 8)
    return (padded * _weights(mask.device)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the boolean mask of this shape; ``ValueError`` if the number of bytes does not fit."""
    entries = torch.Size(shape).numel()
    if len(packed) != -(-entries // 8):
        raise ValueError(f"{len(packed)} bytes of a mask, expected {-(-entries // 8)}")
    bits = packed[:, None].bitwise_and(_weights(packed.device)).ne(0)
    return bits.view(-1)[:entries].view(shape)
