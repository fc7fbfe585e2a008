"""Weights in files: `checkpoint` reads them lazily, `write` writes them whole or not at all."""

from mergelib.io.cache import cache_folder
from mergelib.io.checkpoint import (
    AnyPath,
    Checkpoint,
    Model,
    Models,
    as_state,
    as_states,
    load_state_dict,
)
from mergelib.io.write import save_state_dict, size_of, staged, write_tensors

__all__ = [
    "AnyPath",
    "Checkpoint",
    "Model",
    "Models",
    "as_state",
    "as_states",
    "cache_folder",
    "load_state_dict",
    "save_state_dict",
    "size_of",
    "staged",
    "write_tensors",
]
