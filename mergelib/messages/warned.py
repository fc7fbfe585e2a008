"""Warnings: as if from the line that called the package, and in one line."""

import sys
import warnings
from collections.abc import Sequence

_OWN = {"mergelib", "torch"}


def warn(text: str) -> None:
    """Warn, as if from the line that called this package, where it is shown once."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _OWN:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)


def tell_of_convolutions(method: str, keys: Sequence[str]) -> None:
    """Warn that a method for matrices left convolutions, if any, to what takes its place."""
    if keys:
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        warn(
            f"convolutions ({keys[0]!r}{more}) were left to an element-wise rule, as {method} works"
            " on matrices: pass is_matrix=mergelib.is_kernel to fold them, one row per filter"
        )


def tell_of_whole_convolutions(method: str, keys: Sequence[str]) -> None:
    """Warn that a compression by matrices stored convolutions, if any, as they are."""
    if keys:
        warn(
            f"convolutions ({keys[0]!r}, {len(keys)} in all) are kept whole for every task, as "
            f"{method} works on matrices: pass is_matrix=mergelib.is_kernel to fold them, one row "
            "per filter"
        )
