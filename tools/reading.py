"""How long a page takes to read, computed from its sources.

Counted are the words of prose: the page's own text and what its cells display as text, outside
code, formulas, tables, exercises and their solutions. A reader manages `WORDS_A_MINUTE`, and looks
at a figure for half a minute. Pages that one does not read from top to bottom get no time.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

WORDS_A_MINUTE = 180
MINUTES_A_FIGURE = 0.5

LOOKED_UP = (
    *("book/intro", "book/methods-map", "book/api", "book/command-line", "book/errors"),
    *("book/errata", "book/notation", "book/bibliography", "notebooks/90-claims-ledger"),
    "notebooks/05-recipes",
    *("notebooks/13-cart-claims", "notebooks/25-frank-wolfe-claims", "notebooks/33-cogram-claims"),
    *("notebooks/47-stability-claims", "notebooks/59-sail-claims"),
)

# A sentence that an author wrote about time, and what it says about running the page.
TYPED = re.compile(
    r"\s*\*\*Time:\*\*\s+[\w-]+\s+minutes(?:\s+(?:to\s+read|with\s+the\s+exercises))?"
    r"(?:,\s+(?P<run>[^.;:]+\bto\s+run\b[^.;:]*))?(?P<end>[.;:])\s*(?P<next>\S?)"
)
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
SOLUTION = re.compile(
    r"^`{3,}\{solution-start\}.*?^`{3,}\{solution-end\}\n", re.DOTALL | re.MULTILINE
)
FENCE = re.compile(r"^(`{3,}|:{3,})(\S*)[^\n]*\n(.*?)^\1[ ]*$", re.DOTALL | re.MULTILINE)
# The text of these directives is read like the text around them.
READ = re.compile(r"\{(admonition|note|tip|important|warning|prf:\w+)\}")
PICTURE = re.compile(r"!\[[^]]*\]\(|^`{3,}\{(?:figure|image|glue)\}|<img\b|<svg\b", re.MULTILINE)
FIGURE_OUTPUTS = ("image/png", "image/svg+xml")
REMOVED = {"remove-cell", "remove-output"}


class Length(NamedTuple):
    """The words of prose and the figures of a page."""

    words: int
    figures: int

    @property
    def minutes(self) -> int:
        """Minutes to read the page, at least one."""
        return max(1, round(self.words / WORDS_A_MINUTE + MINUTES_A_FIGURE * self.figures))


def pieces(file: Path) -> Iterator[str]:
    """Yield the Markdown that a page shows; a figure among the outputs stands as an image."""
    if file.suffix != ".ipynb":
        yield file.read_text(encoding="utf-8")
        return
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        tags = {*cell["metadata"].get("tags", ())}
        if cell["cell_type"] == "markdown":
            yield "".join(cell["source"])
        elif not tags & REMOVED:
            for output in cell.get("outputs", ()):
                yield shown(output.get("data", {}))


def shown(data: dict[str, Any]) -> str:
    """Return an output as Markdown: its text, or an image for a figure."""
    if any(kind in data for kind in FIGURE_OUTPUTS):
        return "![figure]()"
    if "text/markdown" in data:
        return "".join(data["text/markdown"])
    return "![figure]()" if PICTURE.search("".join(data.get("text/html", ""))) else ""


def prose(text: str) -> str:
    """Return the prose of a page in Markdown."""
    text = SOLUTION.sub("", FRONT_MATTER.sub("", text))
    text = FENCE.sub(lambda fence: fence[3] if READ.match(fence[2]) else "", text)
    text = re.sub(r"\$\$.*?\$\$", " ", text, flags=re.DOTALL)
    text = re.sub(r"\$[^$]+\$", " x ", text)
    text = "\n".join(line for line in text.splitlines() if not re.match(r"\s*[|:<]", line))
    text = re.sub(r"!\[[^]]*\]\([^)]*\)", " ", text)
    text = re.sub(r"\{[a-z:]+\}`[^`]*`", " x ", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def length(file: Path) -> Length:
    """Return the length of a page, of Markdown or of an executed notebook."""
    text = "\n\n".join(pieces(file))
    words = len(re.findall(r"[A-Za-z][\w'’-]*", prose(text)))
    return Length(words, len(PICTURE.findall(SOLUTION.sub("", text))))


def without_typed_time(text: str) -> tuple[str, str]:
    """Return a text without the sentence about time, and the time to run that it names."""
    typed = TYPED.search(text)
    if typed is None:
        return text, ""
    follows = typed["next"] if typed["end"] == "." else typed["next"].upper()
    gap = text[typed.end("end") : typed.start("next")] if typed["end"] == "." else " "
    kept = f"{text[: typed.start()]}{gap}{follows}{text[typed.end() :]}"
    return kept.strip("\n"), " ".join((typed["run"] or "").split())


def line_of_time(page: Length, run: str = "") -> str:
    """Return the line below a title: minutes to read, and the time to run if it is known."""
    minutes = f"{page.minutes} minute{'s' if page.minutes > 1 else ''} to read"
    return f"[{minutes}, {run}]{{.reading-time}}" if run else f"[{minutes}]{{.reading-time}}"


def below_title(text: str, line: str) -> str:
    """Return a page with a line of Markdown below its title."""
    return re.sub(r"^# .*$", lambda title: f"{title[0]}\n\n{line}", text, count=1, flags=re.M)


def write_head(file: Path, *links: str, timed: bool) -> None:
    """Write the time to read and links below the title of a page, in one line."""
    notebook = json.loads(file.read_text(encoding="utf-8")) if file.suffix == ".ipynb" else None
    cells = [cell for cell in (notebook or {}).get("cells", ()) if cell["cell_type"] == "markdown"]
    texts = ["".join(cell["source"]) for cell in cells] or [file.read_text(encoding="utf-8")]
    parts, time = [*links], ""
    if timed:
        for place, text in enumerate(texts):
            texts[place], run = without_typed_time(text)
            time = time or run
        parts.insert(0, line_of_time(length(file), time))
    if not parts:
        return
    title = next(place for place, text in enumerate(texts) if re.search("^# ", text, re.M))
    texts[title] = below_title(texts[title], " · ".join(parts))
    if notebook is None:
        file.write_text(texts[0].rstrip() + "\n", encoding="utf-8")
        return
    for cell, text in zip(cells, texts, strict=True):
        cell["source"] = text
    file.write_text(json.dumps(notebook), encoding="utf-8")
