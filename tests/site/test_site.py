"""The built book as a reader meets it: light and dark, on a desktop and on a phone."""

import re
import subprocess
from html import unescape
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from browsing import PAGES, ROOT, SITE, Visitor
from playwright.sync_api import Page
from reference import all_methods

WIDTHS = (390, 1280)  # a phone, a laptop
every_page = pytest.mark.parametrize("path", PAGES)

# What is left standing when a directive, a role or a formula was not understood.
RAW_MARKUP = re.compile(
    r"""\{[a-z]+(:[a-z]+)*\}`      # a role
      | ^\s*(:::|```)              # a fence
      | ^\s*:[a-z-]+:\s            # an option of a directive
      | \\[(\[)\]] | \$\$          # delimiters of formulas
      | \\(frac|begin|end|mathbf|mathrm|theta|lambda|sum|left|right|label|ref)\b
      | \$\S[^$\n]*\$              # a formula
      | ^\s*\|.*\|\s*$             # a row of a table
      | \[\#?[a-z]+(-[a-z]+)+\]\(  # a link""",
    re.VERBOSE | re.MULTILINE,
)
LINK = re.compile(r"""<a\b[^>]*?\bhref="([^"]+)""")
# Pages whose first screen has the figure with their finding: all notebooks but these, and two more.
LATER = ("05-recipes", "23-frank-wolfe-proofs")
NOTEBOOKS = sorted(file.stem for file in (ROOT / "notebooks/src").glob("*.py"))
FINISHED = ["book/intro", "book/which-method"]
FINISHED += [
    f"notebooks/{name}" for name in NOTEBOOKS if not (name in LATER or name.endswith("-claims"))
]
# The most bytes that a page loads, uncompressed and without its figures: with formulas, without
# any, and of pages that are long. With its figures the landing page loads less than half of a
# megabyte, and the shortest chapter one and a half.
HEAVIEST, HEAVIEST_WITHOUT_FORMULAS = 1_500_000, 550_000
HEAVY = {
    "notebooks/90-claims-ledger": 1_700_000,
    "book/api": 600_000,
    "book/errors": 600_000,
    "notebooks/59-sail-claims": 600_000,
}
HEAVIEST_WITH_FIGURES = {"book/intro": 500_000, "notebooks/04-low-rank-merging": 1_500_000}
# Faults of the theme itself, on every page of it, that this book cannot mend.
AXE_BASELINE: set[str] = set()
COLOURS = "runOnly: ['color-contrast', 'link-in-text-block']"
ALL_BUT_COLOURS = "rules: {'color-contrast': off, 'link-in-text-block': off}"


@every_page
def test_a_page_is_whole(visit: Visitor, path: str) -> None:
    visit.open(path)
    page = visit.page
    assert page.evaluate("[...document.querySelectorAll('mjx-merror')].map(e => e.outerHTML)") == []

    text = page.evaluate(
        """() => {
            const article = document.querySelector("article").cloneNode(true);
            const skipped = "pre, code, script, style, mjx-container";
            article.querySelectorAll(skipped).forEach(e => e.remove());
            return [...article.querySelectorAll("*")].flatMap(e => [...e.childNodes])
                .filter(n => n.nodeType === Node.TEXT_NODE).map(n => n.data).join("\\n");
        }"""
    )
    found = RAW_MARKUP.search(text)
    assert found is None, text[max(0, found.start() - 80) : found.end() + 80]

    formulas = page.locator("article span.math, article div.math").count()
    assert page.locator("article mjx-container").count() >= formulas

    without = HEAVIEST if formulas else HEAVIEST_WITHOUT_FORMULAS
    assert visit.weight(images=False) <= HEAVY.get(path, without)
    assert visit.weight() <= HEAVIEST_WITH_FIGURES.get(path, 10 * HEAVIEST)

    if path in FINISHED:
        bottom = "document.querySelector('article img').getBoundingClientRect().bottom"
        assert page.evaluate(bottom) <= 900, "the first screen has no whole figure"
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    assert violations(page, ALL_BUT_COLOURS) == {}
    images_are_described(page)
    assert not blocks_that_are_cut(page)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        overflow = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert overflow <= 0, f"{overflow} px too wide at {width}"
    colours_are_readable(page)
    assert visit.problems == []


