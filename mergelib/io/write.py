"""Write safetensors files, also tensor by tensor once all shapes are known."""

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
    """Write a state dict to a safetensors file, completely or not at all; missing folders are made.

    Tied tensors are stored under each of their names for other readers. The metadata entry
    ``mergelib.tied`` records the ties, and `load_state_dict` and `mergelib.merge_files` restore
    them.

    Raises:
        OSError: if the file cannot be written; the error names it.
        ValueError: if safetensors cannot store a dtype or name, or a tensor is sparse, nested or
            without values.
        TypeError: if a value is not a tensor, or a key is not text.
    """
    for key, tensor in state.items():
        if not (isinstance(key, str) and isinstance(tensor, Tensor)):
            raise TypeError(
                f"state[{key!r}] is a {type(tensor).__name__}, expected a tensor under a text key"
            )
    check_values("state", state)
    notes = {"format": "pt", **note_ties(memory_aliases(state)), **(metadata or {})}
    with staged(Path(path)) as file:
        write_tensors(file, state, state.items(), notes)


def note_ties(tied: Mapping[str, str]) -> dict[str, str]:
    """Return metadata that map each further name of a tied tensor to its first name."""
    return {TIED: json.dumps(dict(tied))} if tied else {}


def write_tensors(
    file: Path,
    layout: StateDict,
    tensors: Iterable[tuple[str, Tensor]],
    metadata: Mapping[str, str],
) -> None:
    """Write a safetensors file as tensors arrive, in any order and of the kinds of ``layout``.

    The caller flushes the file to the disk; see `staged`.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for key in sorted(layout, key=lambda key: -layout[key].dtype.itemsize):  # keeps them aligned
        tensor = layout[key]
        if key == METADATA:
            raise ValueError(f"{key!r} cannot name a tensor: safetensors reserves this name")
        if tensor.dtype not in _CODES:
            raise ValueError(f"{key!r} has dtype {tensor.dtype}, which safetensors cannot hold")
        start, end = end, end + tensor.nbytes
        shape = list(tensor.shape)
        header[key] = {"dtype": _CODES[tensor.dtype], "shape": shape, "data_offsets": [start, end]}
    text = _encoded(header)
    with open(file, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for key, tensor in tensors:
            check_tensor(key, layout[key], tensor, "merged", "its inputs")
            raw = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            stream.seek(8 + len(text) + header[key]["data_offsets"][0])
            stream.write(raw.view(torch.uint8).numpy().data)
            del tensor, raw  # else they would live on while the next one is made


def change_notes(file: Path, metadata: Mapping[str, str]) -> None:
    """Replace the metadata of a safetensors file by others of the same length."""
    with open(file, "r+b") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
        header[METADATA] |= metadata
        text = _encoded(header)
        assert len(text) == length, "the tensors would move"
        stream.seek(8)
        stream.write(text)


def _encoded(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)
