"""Files for the root of the site that are not pages of the book.

`llms.txt` lists every page with one sentence, for programs that read the book. `404.html` is shown
for an address that does not exist and links to the book's start. `robots.txt` allows all pages to
be read. Where the site's address is known there is also a `sitemap.xml`, whose entries have to be
full addresses.
"""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from reading import pieces

LABEL = "**In one sentence:**"
# Paragraphs that are not prose: headings, images, targets, directives, tables, HTML, formulas.
NOT_PROSE = re.compile(
    r"#|!\[|\(\S+\)=|```|:::|\||<|\$\$|---|\[[^]]*\](\([^)]*\)$|\{\.reading-time\})"
)


class Page(NamedTuple):
    """A page of the book: its part, its path without an ending, its title and one sentence."""

    part: str
    path: str
    title: str
    sentence: str


def site_address(repository: str) -> str:
    """Return the address at which GitHub serves the site of a repository, or "" for other hosts."""
    match = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+)", repository)
    if match is None:
        return ""
    owner, name = match[1].lower(), match[2].removesuffix(".git")
    host = f"{owner}.github.io"
    return f"https://{host}/" if name.lower() == host else f"https://{host}/{name}/"


def read_page(file: Path) -> str:
    """Return the Markdown of a page; of a notebook, that of its cells and of what they display."""
    return "\n\n".join(pieces(file))


def title_of(text: str) -> str:
    """Return the first heading of a page."""
    return next(line[2:].strip() for line in text.splitlines() if line.startswith("# "))


def sentence_of(text: str) -> str:
    """Return one sentence about a page.

    It is the page's description for search engines, else the sentence that the page calls so, else
    its first bold sentence if the text starts with one, else its first sentence.
    """
    front, text = split_front_matter(text)
    description = front.get("myst", {}).get("html_meta", {}).get("description lang=en")
    if description:
        return plain(description)
    paragraphs = [p.strip() for p in re.split(r"\n\s*\n", text)]
    prose = [p for p in paragraphs if p and not NOT_PROSE.match(p)]
    labelled = next((p for p in prose if p.startswith(LABEL)), None)
    if labelled:
        return first_sentence(labelled.removeprefix(LABEL))
    start = prose[0].removeprefix("* ")
    bold = re.match(r"\*\*(.+?)\*\*", start, re.DOTALL)
    return first_sentence(bold[1] if bold else start)


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Return the metadata at the top of a page, and the rest."""
    match = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    return (yaml.safe_load(match[1]), text[match.end() :]) if match else ({}, text)


def first_sentence(text: str) -> str:
    """Return the first sentence of a paragraph, with a capital letter and a full stop."""
    text = plain(text)
    match = re.match(r".+?[.!?](?=\s|$)", text)
    sentence = match[0] if match else f"{text}."
    return sentence[0].upper() + sentence[1:]


def plain(text: str) -> str:
    """Return Markdown without links, citations, emphasis and line breaks."""
    text = re.sub(r"\s*\{cite\S*\}`[^`]*`", "", text)
    text = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\*(\w[^*]*)\*", r"\1", text.replace("**", ""))
    return " ".join(text.split())


def contents(toc: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the part and the path of every page, in the order of the table of contents."""
    yield toc["parts"][0]["caption"], toc["root"]
    for part in toc["parts"]:
        for chapter in part["chapters"]:
            yield part["caption"], chapter["file"]


def find_page(root: Path, path: str) -> Path:
    """Return the file of a page that the table of contents names."""
    files = [root / f"{path}{suffix}" for suffix in (".md", ".ipynb")]
    return next(file for file in files if file.is_file())


def read_pages(toc: Path, root: Path) -> list[Page]:
    """Return all pages in a table of contents whose files are below ``root``."""
    pages = []
    for part, path in contents(yaml.safe_load(toc.read_text(encoding="utf-8"))):
        text = read_page(find_page(root, path))
        pages.append(Page(part, path, title_of(text), sentence_of(text)))
    return pages


def llms(title: str, pages: list[Page], address: str) -> str:
    """Return `llms.txt`: the book's title and first sentence, then every page."""
    lines = [f"# {title}", "", f"> {pages[0].sentence}"]
    part = None
    for page in pages:
        if page.part != part:
            part = page.part
            lines += ["", f"## {part}", ""]
        lines.append(f"- [{page.title}]({address}{page.path}.html): {page.sentence}")
    return "\n".join(lines) + "\n"


def robots(address: str) -> str:
    """Return `robots.txt`, which names the site map if there is one."""
    return "User-agent: *\nAllow: /\n" + (f"Sitemap: {address}sitemap.xml\n" if address else "")


def sitemap(pages: list[Page], address: str) -> str:
    """Return `sitemap.xml`: the address of every page."""
    urls = "".join(
        f"  <url><loc>{escape(address + page.path)}.html</loc></url>\n" for page in pages
    )
    schema = "http://www.sitemaps.org/schemas/sitemap/0.9"
    head = f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{schema}">\n'
    return f"{head}{urls}</urlset>\n"


NOT_FOUND = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>Page not found: {title}</title>
<link rel="icon" href="{address}_static/favicon.svg">
<style>
  :root {{ color-scheme: light dark; }}
  body {{ font: 1.1rem/1.6 system-ui, sans-serif; margin: 15vh auto; }}
  main {{ margin: auto; max-width: 34rem; padding: 0 1rem; }}
</style>
</head>
<body>
<main>
<h1>This page does not exist</h1>
<p>The link may be old, or the address may have a typing error.</p>
<p><a href="{address}index.html">Go to the start of the book</a></p>
</main>
</body>
</html>
"""


def write_site_files(
    target: Path, *, title: str, toc: Path, root: Path, repository: str
) -> list[Page]:
    """Write all files into a new folder, and return the pages that they list."""
    pages, address = read_pages(toc, root), site_address(repository)
    texts = {
        "llms.txt": llms(title, pages, address),
        "robots.txt": robots(address),
        # A missing page may lie in any folder, so this page cannot use relative addresses.
        "404.html": NOT_FOUND.format(title=escape(title), address=address or "/"),
    }
    if address:
        texts["sitemap.xml"] = sitemap(pages, address)
    target.mkdir(parents=True)
    for name, text in texts.items():
        (target / name).write_text(text, encoding="utf-8")
    return pages
