"""Procedures: merging methods that look at data.

They take the model and what turns its output into predictions besides the experts. What data each
needs, and how much of it, stands in `mergelib.methods`. CoGraM is called here, too, and has its
own package, `mergelib.cogram`.
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
