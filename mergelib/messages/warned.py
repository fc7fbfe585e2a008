"""One-line warnings that point to the caller of the package."""

import sys
import warnings
from collections.abc import Iterable, Mapping

_OWN = {"mergelib", "torch"}


class Advice(UserWarning):
    """A warning that goes away with further options, by name."""

    def __init__(self, text: str, options: Mapping[str, str]) -> None:
        super().__init__(text)
        self.options = options


def advised(messages: Iterable[object]) -> set[str]:
    """Return the options that warnings, and refusals (`mergelib.statedict.Misfit`), advise."""
    return {name for message in messages for name in getattr(message, "options", ())}


def warn(text: str, **options: str) -> None:
    """Warn at the line that called this package; Python shows each line's warning once.

    The options are those that the text advises to pass, and with which it would not be said.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _OWN:
        level, frame = level + 1, frame.f_back
    warnings.warn(Advice(text, options) if options else text, stacklevel=level)
