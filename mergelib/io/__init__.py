"""Read weights lazily (`checkpoint`), and write files completely or not at all (`staging`)."""

from mergelib.io.cache import cache_folder
from mergelib.io.checkpoint import (
    TIED,
    AnyPath,
    Checkpoint,
    Model,
    Models,
    as_state,
    as_states,
    load_state_dict,
)
from mergelib.io.files import Memory
from mergelib.io.staging import resolved, staged
from mergelib.io.write import note_ties, save_state_dict, write_tensors

__all__ = [
    "TIED",
    "AnyPath",
    "Checkpoint",
    "Memory",
    "Model",
    "Models",
    "as_state",
    "as_states",
    "cache_folder",
    "load_state_dict",
    "note_ties",
    "resolved",
    "save_state_dict",
    "staged",
    "write_tensors",
]