def images_are_described(page: Page) -> None:
    images = page.evaluate(
        "[...document.querySelectorAll('article img')].map(i => [i.src, i.alt, i.naturalWidth])"
    )
    for source, alt, width in images:
        name = PurePosixPath(urlsplit(source).path).name
        assert width > 0, f"{name} did not load"
        assert len(alt.split()) >= 3, f"{name} has no description: {alt!r}"
        assert not re.search(r"\.(png|svg|jpe?g)$|^[_./\w-]+$", alt), f"a file name: {alt!r}"


def violations(page: Page, rules: str) -> dict[str, list[str]]:
    """Return what axe finds serious or critical, with the first elements."""
    options = f"{{resultTypes: ['violations'], preload: false, {rules}}}"  # preloads stylesheets
    found = page.evaluate(
        f"off => axe.run(document, {options}).then(result => result.violations)", {"enabled": False}
    )
    return {
        item["id"]: [node["html"][:200] for node in item["nodes"][:3]]
        for item in found
        if item["impact"] in ("serious", "critical") and item["id"] not in AXE_BASELINE
    }


LOOKS = """() => {
    window.looks ??= new Map();
    for (const each of document.querySelectorAll("body *")) {
        const style = getComputedStyle(each), shown = each.getBoundingClientRect().width > 1;
        const of = ["color", "backgroundColor", "opacity", "visibility", "fontSize", "fontWeight"];
        looks.set(each, [looks.get(each), shown, ...of.map(name => style[name])].join());
    }
}"""
THREE_OF_A_KIND = """() => {
    const all = [...document.querySelectorAll("body *")], kinds = new Map(), counts = {};
    for (const each of all) {
        const outer = each.parentElement, same = looks.get(each) === looks.get(outer);
        kinds.set(each, (kinds.get(outer) ?? "") + (same ? "" : looks.get(each)));
    }
    for (const each of all.reverse()) {
        if (each.children.length) continue;
        const kind = kinds.get(each) + (each.textContent.trim() ? "text" : "");
        counts[kind] = (counts[kind] ?? 0) + 1;
        if (counts[kind] > 3) each.remove();
    }
}"""


def choose(page: Page, theme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=theme)
    page.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)


def colours_are_readable(page: Page) -> None:
    """In both themes; of elements that look alike in both, three are left on the page for axe."""
    theme: Literal["light", "dark"]
    for theme in ("light", "dark"):
        choose(page, theme)
        page.evaluate(LOOKS)
    page.evaluate(THREE_OF_A_KIND)
    for theme in ("dark", "light"):
        choose(page, theme)
        assert violations(page, COLOURS) == {}, theme


def blocks_that_are_cut(page: Page) -> list[str]:
    """Code and tables wider than their frame, also where they are folded away."""
    cut: list[str] = page.evaluate(
        """() => {
            document.querySelectorAll("details").forEach(each => { each.open = true; });
            const frames = ".pst-scrollable-table-container, .cell_output, .frame";
            const blocks = [...document.querySelectorAll("article pre")];
            for (const table of document.querySelectorAll("article table"))
                if (table.closest(frames)) blocks.push(table.closest(frames));
            return blocks.filter(each => each.scrollWidth > each.clientWidth + 1)
                .map(each => each.innerText.slice(0, 80));
        }"""
    )
    return cut


@every_page
def test_head_and_end_name_the_page(path: str) -> None:
    """For previews of links, and for those who cite it."""
    page = (SITE / f"{path}.html").read_text(encoding="utf-8")
    tags = dict(re.findall(r'<meta property="og:([a-z_:]+)" content="([^"]*)"', page))
    assert tags["title"] in page.partition("<h1>")[2].partition("</h1>")[0].replace("\n", " ")
    assert re.search(r"\w.{20,}[.!?]$", unescape(tags["description"]))
    assert page.count('name="description"') == 1
    if "url" in tags:
        site = tags["url"].removesuffix(f"{path}.html")
        assert site.startswith("https://")
        assert (SITE / tags["image"].removeprefix(site)).is_file()
    (citation,) = re.findall(r'<details class="cite-page">.*?</details>', page, re.DOTALL)
    known = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    for part in (tags["title"], known["title"], known["version"], str(known["date-released"])):
        assert part in citation


