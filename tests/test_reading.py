"""Words of prose: how they are counted, how long they take to read, and how many there may be."""

import json
from pathlib import Path

import pytest
import reading
import yaml
from site_files import contents, find_page, read_page

ROOT = Path(__file__).parents[1]
# The words of prose that a track may have. A ratchet: whoever shortens a track lowers its number,
# nobody raises one, except for what a reader who was new to two pages could not follow. The goals
# for the papers are 3,500, 3,000, 3,500, 5,500 and 7,000. Appendices of proofs have words of their
# own.
MOST_WORDS = {
    ("Start", "Learn"): 9_700,
    ("Paper: CART",): 2_550,
    ("Paper: Frank-Wolfe merging",): 2_855,
    ("Paper: CoGraM",): 2_500,
    ("Paper: the stability framework",): 5_490,
    ("Paper: SAIL",): 6_300,
}
MOST_WORDS_OF_PROOFS = 10_000
PROOFS = "-proofs"  # how the names of their pages end
APART = (PROOFS, "-claims")  # and those of the ledger
PAGES = [*contents(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))]


@pytest.mark.parametrize("parts", MOST_WORDS, ids=" and ".join)
def test_tracks_keep_to_their_words(parts: tuple[str, ...]) -> None:
    tracks = [path for part, path in PAGES if part in parts and not path.endswith(APART)]
    counts = {path: reading.length(find_page(ROOT, path)).words for path in tracks}
    assert counts
    assert sum(counts.values()) <= MOST_WORDS[parts], counts


def test_appendices_of_proofs_keep_to_their_words() -> None:
    appendices = [path for _, path in PAGES if path.endswith(PROOFS)]
    counts = {path: reading.length(find_page(ROOT, path)).words for path in appendices}
    assert counts
    assert sum(counts.values()) <= MOST_WORDS_OF_PROOFS, counts


def test_every_paper_has_its_number() -> None:
    papers = {part for part, _ in PAGES if part.startswith("Paper")}
    assert {part for parts in MOST_WORDS for part in parts} == {"Start", "Learn", *papers}
    assert {*reading.LOOKED_UP} <= {path for _, path in PAGES}


SOLVED = (
    "````{solution-start} ex-a\n:class: dropdown\n````\nSolved here.\n````{solution-end}\n````\n"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# A title\n\nOne [link](to/a-page.md) and `code`.", 6),
        ("---\nmyst: front matter\n---\n# Title\n\nText.", 2),
        ("Before\n\n```python\nprint(1)\n```\n\nafter.", 2),
        ("A sum $a + b$ here\n\n$$\na = b\n$$\n", 4),
        ("Text\n\n| a table | here |\n|---|---|\n| one | two |\n", 1),
        ("```{exercise} Easy\n:label: ex-a\n\nCompute it.\n```\n\nText.", 1),
        (f"Text.\n\n{SOLVED}\nMore.", 2),
        ("```{admonition} Takeaway\n:class: tip\n\nRead this.\n```\n", 2),
        ("It keeps {glue:text}`a/page.ipynb::number:.0f` % ({cite}`key`).", 4),
    ],
)
def test_words_of_prose(text: str, words: int, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert reading.length(page) == (words, 0)


def test_a_notebook_has_displayed_words_and_figures(tmp_path: Path) -> None:
    outputs = [{"data": {"image/png": "", "text/plain": "x"}}, {"data": {"text/markdown": "a b"}}]
    code = {"cell_type": "code", "source": "x = 1", "outputs": outputs}
    cells = [
        {"cell_type": "markdown", "source": ["# T\n", "\n", "One two."], "metadata": {}},
        {**code, "metadata": {}},
        {**code, "metadata": {"tags": ["remove-cell"]}},
        {"cell_type": "markdown", "source": SOLVED[:47], "metadata": {}},
        {**code, "metadata": {}},
        {"cell_type": "markdown", "source": SOLVED[47:], "metadata": {}},
    ]
    page = tmp_path / "page.ipynb"
    page.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    assert reading.length(page) == (5, 1)
    assert reading.length(page).minutes == 1
    assert reading.Length(900, 3).minutes == 6


@pytest.mark.parametrize(
    ("text", "rest", "run"),
    [
        ("A. **Time:** 5 minutes to read, half a\nminute to run.", "A.", "half a minute to run"),
        ("A. **Time:** five minutes to\nread, one to run.\n\nB", "A.\n\nB", "one to run"),
        ("A. **Time:** 5 minutes to read, one to run; the\nrest.", "A. The\nrest.", "one to run"),
        ("A. **Time:** five minutes; the rest is read.", "A. The rest is read.", ""),
        ("No such sentence.", "No such sentence.", ""),
    ],
)
def test_a_typed_time_gives_way_to_the_computed_one(text: str, rest: str, run: str) -> None:
    assert reading.without_typed_time(text) == (rest, run)


def test_the_head_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.ipynb"
    texts = ["(at)=\n# Title\n\nText.", "**Time:** 9 minutes to read, one to run.\n\nMore."]
    cells = [{"cell_type": "markdown", "source": text, "metadata": {}} for text in texts]
    page.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    reading.write_head(page, "[Link](a)", timed=True)
    head = "(at)=\n# Title\n\n[1 minute to read, one to run]{.reading-time} · [Link](a)\n\nText."
    assert read_page(page).split("\n\n\n")[0] == f"{head}\n\nMore."
