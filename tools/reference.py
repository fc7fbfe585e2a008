"""Write those parts of the reference pages that the programs and results determine.

A page names such a part in a comment of its own line, such as ``% commands: mergelib``. `fill`
replaces it, so that no option, default or number on these pages can be out of date.
"""

import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

import mergebook.cli
import mergelib.cli
from mergebook.chapters import leaderboard
from mergelib.registry import Method, get_method, method_names

PROGRAMS = {"mergelib": mergelib.cli.app, "mergebook": mergebook.cli.app}
FAMILIES = ("rule", "calibration", "procedure", "compression")
LEADERBOARD = "../notebooks/80-leaderboard"
WIDEST = 76  # characters of a line of code
SUITES = ("imagenet8", "sentences8", "vision8")
# The leaderboard's rows of a method, where they have other names; the first one is the usual one.
ROWS = {
    "surgery": ("surgery", "surgery+cart"),
    "frank_wolfe": ("frank_wolfe", "frank_wolfe+cart"),
    "uniform_soup": ("average",),
    "emr": ("EMR",),
    "tall_masks": ("TALL + task arithmetic", "TALL + TIES"),
    "cart_indexing": ("CART-Indexing, 8%", "CART-Indexing, rest averaged, 8%"),
}
# What mergekit calls a method, and how its settings correspond.
MERGEKIT = {
    "average": (
        "linear",
        "`weights` is `weight`; by default divided by its sum, here with `normalise`",
    ),
    "task_arithmetic": ("task_arithmetic", "`scale` is `lambda`, or per expert `weight`"),
    "slerp": ("slerp", "`t` is the same; `base_model` is the first expert"),
    "model_stock": ("model_stock", ""),
    "ties": (
        "ties",
        '`scale` is `lambda`, `weights` is `weight`; it trims each tensor, as `trim="tensor"`',
    ),
    "dare": (
        "dare_linear",
        '`density` is 1 − `drop_rate`; `dare_ties` is `combine="ties"` with `reduce="sum"`',
    ),
    "breadcrumbs": (
        "breadcrumbs",
        '`density` and `gamma` are the same; `breadcrumbs_ties` is `combine="ties"`',
    ),
    "della": (
        "della",
        "`density` is 1 − `drop_rate`, and `epsilon` is half of ours; `della_linear` is "
        '`combine="task_arithmetic"`',
    ),
    "nuslerp": ("nuslerp", "`weights` is `weight`"),
    "karcher": (
        "karcher",
        "`steps` is `max_iter`, `tolerance` is `tol`; `multislerp` is `steps=0`",
    ),
    "sce": ("sce", "`density` is `select_topk`"),
    "ram": ("ram", "`epsilon` is the same; `ramplus_tl` is `r=0.1`"),
    "nearswap": ("nearswap", "`t` is the same"),
    "arcee_fusion": ("arcee_fusion", ""),
}


def fill(page: str) -> str:
    """Return a page with its comments replaced by what they name."""
    makers: dict[str, Callable[..., str]] = {"commands": commands, "facts": facts, "glance": glance}
    pattern = re.compile(rf"^% ({'|'.join(makers)})(?:: (\w+))?$", flags=re.MULTILINE)
    return pattern.sub(lambda match: makers[match[1]](*filter(None, [match[2]])), page)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """Return a Markdown table; ``align`` has one letter per column, ``l`` or ``r``."""
    rule = ["--:" if each == "r" else "---" for each in align or "l" * len(header)]
    lines = [" | ".join(cells) for cells in (header, rule, *rows)]
    return "\n".join(f"| {line} |" for line in lines)


# ------------------------------------------------------------------------------------ commands


def commands(program: str) -> str:
    """Return one section per command of a program."""
    tree = typer.main.get_command(PROGRAMS[program])
    return "\n\n".join(_section(path, command) for path, command in _walk(tree, program))


def _walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield all commands with the words that call them; groups only lead to commands."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    for name, each in (inner or {}).items():
        yield from _walk(each, f"{path} {name}")


def _section(path: str, command: Any) -> str:
    """Return the anchor, the title, the description and the options of a command."""
    parts = [f"(command-{path.replace(' ', '-')})=\n### `{path}`", *_usage(path, command)]
    rows = [_row(each) for each in command.params if not getattr(each, "hidden", False)]
    if rows:
        parts.append(table(("option", "default", "meaning"), rows))
    return "\n\n".join(parts)


