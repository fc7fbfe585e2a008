"""Packages that only some functions need."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Import optional packages inside: a missing one is named with the extra that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"this needs the package {error.name}: pip install 'mergelib-book[{extra}]'",
            name=error.name,
        ) from None
