"""Hashes of files, tensors and settings, and seeds derived from names.

Keys of caches and results must be the same in every process, version and machine, so everything is
a SHA-256 of bytes or of JSON with sorted keys.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def sha256_of(file: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(tensors: Iterable[Tensor]) -> str:
    """Return the hexadecimal SHA-256 of tensors' bytes, in order, for any dtype and device."""
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return state.hexdigest()


def digest_of_state(state: Mapping[str, Tensor]) -> str:
    """Return the hexadecimal SHA-256 of a state dict (names, dtypes, shapes, bytes)."""
    keys = sorted(state)
    layout = [[key, str(state[key].dtype), list(state[key].shape)] for key in keys]
    return hashlib.sha256(
        f"{json.dumps(layout)}{digest(state[key] for key in keys)}".encode()
    ).hexdigest()


def stable_seed(*parts: object) -> int:
    """Return a seed in [0, 2^63) from the text of its parts, equal in every process and version."""
    hashed = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(hashed[:8], "big") >> 1


def fingerprint(value: Any) -> str:
    """Return a hash of settings, 16 hexadecimal digits, as a cache key.

    A text is hashed as it is; other values, dataclasses included, must be what JSON can hold.
    """
    text = value if isinstance(value, str) else json.dumps(plain(value), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: dataclasses as mappings, tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