def _usage(path: str, command: Any) -> Iterator[str]:
    """Yield the paragraphs of a command's help, with its examples as code."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        text = " ".join(paragraph.split())
        start, _, rest = text.partition(": ")
        if start in ("Example", "Examples"):
            calls = re.split(r"; (?=\w+ )", rest)
            yield "```bash\n" + "\n".join(map(_wrapped, calls)) + "\n```"
        else:
            yield escape(text)


def _wrapped(call: str) -> str:
    """Return a call in lines that fit the page; an option and its value share a line."""
    words = " ".join(map(shlex.quote, shlex.split(call)))
    lines = [""]
    for part in re.findall(r"-\S+ (?!-)\S+|\S+", words):
        if len(lines[-1]) + len(part) + 3 > WIDEST:
            lines.append("   ")
        lines[-1] += f" {part}" if lines[-1] else part
    return " \\\n".join(lines)


def _row(parameter: Any) -> tuple[str, str, str]:
    """Return the names, the default and the help of an argument or option."""
    names = [*parameter.opts, *parameter.secondary_opts]
    if not names[0].startswith("-"):  # an argument
        names = [names[0].upper() + ("…" if parameter.nargs != 1 else "")]
    shown, default = getattr(parameter, "show_default", None), parameter.default
    if parameter.required:
        value = "required"
    elif isinstance(shown, str):
        value = shown
    elif default is None or default is False:
        value = ""
    else:
        value = f"`{default}`"
    return ", ".join(f"`{name}`" for name in names), value, escape(parameter.help or "")


def escape(text: str) -> str:
    """Return text for Markdown, with what one types as code."""
    option, setting = r"--[a-z][\w-]*", r"[\w-]+=[^\s;]+"
    typed = rf"""('[^']+'|(?<=see: )merge[a-z ]+|{option}(?: "[^"]*"| {setting})?|\b{setting})"""
    parts = re.split(typed, text)
    parts[::2] = [re.sub(r"([\\*<`$|\[\]])", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"`{part.strip(chr(39))}`" for part in parts[1::2]]
    return "".join(parts)


# ------------------------------------------------------------------------------------- methods


def all_methods() -> list[Method]:
    """Return the methods of all families, in the order of the registry."""
    return [get_method(name, family) for family in FAMILIES for name in method_names(family)]


def facts(name: str) -> str:
    """Return what a method needs and keeps, its name in mergekit, and its hyperparameters."""
    method = next(each for each in all_methods() if each.name == name)
    needs = method.needs.removesuffix(", no data").replace(", model", ", network")
    needs = needs.replace("pretrained", "pretrained model")
    lines = [f"* Needs: {needs}", f"* [Leaderboard]({LEADERBOARD}){_kept(name)}"]
    if name in MERGEKIT:
        other, settings = MERGEKIT[name]
        lines.append(f"* In mergekit: `{other}`" + (f" ({settings})" if settings else ""))
    meanings = meanings_of(method)
    rows = [
        (f"`{key}`", f"`{default!r}`".replace("'", '"'), meanings[key])
        for key, default in method.hyperparameters.items()
    ]
    described = table(("hyperparameter", "default", "meaning"), rows) if rows else ""
    return "\n".join(lines) + (f"\n\n{described}" if rows else "")


def meanings_of(method: Method) -> dict[str, str]:
    """Return the hyperparameters' descriptions, as the docstrings have them."""
    documented = [method.function] if method.settings is None else reversed(method.settings.mro())
    found: dict[str, str] = {}
    for each in documented:
        text = inspect.getdoc(each) or "" if each.__doc__ else ""
        for section in re.findall(
            r"^(?:Hyperparameters|Attributes):\n((?: .*\n?|\n)+)", text, re.M
        ):
            entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.M)
            found |= {name: _as_markdown(meaning) for name, meaning in entries}
    return found


def _as_markdown(text: str) -> str:
    """Return the text of a docstring as a cell of a table."""
    sentence = " ".join(text.split()).replace("``", "`").replace("|", r"\|")
    symbol = re.match(r"[^a-z]|\w\b", sentence)  # of a formula, or code
    return sentence if symbol else sentence[0].upper() + sentence[1:]


def results() -> dict[tuple[str, str], float]:
    """Return the accuracy in per cent of the experts' by row of the leaderboard and suite."""
    return {(row.method, row.suite): row.normalised for row in leaderboard.entries()}


def _kept(name: str) -> str:
    """Return the numbers of the leaderboard's rows that belong to a method."""
    known = results()
    sentences = []
    rows = ROWS.get(name, (name,))
    for row in rows:
        parts = [
            f"{known[row, suite]:.0f} ({leaderboard.SUITES[suite][1]})"
            for suite in SUITES
            if (row, suite) in known
        ]
        if parts:
            called = f"{leaderboard.title(row)}: " if len(rows) > 1 else ""
            sentences.append(f"{called}{', '.join(parts)}")
    if not sentences:
        return ": not in its table"
    return f", per cent of the experts' accuracy: {'; '.join(sentences)}"


def glance() -> str:
    """Return a table of all methods with their accuracy and their name in mergekit."""
    known = results()
    rows = []
    for method in all_methods():
        row = ROWS.get(method.name, (method.name,))[0]
        numbers = [known.get((row, suite)) for suite in SUITES]
        other = f"`{MERGEKIT[method.name][0]}`" if method.name in MERGEKIT else ""
        shown = ["–" if number is None else f"{number:.0f}" for number in numbers]
        anchor = f"#method-{method.name.replace('_', '-')}"
        rows.append((f"[`{method.name}`]({anchor})", _data(method), *shown, other))
    titles = [leaderboard.SUITES[suite][1] for suite in SUITES]
    return table(("method", "data", *titles, "in mergekit"), rows, "llrrrl")


def _data(method: Method) -> str:
    """Return what a method needs besides weights, in a few words."""
    if method.family == "compression":
        return "none; the task must be known"
    data = method.data.partition(" of every")[0].partition(" (")[0]
    return data.removeprefix("no data") or "none"


def fill_pages(folder: Path) -> None:
    """Fill all Markdown pages of a folder."""
    for path in folder.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        if (filled := fill(text)) != text:
            path.write_text(filled, encoding="utf-8")
