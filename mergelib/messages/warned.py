"""Warnings: as if from the line that called the package, and in one line."""

import sys
import warnings

_OWN = {"mergelib", "torch"}


def warn(text: str) -> None:
    """Warn, as if from the line that called this package, where it is shown once."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _OWN:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)