@every_page
def test_internal_links_lead_somewhere(path: str) -> None:
    """To a page of this site, and to a place on it, also where no server guesses an ending."""
    page = SITE / f"{path}.html"
    dead = []
    for link in map(unescape, LINK.findall(page.read_text(encoding="utf-8"))):
        url = urlsplit(link)
        if url.scheme or url.netloc:
            continue
        target = (page.parent / unquote(url.path)).resolve() if url.path else page
        place = f'id="{unquote(url.fragment)}"' if url.fragment else ""
        if not target.is_file() or place not in target.read_text(encoding="utf-8"):
            dead.append(link)
    assert dead == []


WANTED = {
    "task arithmetic": "notebooks/02-averaging-and-task-vectors",
    "which method": "book/which-method",
    "leaderboard": "notebooks/80-leaderboard",
    "LoRA": "book/which-method",
    "slerp": "book/methods-map",
    "fold-convolutions": "book/merge-your-own",
    "breadcrumbs": "book/methods-map",
    "learn_growth": "book/api",
    "install-completion": "book/command-line",
    "lacks key": "book/errors",
    "have nothing in common": "book/errors",
}


def words_of_messages() -> dict[str, str]:
    """Return for the name of every message the words that do not depend on a user's files."""
    text = (ROOT / "book" / "errors.md").read_text(encoding="utf-8")
    quotes = dict(re.findall(r"^\((message-[\w-]+)\)=\n### .*\n\n((?:>.*\n)+)", text, re.MULTILINE))
    assert len(quotes) == text.count("\n(message-") >= 70
    plain = {name: " ".join(re.sub(r"[>`]", " ", each).split()) for name, each in quotes.items()}
    general = {name: re.sub(r"'[^']*'|\S*[/\\.]\w\S*", " ", each) for name, each in plain.items()}
    return {
        name: " ".join(re.findall(r"\b[A-Za-z_]{3,}\b", each)) for name, each in general.items()
    }


def test_search_finds_terms_methods_and_messages(visit: Visitor) -> None:
    """One page answers all questions, from the index that readers' questions go through, too."""
    page = visit.page
    page.goto(f"{visit.address}/search.html?q=lacks+key")
    page.locator("#search-results a[href*='book/errors']").first.wait_for(timeout=10_000)
    questions = [*WANTED.items()]
    questions += [(method.name, "book/methods-map") for method in all_methods()]
    questions += [(words, "book/errors") for words in words_of_messages().values()]
    answers = page.evaluate(
        """questions => questions.map(each =>
            Search._performSearch(...Search._parseQuery(each)).map(result => result[0]))""",
        [question for question, _ in questions],
    )
    missed = {
        question: wanted
        for (question, wanted), found in zip(questions, answers, strict=True)
        if wanted not in found
    }
    assert missed == {}
    assert visit.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_theme_is_the_reader_s(visit: Visitor, theme: Literal["light", "dark"]) -> None:
    visit.page.emulate_media(color_scheme=theme)
    visit.open(PAGES[0])
    assert visit.page.evaluate("document.documentElement.dataset.theme") == theme
    ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    levels = [int(level) for level in re.findall(r"\d+", ground)[:3]]
    assert max(levels) < 64 if theme == "dark" else min(levels) > 224


def test_the_colab_button_opens_a_committed_notebook(visit: Visitor) -> None:
    notebooks = [path for path in PAGES if path.startswith("notebooks/")]
    pages = {path: (SITE / f"{path}.html").read_text(encoding="utf-8") for path in notebooks}
    if not any("colab.research.google.com" in html for html in pages.values()):
        pytest.skip("built without an address: MERGELIB_REPOSITORY was not set")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "notebooks/*.ipynb"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    committed = listed.stdout.split()
    for path, html in pages.items():
        link = (
            r'href="https://colab\.research\.google\.com/github/[^/"]+/[^/"]+/blob/[^/"]+/([^"?]+)'
        )
        targets = set(re.findall(link, html))
        assert targets == {f"{path}.ipynb"}, path
        assert targets <= set(committed), f"{targets} is not in the repository"
