"""Read weights lazily (`checkpoint`), and write files completely or not at all (`staging`)."""

from mergelib.io.adapters import WithAdapter
from mergelib.io.cache import cache_folder
from mergelib.io.checkpoint import DIFFUSION, TIED, WHOLE, AnyPath, Checkpoint
from mergelib.io.digests import hashing
from mergelib.io.files import Memory
from mergelib.io.models import (
    Model,
    Models,
    as_state,
    as_states,
    find_base,
    is_adapter,
    load_state_dict,
    open_model,
    resolve_base,
    split,
)
from mergelib.io.names import renamed
from mergelib.io.quantised import dequantise
from mergelib.io.staging import resolved, staged
from mergelib.io.write import change_notes, note_ties, save_state_dict, write_tensors

__all__ = [
    "DIFFUSION",
    "TIED",
    "WHOLE",
    "AnyPath",
    "Checkpoint",
    "Memory",
    "Model",
    "Models",
    "WithAdapter",
    "as_state",
    "as_states",
    "cache_folder",
    "change_notes",
    "dequantise",
    "find_base",
    "hashing",
    "is_adapter",
    "load_state_dict",
    "note_ties",
    "open_model",
    "renamed",
    "resolve_base",
    "resolved",
    "save_state_dict",
    "split",
    "staged",
    "write_tensors",
]
