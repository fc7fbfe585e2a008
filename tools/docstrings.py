"""A Sphinx extension: prepare the library's docstrings for the page "Python API".

The page has examples of its own, so those of the docstrings are left out. A name in single
backticks becomes a link if the page documents it, and code otherwise.
"""

import importlib
import inspect
import re
from typing import TYPE_CHECKING, Any

import mergelib
from mergelib import align, evaluation

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# Results that functions return, besides the names that the packages export.
RESULTS = ("mergelib.procedures.Adapted", "mergelib.sail.growth.learning.LearnedGrowth")
_NAME = re.compile(r"(?<![`:])`([\w.]+)`(?!`)")


def documented() -> list[str]:
    """Return the full names that the page has to document."""
    names = [f"mergelib.{name}" for name in mergelib.__all__ if name != "__version__"]
    for package in (align, evaluation):
        known = [name for name in package.__all__ if hasattr(mergelib, name)]
        names += [f"{package.__name__}.{name}" for name in package.__all__ if name not in known]
    return [*names, *RESULTS]


def targets() -> dict[str, str]:
    """Map every way in which a docstring may name a documented object to its full name."""
    full = documented()
    return {name: name for name in full} | {name.rpartition(".")[2]: name for name in full}


def prepared(lines: list[str]) -> list[str]:
    """Return a docstring without examples, with links, and with what is returned as a field."""
    known = targets()

    def link(match: re.Match[str]) -> str:
        name = match[1]
        return f":py:obj:`{name} <{known[name]}>`" if name in known else f"``{name}``"

    result: list[str] = []
    example = False
    for line in lines:
        example = line.startswith(">>>") or (example and bool(line.strip()))
        if example:
            continue
        if line == "Returns:":  # which would take what stands before a colon for a type
            line = ":returns:"
        result.append(_NAME.sub(link, line))
    return result


def resolved(name: str) -> Any:
    """Return the object of a full name."""
    package, _, last = name.rpartition(".")
    return getattr(importlib.import_module(package), last)


def fields_of(kind: Any) -> list[str]:
    """Return a field for every field of a dataclass that a comment beside it describes."""
    source = inspect.getsource(kind) if hasattr(kind, "__dataclass_fields__") else ""
    described = re.findall(r"^    (\w+): [^#\n]*  # (.*)", source, re.MULTILINE)
    return [f":ivar {name}: {comment}" for name, comment in described]


def process(app: "Sphinx", what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Handle Sphinx's event ``autodoc-process-docstring``."""
    lines[:] = prepared(lines)
    if what == "class" and (fields := fields_of(obj)):
        lines += ["", *prepared(fields), ""]


def setup(app: "Sphinx") -> dict[str, bool]:
    """Connect the extension, before napoleon reads the docstrings."""
    app.connect("autodoc-process-docstring", process, priority=100)
    return {"parallel_read_safe": True}
