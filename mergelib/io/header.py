"""Read and check the header of a safetensors file.

The file holds the header's length (8 bytes, little-endian), a JSON header with every tensor's
dtype, shape and offsets, and the raw tensors without gaps. The checks are those of the format's own
library, which maps the file into memory and so does not survive one that is cut short.
"""

import json
import math
from itertools import pairwise
from typing import Any

import torch

from mergelib.io.files import InputFile, Place

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
METADATA = "__metadata__"  # the one key that cannot name a tensor
_LONGEST = 100_000_000  # bytes of a header, as the format's library has it


def read_header(file: InputFile) -> tuple[dict[str, Place], dict[str, str]]:
    """Return the places of all tensors, in file order, and the metadata.

    Raises:
        ValueError: if the file is truncated, changed, not safetensors, or of a dtype PyTorch lacks.
    """
    start = file.read(0, min(file.size, 40)).numpy().tobytes()
    length = int.from_bytes(start[:8], "little")
    fits = file.size >= 8 and length <= min(_LONGEST, file.size - 8)
    text = file.read(8, length).numpy().tobytes() if fits else b""
    try:
        if not fits:
            raise ValueError(_explain(start, length, file.size))
        header = json.loads(text.decode(), object_pairs_hook=_without_repeats)
        if not isinstance(header, dict):
            raise ValueError("its header is not a JSON object")
        metadata = header.pop(METADATA, None)
        metadata = {} if metadata is None else metadata
        if not isinstance(metadata, dict) or not all(type(t) is str for t in metadata.values()):
            raise ValueError("its metadata are not texts")
        places = {key: _place(file, 8 + length, key, entry) for key, entry in header.items()}
        ordered = dict(sorted(places.items(), key=lambda item: (item[1].start, item[1].end)))
        bounds = [(8 + length, 8 + length), *((p.start, p.end) for p in ordered.values())]
        gaps = any(start != end for (_, end), (start, _) in pairwise(bounds))
        if gaps or bounds[-1][1] != file.size:
            raise ValueError("its tensors do not fill the file")
    except _Unsupported as error:
        raise ValueError(f"{file.path}: {error}") from None
    except (ValueError, RecursionError) as error:  # also for invalid JSON and UTF-8
        raise ValueError(
            f"{file.path} is truncated or not safetensors ({error}): copy or download it again"
        ) from None
    return ordered, metadata


def _explain(start: bytes, length: int, size: int) -> str:
    line = start.decode("latin-1").partition("\n")[0]
    if size < 8:
        return f"{size} bytes are too few"
    if line.isascii() and line.isprintable():
        return f"it is a text, which starts with {line!r}"
    return f"its header would take {length} of {size} bytes"


class _Unsupported(Exception):
    """A dtype that PyTorch lacks."""


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("its header holds a key twice")
    return content


def _place(file: InputFile, origin: int, key: str, entry: object) -> Place:
    key.encode()  # which half a surrogate pair does not survive
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise ValueError(f"{key!r} lacks a dtype, a shape or offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError(f"{key!r} has a shape or offsets that are not whole numbers")
    if not isinstance(code, str) or len(offsets) != 2:
        raise ValueError(f"{key!r} lacks a dtype or a pair of offsets")
    if code not in DTYPES:
        raise _Unsupported(
            f"{key!r} has the unsupported dtype {code}: if it is quantised, dequantise the model"
        )
    dtype, (start, end) = DTYPES[code], offsets
    if math.prod(filter(None, shape)) * dtype.itemsize >= 2**63:
        raise ValueError(f"{key!r} has the shape {shape}, which is too large for any memory")
    if end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{key!r} has {end - start} bytes, which do not fit its shape {shape}")
    return Place(file, dtype, tuple(shape), origin + start, origin + end)
