"""What every page of the site has around its text, as an extension of Sphinx.

Its head names a title, a sentence and a picture for search engines and for programs that show a
preview of a link (Open Graph). Pictures and addresses in there have to be full, so they are left
out where the site's address is not known. Its end says how to cite the page, from `CITATION.cff`
and the commit. Pictures that are embedded in a page become files. The search looks past a few more
words than Sphinx's own.
"""

import base64
import hashlib
import posixpath
import re
import subprocess
from functools import cache
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from site_files import read_page, sentence_of
from sphinx.search.en import SearchEnglish

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
COVER = "_static/cover.png"  # where a page has no figure of its own that previews can show
EMBEDDED = re.compile(r"""(src|srcset)=(["'])data:image/png;base64,([^"']+)\2""")
IMAGE = re.compile(r"<img\b[^>]*>")
REDIRECT = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<meta http-equiv="refresh" content="0; url={start}">
{tags}
</head>
<body><p><a href="{start}">{title}</a></p></body>
</html>
"""


class English(SearchEnglish):
    """English without words whose stems Sphinx ignores: it asks for these and never finds them."""

    stopwords = SearchEnglish.stopwords | {"one", "ones", "its", "being"}


class Work(NamedTuple):
    """The book as one cites it."""

    authors: str
    title: str
    version: str
    date: str
    commit: str  # its short name and its day, or ""


@cache
def work(root: Path = ROOT) -> Work:
    """Return the book as `CITATION.cff` describes it, and the commit that is checked out."""
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    command = ["git", "-C", str(root), "log", "-1", "--format=%h of %cs"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        commit = ""
    else:
        commit = done.stdout.strip()
    return Work(
        " and ".join(author["name"] for author in citation["authors"]),
        citation["title"],
        str(citation["version"]),
        str(citation["date-released"]),
        commit,
    )


def how_to_cite(book: Work, page: str, title: str, address: str) -> str:
    """Return a folded box, in HTML, with the citation of a page as text and for BibTeX."""
    commit = f" Commit {book.commit}." if book.commit else ""
    link = f'<a href="{address}">{address}</a>. ' if address else ""
    stop = "" if title.endswith(("?", "!", ".")) else "."
    text = (
        f"{escape(book.authors)}. {escape(title)}{stop} In <em>{escape(book.title)}</em>, "
        f"version {book.version}, {book.date}. {link}{commit.strip()}"
    )
    fields = {
        "author": f"{{{book.authors}}}",
        "title": f"{{{title}}}",
        "howpublished": f"In: {book.title}, version {book.version}",
        "year": book.date[:4],
        "url": address,
        "note": commit.strip().removesuffix("."),
    }
    lines = [f"  {key} = {{{value}}}," for key, value in fields.items() if value]
    entry = "\n".join([f"@misc{{mergelib-{posixpath.basename(page)},", *lines, "}"])
    return (
        '<details class="cite-page"><summary>Cite this page</summary>\n'
        f"<p>{text.strip()}</p>\n<pre>{escape(entry)}</pre>\n</details>\n"
    )


def preview(site: str, title: str, sentence: str, url: str, image: tuple[str, str]) -> str:
    """Return the tags of a page's head for previews; an image is its address and description."""
    tags = {
        "og:type": "article",
        "og:site_name": site,
        "og:title": title,
        "og:description": sentence,
        "og:url": url,
        "og:image": image[0],
        "og:image:alt": image[1] if image[0] else "",
    }
    lines = [
        f'<meta property="{name}" content="{escape(value)}" />'
        for name, value in tags.items()
        if value
    ]
    card = "summary_large_image" if image[0] else "summary"
    return "\n".join([*lines, f'<meta name="twitter:card" content="{card}" />'])


def first_image(body: str, page: str, site: str) -> tuple[str, str]:
    """Return the full address and the description of a page's first picture, or of the cover."""
    for tag in IMAGE.findall(body):
        found = {key: unescape(value) for key, _, value in re.findall(r"(\w+)=([\"'])(.*?)\2", tag)}
        source = found.get("src", "")
        if source.endswith((".png", ".jpg")) and "://" not in source:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), source))
            return f"{site}{path}", found.get("alt", "")
    return f"{site}{COVER}", "Three fine-tuned experts and the merged model between them"


def as_files(body: str, page: str, folder: Path) -> str:
    """Return a page with its embedded pictures written into a folder of the site."""

    def written(source: re.Match[str]) -> str:
        content = base64.b64decode(source[3])
        name = f"{hashlib.sha256(content).hexdigest()[:40]}.png"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        return f'{source[1]}="{"../" * page.count("/")}{folder.name}/{name}"'

    return EMBEDDED.sub(written, body)


def plain_title(title: str) -> str:
    """Return the title of a page without its markup in HTML and without its number."""
    return re.sub(r"^\d+\. ", "", unescape(re.sub(r"<[^>]+>", "", title)))


def finish_page(
    app: "Sphinx", pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Handle Sphinx's event ``html-page-context``: complete the head and the end of a page."""
    if doctree is None:  # the search page and other pages without a source
        return
    site, book = app.config.html_baseurl, work()
    body = as_files(context["body"], pagename, Path(app.outdir) / app.builder.imagedir)
    title = plain_title(context["title"])
    sentence = sentence_of(read_page(Path(app.env.doc2path(pagename)))).replace("`", "")
    address = f"{site}{pagename}.html" if site else ""
    image = first_image(body, pagename, site) if site else ("", "")
    tags = preview(app.config.html_title, title, sentence, address, image)
    if 'name="description"' not in context["metatags"]:
        tags += f'\n<meta name="description" content="{escape(sentence)}" />'
    context["metatags"] += tags
    context["body"] = body + how_to_cite(book, pagename, title, address)
    if pagename == app.config.root_doc:
        app.env.frame_redirect = REDIRECT.format(  # type: ignore[attr-defined]
            title=escape(title), start=f"{pagename}.html", tags=tags
        )


def write_index(app: "Sphinx", exception: Exception | None) -> None:
    """Handle Sphinx's event ``build-finished``: links to the site's root have a preview, too."""
    page = getattr(app.env, "frame_redirect", "")  # empty if the start was not written again
    if page and exception is None and app.builder.format == "html":
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: "Sphinx") -> dict[str, bool]:
    """Connect the extension, after all others that change a page."""
    app.add_search_language(English)
    app.connect("html-page-context", finish_page, priority=900)
    app.connect("build-finished", write_index, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
