"""The pages of the book, and a visitor who looks at them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from playwright.sync_api import ConsoleMessage, Page, Request, Response

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(os.environ.get("MERGELIB_SITE", ROOT / "_build" / "html"))


def contents(entry: dict[str, Any]) -> Iterator[str]:
    """Every page that an entry of the table of contents names, in order."""
    for key in ("root", "file"):
        if key in entry:
            yield entry[key]
    for key in ("parts", "chapters", "sections"):
        for child in entry.get(key, ()):
            yield from contents(child)


PAGES = list(contents(yaml.safe_load((ROOT / "_toc.yml").read_text())))


class Visitor:
    """One tab that remembers what went wrong: console errors, failed requests, calls abroad."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.address = page, address
        self.problems: list[str] = []
        self.loaded: set[Path] = set()  # the files of the site that the tab asked for
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on("response", self._response)
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(f"console: {message.text}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.problems.append(f"{response.status}: {response.url}")
        elif response.url.startswith(self.address):
            self.loaded.add(SITE / unquote(urlsplit(response.url).path).lstrip("/"))

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.problems.append(f"asks another host: {request.url}")

    def weight(self, *, images: bool = True) -> int:
        """Return the uncompressed bytes of all that the tab has loaded."""
        counted = [file for file in self.loaded if images or file.suffix not in (".png", ".svg")]
        return sum(file.stat().st_size for file in counted)

    def open(self, path: str) -> None:
        self.page.goto(f"{self.address}/{path}.html", wait_until="load")
        self.page.evaluate(
            """async () => {
                if (window.MathJax?.startup) await MathJax.startup.promise;
                await document.fonts.ready;
                for (const image of document.images) image.loading = "eager";
                await Promise.all([...document.images].map(i => i.decode().catch(() => {})));
            }"""
        )
