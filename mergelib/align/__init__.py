"""Reorder the units of a network to match another before merging: Git Re-Basin.

Networks that were initialised separately have their hidden units in different orders. `git_rebasin`
matches units by their weights, `activation_matching` by their activations on a few inputs.

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
