"""The code behind a study, as a hash: what was measured by other code is not taken for it.

The hash is coarse: it covers the library, the suites, the laboratory and the measurements and
theory of the study's paper. It is taken over syntax trees, so comments, docstrings and layout do
not count. A tree's form is its Python's: another minor version of Python measures anew.
"""

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHARED = ("mergelib", "mergebook/suites", "mergebook/lab")
# They show or read numbers, and compute none that a study returns.
SILENT = ("cli", "claims", "claims.py", "read", "read.py", "draw", "draw.py", "paper.py")


def code_key(function: Callable[..., Any], root: Path = ROOT) -> str:
    """Hash of the code behind a study, 16 hexadecimal digits.

    Args:
        function: the study. One from outside the packages, as in a notebook, counts with its own
            source.
        root: the folder that holds both packages.
    """
    package, *inside = function.__module__.split(".")
    state = hashlib.sha256()
    folders: tuple[str, ...] = SHARED
    if package == "mergebook":
        folders = (*SHARED, f"mergebook/{inside[0]}")
    elif package != "mergelib":
        state.update(form(textwrap.dedent(_source(function))).encode())
    for folder in folders:
        state.update(_code_in(root, folder).encode())
    return state.hexdigest()[:16]


@cache
def _code_in(root: Path, folder: str) -> str:
    """Hash of the modules in a folder, by their paths."""
    state = hashlib.sha256()
    for file in sorted((root / folder).rglob("*.py")):
        path = file.relative_to(root)
        if not set(path.parts) & set(SILENT):
            state.update(f"{path}\n{form(file.read_text(encoding='utf-8'))}\n".encode())
    return state.hexdigest()


def form(source: str) -> str:
    """The syntax tree of a source without the strings that stand alone, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _is_text(part)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(part: ast.AST) -> bool:
    return (
        isinstance(part, ast.Expr)
        and isinstance(part.value, ast.Constant)
        and isinstance(part.value.value, str)
    )


def _source(function: Callable[..., Any]) -> str:
    """The source of a function's module, or of the function where that has no file."""
    module = inspect.getmodule(function)
    try:
        return inspect.getsource(module if module is not None else function)
    except (OSError, TypeError):  # a notebook's module
        return inspect.getsource(function)
