"""Bringing networks into one order before they are merged: Git Re-Basin, and what it removes.

Weights of networks that were not trained from one start can't be averaged, since their hidden
units come in different orders. `git_rebasin` reorders one to match the other by their weights,
`activation_matching` by what their units do on a few inputs.

>>> aligned = git_rebasin(a, b, model).state                                    # doctest: +SKIP
>>> merged = mergelib.merge("average", [a, aligned])                            # doctest: +SKIP
"""

from mergelib.align.activations import activation_matching
from mergelib.align.matching import Alignment, align_experts, git_rebasin
from mergelib.align.paths import barrier, losses_along
from mergelib.align.permutations import invert, permute, random_permutations

__all__ = [
    "Alignment",
    "activation_matching",
    "align_experts",
    "barrier",
    "git_rebasin",
    "invert",
    "losses_along",
    "permute",
    "random_permutations",
]
