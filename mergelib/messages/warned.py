"""One-line warnings that point to the caller of the package."""

import sys
import warnings

_OWN = {"mergelib", "torch"}


def warn(text: str) -> None:
    """Warn at the line that called this package; Python shows each line's warning once."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _OWN:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)
