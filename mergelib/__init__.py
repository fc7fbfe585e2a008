"""mergelib: model merging in PyTorch. The public names, nothing else."""

from typing import TYPE_CHECKING, Any

from mergelib import cogram as _cogram  # these two register methods
from mergelib import rules as _rules
from mergelib.compression import Compressed, compress, load_compressed
from mergelib.io import Checkpoint, load_state_dict, save_state_dict
from mergelib.merging import merge
from mergelib.procedures import adapt
from mergelib.registry import methods, rule
from mergelib.statedict import (
    add,
    flatten,
    is_kernel,
    lerp,
    nbytes,
    scale,
    subtract,
    unflatten,
)
from mergelib.streaming import merge_files

if TYPE_CHECKING:
    from mergelib.testbed.evaluation import evaluate, evaluate_many, normalised
    from mergelib.testbed.suites import load_suite
    from mergelib.testbed.training import Recipe
    from mergelib.testbed.zoo import load_zoo

__version__ = "0.1.0"

# The testbed brings torchvision, pandas and more, so its names load on first use.
_TESTBED = {
    "Recipe": "training",
    "evaluate": "evaluation",
    "evaluate_many": "evaluation",
    "load_suite": "suites",
    "load_zoo": "zoo",
    "normalised": "evaluation",
}

__all__ = [
    "Checkpoint",
    "Compressed",
    "Recipe",
    "adapt",
    "add",
    "compress",
    "evaluate",
    "evaluate_many",
    "flatten",
    "is_kernel",
    "lerp",
    "load_compressed",
    "load_state_dict",
    "load_suite",
    "load_zoo",
    "merge",
    "merge_files",
    "methods",
    "nbytes",
    "normalised",
    "rule",
    "save_state_dict",
    "scale",
    "subtract",
    "unflatten",
]


def __getattr__(name: str) -> Any:
    if name in _TESTBED:
        import importlib

        return getattr(importlib.import_module(f"mergelib.testbed.{_TESTBED[name]}"), name)
    raise AttributeError(f"module 'mergelib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


del _cogram, _rules
