"""mergelib: model merging in PyTorch. The public names, nothing else."""

from mergelib import cogram as _cogram  # these two register methods
from mergelib import rules as _rules
from mergelib.activations import recalibrate_batchnorm
from mergelib.adapters import merge_adapters
from mergelib.compression import Compressed, compress, load_compressed
from mergelib.evaluation import Suite, Task, evaluate, evaluate_many, normalised_accuracy
from mergelib.io import Checkpoint, dequantise, load_state_dict, save_state_dict
from mergelib.layers import larv_scales
from mergelib.merging import merge
from mergelib.preview import Inspection, inspect
from mergelib.procedures import adapt
from mergelib.recipes import run_recipe
from mergelib.registry import methods, rule
from mergelib.sail import grow, grow_files, learn_growth, shrink
from mergelib.statedict import add, flatten, is_kernel, lerp, nbytes, scale, subtract, unflatten
from mergelib.streaming import merge_files
from mergelib.tuning import search
from mergelib.version import __version__

__all__ = [
    "Checkpoint",
    "Compressed",
    "Inspection",
    "Suite",
    "Task",
    "__version__",
    "adapt",
    "add",
    "compress",
    "dequantise",
    "evaluate",
    "evaluate_many",
    "flatten",
    "grow",
    "grow_files",
    "inspect",
    "is_kernel",
    "larv_scales",
    "learn_growth",
    "lerp",
    "load_compressed",
    "load_state_dict",
    "merge",
    "merge_adapters",
    "merge_files",
    "methods",
    "nbytes",
    "normalised_accuracy",
    "recalibrate_batchnorm",
    "rule",
    "run_recipe",
    "save_state_dict",
    "scale",
    "search",
    "shrink",
    "subtract",
    "unflatten",
]


def __dir__() -> list[str]:
    return __all__


del _cogram, _rules
