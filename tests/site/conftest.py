"""The built book, served from this machine, and a Chromium that can reach nothing else."""

import os
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from browsing import SITE, Visitor
from playwright.sync_api import Browser, BrowserContext, sync_playwright

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


def unavailable(reason: str) -> None:
    """Skip on a reader's machine, but never let CI pass without having looked."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output free of one line a request."""


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    if not (SITE / "index.html").is_file():
        unavailable("the book is not built: run `make book`")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(SITE)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = filter(None, map(shutil.which, (os.environ.get("CHROMIUM", ""), *CHROMIUM_NAMES)))
    executable = next(found, None)
    if executable is None:
        unavailable("no Chromium: install it, or name it in the variable CHROMIUM")
    here_only = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    unseen = ("--disable-gpu", "--disable-software-rasterizer")  # nothing is drawn to be looked at
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", here_only, *unseen]
        )
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def laptop(browser: Browser) -> BrowserContext:
    """What all pages share: the files that several of them load are read once."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.add_init_script("localStorage.setItem('mode', 'auto')")
    return context


@pytest.fixture
def visit(laptop: BrowserContext, address: str) -> Iterator[Visitor]:
    page = laptop.new_page()
    yield Visitor(page, address)
    page.close()
