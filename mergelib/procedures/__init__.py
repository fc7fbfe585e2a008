"""Procedures: merging methods that use data.

Besides experts they take the model and its heads. `mergelib.methods` lists the data that each
needs. CoGraM has a package of its own, `mergelib.cogram`.
"""

from mergelib.procedures import (  # each registers its methods, in the order `methods` lists them
    adamerging,
    concrete,
    fisher,
    frank_wolfe,
    multitask,
    regmean,
    soups,
    surgery,
)
from mergelib.procedures.adapting import adapt
from mergelib.procedures.common import Adapted

__all__ = [
    "Adapted",
    "adamerging",
    "adapt",
    "concrete",
    "fisher",
    "frank_wolfe",
    "multitask",
    "regmean",
    "soups",
    "surgery",
]
