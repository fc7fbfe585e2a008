"""The code that a run depends on, as a hash: what was measured by other code is not taken for it.

It is found by reading: from the study's function to what it names in its own module, and from
there along all imports, also those inside functions, to modules, which count as a whole. A name
that the ``__init__`` of a package of methods passes on leads to the module it comes from.
What a method's name leads to is invisible to imports, so the modules of the methods that a run uses
are added. The hash is of their syntax trees: comments, docstrings and layout do not count, nor do
modules that compute no number. It needs neither git nor a checkout. A tree's form is its Python's,
so that another minor version of Python measures anew.
"""

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mergelib.registry import get_method, method_names

PACKAGE = "mergelib"
FAMILIES = ("rule", "compression", "procedure")
# What these packages register is used by its name, so that a name taken from them concerns only the
# module it comes from. Of other packages all counts.
NAMED = tuple(
    f"mergelib{part}" for part in ("", ".rules", ".compression", ".procedures", ".cogram")
)
# They show, keep or carry numbers, and compute none that a study returns.
SILENT = (
    *("mergelib.cli", "mergelib.ledger", "mergelib.plots", "mergelib.progress"),
    *("mergelib.records.provenance", "mergelib.records.dependencies", "mergelib.records.results"),
    *("mergelib.records.statistics", "mergelib.studies.sweep", "mergelib.studies.catalogue"),
)


class Sources:
    """The package's modules in a folder, each read once: as this process has loaded them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._texts: dict[str, str | None] = {}

    def __contains__(self, module: str) -> bool:
        return self.read(module) is not None

    def read(self, module: str) -> str | None:
        """The source of a module by its name; None if it is not one of the package."""
        if module not in self._texts:
            self._texts[module] = self._read(*module.split("."))
        return self._texts[module]

    def _read(self, package: str, *parts: str) -> str | None:
        path = self.root.joinpath(*parts)
        for file in (path / "__init__.py", path.parent / f"{path.name}.py"):
            if package == PACKAGE and file.is_file():
                return file.read_text(encoding="utf-8")
        return None

    def modules(self) -> list[str]:
        """The names of all modules, in order."""
        files = sorted(self.root.rglob("*.py"))
        parts = [file.relative_to(self.root).with_suffix("").parts for file in files]
        return [".".join([PACKAGE, *part]).removesuffix(".__init__") for part in parts]


OWN = Sources(Path(__file__).parents[1])


def code_key(
    function: Callable[..., Any], methods: Iterable[str] | None, sources: Sources = OWN
) -> str:
    """Hash of the code behind a study.

    Args:
        function: the study. One from outside the package, as in a notebook, counts with its own
            source, and depends on all of the package.
        methods: names of the rules, compressions and procedures it uses; None for all.
        sources: of the package.

    Returns:
        16 hexadecimal digits.
    """
    state = hashlib.sha256()
    own = sources.read(function.__module__)
    if own is not None:
        known = [name for family in FAMILIES for name in method_names(family)]
        form, bindings = _part_of(own, function.__name__)
        state.update(f"{function.__module__}\n{form}\n".encode())
        roots = [_module_of(name) for name in (known if methods is None else methods)]
        roots += [_origin(target, name, sources) for target, name, _ in bindings]
    else:
        state.update(_form(_text_around(function)).encode())
        roots = sources.modules()
    for module in sorted(module_closure(roots, sources)):
        state.update(f"{module}\n{_form(sources.read(module) or '')}\n".encode())
    return state.hexdigest()[:16]


def module_closure(roots: Iterable[str], sources: Sources = OWN) -> set[str]:
    """The roots, and the modules that are imported from there, directly or not."""
    reached: set[str] = set()
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module in reached or module not in sources or _is_silent(module):
            continue
        reached.add(module)
        waiting += [
            _origin(target, name, sources)
            for target, name, _ in _bindings(sources.read(module) or "")
        ]
    return reached


def methods_in(settings: Any) -> set[str]:
    """The names of methods that occur in settings, as keys or values at any depth."""
    known = {name for family in FAMILIES for name in method_names(family)}
    if isinstance(settings, str):
        return {settings} & known
    if isinstance(settings, Mapping):
        settings = [*settings, *settings.values()]
    if not isinstance(settings, list | tuple | set):
        return set()
    return {name for part in settings for name in methods_in(part)}


def _module_of(method: str) -> str:
    for family in FAMILIES:
        if method in method_names(family):
            return get_method(method, family).function.__module__
    return get_method(method).function.__module__  # its error names the nearest


def _text_around(function: Callable[..., Any]) -> str:
    """The source of a function's module, or of the function where that has no file."""
    module = inspect.getmodule(function)
    try:
        return inspect.getsource(module if module is not None else function)
    except (OSError, TypeError):  # a notebook's module
        return textwrap.dedent(inspect.getsource(function))


def _is_silent(module: str) -> bool:
    return any(module == silent or module.startswith(f"{silent}.") for silent in SILENT)


def _origin(target: str, name: str | None, sources: Sources) -> str:
    """The module behind ``from target import name``, through packages that pass the name on."""
    if name is None:
        return target
    if f"{target}.{name}" in sources:
        return f"{target}.{name}"
    if target in NAMED:
        for further, own, alias in _bindings(sources.read(target) or ""):
            if alias == name:
                return _origin(further, own, sources)
    return target


Binding = tuple[str, str | None, str]  # a module, the name taken from it, what it is called here


@cache
def _bindings(source: str) -> list[Binding]:
    """What a source imports, wherever in it."""
    bindings: list[Binding] = []
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Import):
            bindings += [(part.name, None, part.asname or part.name) for part in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [(None if p.name == "*" else p.name, p.asname or p.name) for p in node.names]
            bindings += [(node.module, name, alias) for name, alias in names]
    return bindings


def _part_of(source: str, name: str) -> tuple[str, list[Binding]]:
    """What stands behind a name in its module: the statements in it, and the imports they use."""
    body = [
        part for part in _tree(source).body if not isinstance(part, ast.Import | ast.ImportFrom)
    ]
    needed: list[ast.stmt] = []
    seen, waiting = {"*"}, [name]
    while waiting:
        word = waiting.pop()
        seen.add(word)
        for part in body:
            if part not in needed and word in _names_bound(part):
                needed.append(part)
                words = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
                waiting += sorted(words - seen)
    if not needed:  # a function inside another
        return _form(source), _bindings(source)
    bindings = [part for part in _bindings(source) if part[2].split(".")[0] in seen]
    form = [ast.dump(part) for part in body if part in needed]
    return "\n".join([*form, *sorted(map(repr, bindings))]), bindings


def _names_bound(part: ast.stmt) -> set[str]:
    """The names that a statement of a module gives to something."""
    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {part.name}
    nodes = [node for node in ast.walk(part) if isinstance(node, ast.Name)]
    return {node.id for node in nodes if isinstance(node.ctx, ast.Store)}


@cache
def _form(source: str) -> str:
    """What a source does: its syntax tree without docstrings and imports for type checkers."""
    return ast.dump(_tree(source))


def _tree(source: str) -> ast.Module:
    tree: ast.Module = _Stripper().visit(ast.parse(source))
    return tree


class _Stripper(ast.NodeTransformer):
    """Takes out strings that stand alone, and what only type checkers import."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node

    def visit_If(self, node: ast.If) -> Any:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return [self.visit(part) for part in node.orelse]
        return self.generic_visit(node)
