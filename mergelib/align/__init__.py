"""Reorder the units of a network to match another before merging: Git Re-Basin.

Networks that were initialised separately have their hidden units in different orders. `git_rebasin`
matches units by their weights, `activation_matching` by their activations on a few inputs.

>>> aligned = git_rebasin(a, b, model).state                                    # doctest: +SKIP
>>> merged = mergelib.merge("average", [a, aligned])                            # doctest: +SKIP
"""

from mergelib.align.activations import activation_matching
from mergelib.align.matching import Alignment, git_rebasin
from mergelib.align.permutations import permute, random_permutations

__all__ = ["Alignment", "activation_matching", "git_rebasin", "permute", "random_permutations"]
