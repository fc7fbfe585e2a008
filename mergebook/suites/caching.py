"""Files of tensors that are made once, by whichever process wants them first."""

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from torch import Tensor

from mergelib.hashing import digest_of_state
from mergelib.io import Checkpoint, save_state_dict

VERSION = 1  # of what cached files mean; raise it to leave old caches behind


def cached(
    file: Path,
    make: Callable[[], Mapping[str, Tensor]],
    origin: Mapping[str, Any],
    *,
    wait: bool = True,
) -> dict[str, Tensor]:
    """The state dict in a file of this origin; if it is absent or damaged, made and written now.

    While another process is making it, wait, or with ``wait=False`` raise `filelock.Timeout`.
    """
    state, _ = _read_cached(file)  # files appear whole, so reading takes no lock
    if state is not None:
        return state
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock"), timeout=-1 if wait else 0):
        state, flaw = _read_cached(file)  # which another process may have written meanwhile
        if state is not None:
            return state
        if flaw:
            warnings.warn(f"{file} {flaw}: it is made again", stacklevel=2)
        state = {key: value.cpu() for key, value in make().items()}
        metadata = {
            "mergelib.made": json.dumps(origin),
            "mergelib.key": file.stem,
            "mergelib.content": digest_of_state(state),
        }
        save_state_dict(state, file, metadata=metadata)
        return state


def _read_cached(file: Path) -> tuple[dict[str, Tensor] | None, str]:
    """What `cached` wrote; or None, and why the file is not that, empty if there is none."""
    if not file.exists():
        return None, ""
    try:
        checkpoint = Checkpoint(file)
        state = {key: tensor.clone() for key, tensor in checkpoint.items()}
    except ValueError:
        return None, "is damaged"
    if checkpoint.metadata.get("mergelib.content") != digest_of_state(state):
        return None, "is damaged: its content does not have the hash that it was written with"
    if checkpoint.metadata.get("mergelib.key") != file.stem:
        return None, f"is another file's content, {checkpoint.metadata.get('mergelib.key')}"
    return state, ""
