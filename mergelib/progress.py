"""A progress bar for long work: shown in terminals and notebooks, silent everywhere else."""

from typing import Any

from tqdm.auto import tqdm

_IN_NOTEBOOK = any(base.__name__ == "tqdm_notebook" for base in tqdm.__mro__)


def progress(*arguments: Any, **options: Any) -> "tqdm[Any]":
    """A bar of tqdm, with its arguments; in a notebook ``TQDM_DISABLE=1`` silences it."""
    if not _IN_NOTEBOOK:
        options.setdefault("disable", None)  # then tqdm asks whether it writes to a terminal
    return tqdm(*arguments, **options)
