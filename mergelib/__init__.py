"""mergelib: model merging in PyTorch. The public names, nothing else."""

from typing import TYPE_CHECKING, Any

from mergelib import cogram as _cogram  # these two register methods
from mergelib import rules as _rules
from mergelib.compression import Compressed, compress, load_compressed
from mergelib.io import Checkpoint, load_state_dict, save_state_dict
from mergelib.merging import merge
from mergelib.procedures import adapt
from mergelib.registry import methods, rule
from mergelib.sail import grow, grow_files, learn_growth, shrink
from mergelib.statedict import add, flatten, is_kernel, lerp, nbytes, scale, subtract, unflatten
from mergelib.streaming import merge_files
from mergelib.version import __version__

if TYPE_CHECKING:
    from mergelib.evaluation.loops import evaluate, evaluate_many, normalised_accuracy
    from mergelib.evaluation.tasks import Suite, Task

# These bring pandas, so they load on first use.
_EVALUATION = {
    "Suite": "tasks",
    "Task": "tasks",
    "evaluate": "loops",
    "evaluate_many": "loops",
    "normalised_accuracy": "loops",
}

__all__ = [
    "Checkpoint",
    "Compressed",
    "Suite",
    "Task",
    "__version__",
    "adapt",
    "add",
    "compress",
    "evaluate",
    "evaluate_many",
    "flatten",
    "grow",
    "grow_files",
    "is_kernel",
    "learn_growth",
    "lerp",
    "load_compressed",
    "load_state_dict",
    "merge",
    "merge_files",
    "methods",
    "nbytes",
    "normalised_accuracy",
    "rule",
    "save_state_dict",
    "scale",
    "shrink",
    "subtract",
    "unflatten",
]


def __getattr__(name: str) -> Any:
    if name in _EVALUATION:
        import importlib

        return getattr(importlib.import_module(f"mergelib.evaluation.{_EVALUATION[name]}"), name)
    raise AttributeError(f"module 'mergelib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


del _cogram, _rules
