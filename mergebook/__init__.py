"""mergebook: the book's laboratory, with one folder for each of the five papers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mergebook.suites.loading import load_suite
    from mergebook.suites.training import Recipe
    from mergebook.suites.zoo import load_zoo

PAPERS = ("cart", "frank_wolfe", "cogram", "stability", "sail")
_LAZY = {"Recipe": "training", "load_suite": "loading", "load_zoo": "zoo"}

__all__ = ["PAPERS", "Recipe", "load_suite", "load_zoo"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(f"mergebook.suites.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'mergebook' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
