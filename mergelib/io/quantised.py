"""Dequantise FP8 and MXFP4 weights: those of files one at a time, when they are read."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mergelib.io.files import Place
from mergelib.io.pickles import Entry
from mergelib.messages.refusals import scales_of
from mergelib.statedict import StateDict

_SIDE = 128  # of the blocks that share a scale, as DeepSeek's
_INPUTS = re.compile(r"(^|[._])(input|output|activation|[qkv])_scale$")  # not of weights
_E2M1 = [sign * size for sign in (1.0, -1.0) for size in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]


@dataclass(frozen=True, kw_only=True)
class Scaled(Place):
    """Codes in a file that are multiplied by scales when they are read, and rounded once."""

    codes: Place
    scales: Place
    product: Callable[[Tensor, Tensor, torch.dtype], Tensor]

    def read(self) -> Tensor:
        """Return the dequantised tensor."""
        return self.product(self.codes.read(), self.scales.read(), self.dtype)


def dequantise(state: StateDict) -> dict[str, Tensor]:
    """Return a state dict in memory with FP8 and MXFP4 weights multiplied by their scales.

    It has what `mergelib.load_state_dict` reads from a file with ``dequantise=True``: weights in
    bfloat16 (float16 if the scales are), without scales. Other tensors are returned as they are.

    >>> codes = torch.ones(2, 2).to(torch.float8_e4m3fn)
    >>> dequantise({"w": codes, "w_scale": torch.tensor([[1.0], [3.0]])})["w"].tolist()
    [[1.0, 1.0], [3.0, 3.0]]

    Raises:
        ValueError: if scales do not fit their weights.
    """
    return {name: _value(entry) for name, entry in dequantised(state, "state").values()}


def _value(entry: Entry) -> Tensor:
    return entry.read() if isinstance(entry, Place) else entry


def dequantised(entries: Mapping[str, Entry], where: object) -> dict[str, tuple[str, Entry]]:
    """Return what remains of a checkpoint by stored key: its new name, and codes with scales.

    The dtype is float16 where scales are, else bfloat16. Scales that do not fit are a ValueError,
    which names ``where`` they are.
    """
    pairs = {key: found for key in entries if (found := scales_of(key, entries))}
    result = {key: (key, e) for key, e in entries.items() if not (pairs and _INPUTS.search(key))}
    for key, scale in pairs.items():
        codes, scales = entries[key], result.pop(scale)[1]
        one, other = (torch.empty(e.shape, dtype=e.dtype, device="meta") for e in (codes, scales))
        dtype = torch.float16 if scales.dtype == torch.float16 else torch.bfloat16
        product = _mxfp4 if codes.dtype == torch.uint8 else _fp8
        try:
            shape = tuple(product(one, other, dtype).shape)
        except (RuntimeError, IndexError):
            raise ValueError(
                f"{where}: scales {scale!r} of shape {list(scales.shape)} do not fit "
                f"{key!r} of shape {list(codes.shape)}"
            ) from None
        new: Entry
        if isinstance(codes, Place) and isinstance(scales, Place):
            place = (codes.file, dtype, shape, codes.start, codes.end)
            new = Scaled(*place, codes=codes, scales=scales, product=product)
        else:  # in memory, as those of a compressed pickle
            new = product(_value(codes), _value(scales), dtype)
        result[key] = key.removesuffix("_blocks"), new
    return result


def _fp8(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return FP8 codes times scales: one in all, per row, or per block of 128 × 128."""
    factors = scales.float() if scales.numel() > 1 else scales.float().reshape([1] * codes.dim())
    for i, size in enumerate(codes.shape):
        if (count := factors.shape[i]) > 1:
            side = _SIDE if count == -(-size // _SIDE) else size // count
            factors = factors.repeat_interleave(side, i).narrow(i, 0, size)
    return codes.float().mul_(factors).to(dtype)


def _mxfp4(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return weights ``(experts, columns, rows)`` of codes ``(experts, rows, groups, 16)``.

    A byte holds two numbers of four bits (E2M1), the lower bits first. A group of 32 shares the
    scale 2^(s - 127). GPT-OSS stores its matrices in this way, transposed.
    """
    values = [[_E2M1[byte & 15], _E2M1[byte >> 4]] for byte in range(256)]
    pairs, powers = torch.tensor(values, device=codes.device), scales.int().unsqueeze(-1) - 127
    experts, rows, groups, width = codes.shape
    result = torch.empty((experts, groups * width * 2, rows), dtype=dtype, device=codes.device)
    for i in range(experts):
        result[i] = torch.ldexp(pairs[codes[i].int()].flatten(-2), powers[i]).flatten(-2).T
    return result
