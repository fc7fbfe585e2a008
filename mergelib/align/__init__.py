"""Bringing networks into one order before they are merged: Git Re-Basin, and what it removes.

Weights of networks that were not trained from one start can't be averaged, since their hidden
units come in different orders. `git_rebasin` reorders one to match the other.

>>> aligned = git_rebasin(a, b, model).state                                    # doctest: +SKIP
>>> merged = mergelib.merge("average", [a, aligned])                            # doctest: +SKIP
"""

from mergelib.align.matching import Alignment, align_experts, git_rebasin
from mergelib.align.paths import barrier, losses_along
from mergelib.align.permutations import invert, permute, random_permutations

__all__ = [
    "Alignment",
    "align_experts",
    "barrier",
    "git_rebasin",
    "invert",
    "losses_along",
    "permute",
    "random_permutations",
]
