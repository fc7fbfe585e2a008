"""Read weights lazily (`checkpoint`), and write files completely or not at all (`staging`)."""

from mergelib.io.adapters import WithAdapter
from mergelib.io.cache import cache_folder
from mergelib.io.checkpoint import TIED, AnyPath, Checkpoint
from mergelib.io.files import Memory
from mergelib.io.models import (
    Model,
    Models,
    as_state,
    as_states,
    base_of_all,
    find_base,
    is_adapter,
    load_state_dict,
    open_model,
    split,
)
from mergelib.io.staging import resolved, staged
from mergelib.io.write import note_ties, save_state_dict, write_tensors

__all__ = [
    "TIED",
    "AnyPath",
    "Checkpoint",
    "Memory",
    "Model",
    "Models",
    "WithAdapter",
    "as_state",
    "as_states",
    "base_of_all",
    "cache_folder",
    "find_base",
    "is_adapter",
    "load_state_dict",
    "note_ties",
    "open_model",
    "resolved",
    "save_state_dict",
    "split",
    "staged",
    "write_tensors",
]
