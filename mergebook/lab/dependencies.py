"""The code behind a study, as a hash: what was measured by other code is not taken for it.

It covers the library, suites, laboratory and the paper's measurements and theory, as syntax trees:
comments, docstrings and layout do not count, the minor version of Python does.
"""

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHARED = ("mergelib", "mergebook/suites", "mergebook/lab")
# They show or read numbers, and compute none that a study returns.
SILENT = {"cli", "claims", "read", "draw", "paper"}


def code_key(function: Callable[..., Any], root: Path = ROOT) -> str:
    """Hash of the code behind a study, 16 digits; one of a notebook counts with its own source."""
    package, *inside = function.__module__.split(".")
    parts = [_code_in(root, folder) for folder in SHARED]
    if package == "mergebook":
        parts.append(_code_in(root, f"mergebook/{inside[0]}"))
    elif package != "mergelib":
        file = getattr(sys.modules.get(function.__module__), "__file__", None)
        source = Path(file).read_text(encoding="utf-8") if file else inspect.getsource(function)
        parts.append(form(textwrap.dedent(source)))
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


@cache
def _code_in(root: Path, folder: str) -> str:
    state = hashlib.sha256()
    for file in sorted((root / folder).rglob("*.*")):
        path = file.relative_to(root)
        names = {Path(part).stem for part in path.parts}
        if file.suffix in (".py", ".toml") and not names & SILENT:
            text = file.read_text(encoding="utf-8")
            state.update(f"{path}\n{form(text) if file.suffix == '.py' else text}\n".encode())
    return state.hexdigest()


def form(source: str) -> str:
    """The syntax tree of a source without the strings that stand alone, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [part for part in body if not _is_text(part)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(part: ast.AST) -> bool:
    value = part.value if isinstance(part, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
