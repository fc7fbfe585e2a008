"""A progress bar that is silent unless the output is a terminal or notebook."""

from typing import Any

from tqdm.auto import tqdm

_IN_NOTEBOOK = any(base.__name__ == "tqdm_notebook" for base in tqdm.__mro__)


def progress(*arguments: Any, **options: Any) -> "tqdm[Any]":
    """Return a tqdm bar with these arguments; in a notebook ``TQDM_DISABLE=1`` silences it."""
    if not _IN_NOTEBOOK:
        options.setdefault("disable", None)  # then tqdm asks whether it writes to a terminal
    return tqdm(*arguments, **options)
