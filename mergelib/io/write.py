"""Weights written as safetensors, and where caches lie.

The format lets a file be written as its tensors arrive, once their shapes are known.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mergelib.io.checkpoint import TIED, AnyPath
from mergelib.io.header import DTYPES, METADATA
from mergelib.io.staging import staged
from mergelib.statedict import StateDict, check_tensor, check_values, memory_aliases

_CODES = {dtype: code for code, dtype in DTYPES.items()}


def save_state_dict(
    state: StateDict, path: AnyPath, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a state dict to a safetensors file, all of it or nothing; folders are made.

    Tied tensors are stored once for each of their names, so that any reader finds every name. The
    metadata's ``mergelib.tied`` notes them, and `load_state_dict` and merging of files, whose draws
    depend on names, take them for one again.

    Raises:
        OSError: naming the path, if it cannot be written.
        ValueError: a dtype or a name that safetensors cannot hold; a tensor that is sparse, nested
            or without values.
        TypeError: what is no tensor, or named by no text.
    """
    for key, tensor in state.items():
        if not (isinstance(key, str) and isinstance(tensor, Tensor)):
            raise TypeError(f"state[{key!r}] is a {type(tensor).__name__}, expected text to tensor")
    check_values("state", state)
    keys = sorted(state, key=lambda key: -state[key].dtype.itemsize)  # keeps tensors aligned
    layout = {key: state[key] for key in keys}
    notes = {"format": "pt", **note_ties(memory_aliases(layout)), **(metadata or {})}
    with staged(Path(path)) as file:
        write_tensors(file, layout, layout.items(), notes)


def note_ties(tied: Mapping[str, str]) -> dict[str, str]:
    """Metadata that say which tensors are one, each further name with the first."""
    return {TIED: json.dumps(dict(tied))} if tied else {}


def write_tensors(
    file: Path,
    layout: StateDict,
    tensors: Iterable[tuple[str, Tensor]],
    metadata: Mapping[str, str],
) -> None:
    """Write a safetensors file as tensors arrive, in the order and of the kinds of ``layout``.

    Bringing it to the disk is left to `staged`.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for key, tensor in layout.items():
        if key == METADATA:
            raise ValueError(f"{key!r} is no name for a tensor: safetensors has taken it")
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
            raw = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            stream.write(raw.view(torch.uint8).numpy().data)
            del tensor, raw  # else they would live on while the next one is made


def size_of(tensor: Tensor) -> int:
    """Bytes of its entries."""
    return tensor.numel() * tensor.element_size()
