"""What the pages of the site have around their text."""

import base64
from pathlib import Path

import frame

BOOK = frame.Work("A & B", "The book", "1.2", "2030-01-02", "abc of 2030-01-03")
SITE = "https://one.github.io/book/"
PIXELS = base64.b64encode(b"not really a picture").decode()


def test_the_citation_has_all_that_is_known() -> None:
    text = frame.how_to_cite(BOOK, "notebooks/02-b", "Why?", f"{SITE}notebooks/02-b.html")
    assert "A &amp; B. Why? In <em>The book</em>, version 1.2, 2030-01-02." in text
    assert f'<a href="{SITE}notebooks/02-b.html">' in text
    assert "Commit abc of 2030-01-03.</p>" in text
    assert "@misc{mergelib-02-b,\n  author = {{A &amp; B}},\n  title = {{Why?}}," in text
    short = frame.how_to_cite(BOOK._replace(commit=""), "book/a", "Title", "")
    assert "href" not in short
    assert "ommit" not in short
    assert "url" not in short


def test_the_book_is_cited_as_its_file_says() -> None:
    book = frame.work()
    assert book.title == "mergelib: model merging, run and understood"
    assert book.date[:2] == "20"


def test_a_preview_needs_an_address_for_its_picture() -> None:
    tags = frame.preview("Book", 'A "title"', "A sentence.", "", ("", ""))
    assert 'property="og:title" content="A &quot;title&quot;"' in tags
    assert "og:url" not in tags
    assert "og:image" not in tags
    assert 'content="summary"' in tags
    full = frame.preview("Book", "T", "S.", f"{SITE}a.html", (f"{SITE}a.png", "words"))
    assert f'property="og:image" content="{SITE}a.png"' in full
    assert 'property="og:image:alt" content="words"' in full


def test_the_picture_is_the_first_of_the_page_or_the_cover() -> None:
    body = '<img alt="a drawing" src="../_images/a.svg"><img alt="x &lt; y" src="../_images/b.png">'
    assert frame.first_image(body, "book/page", SITE) == (f"{SITE}_images/b.png", "x < y")
    assert frame.first_image("none", "book/page", SITE)[0] == f"{SITE}{frame.COVER}"


def test_embedded_pictures_become_files(tmp_path: Path) -> None:
    body = f"<source srcset='data:image/png;base64,{PIXELS}'>"
    page = frame.as_files(body, "book/page", tmp_path / "_images")
    (file,) = (tmp_path / "_images").iterdir()
    assert file.read_bytes() == b"not really a picture"
    assert page == f'<source srcset="../_images/{file.name}">'


def test_a_title_has_no_number_and_no_markup() -> None:
    assert frame.plain_title("3. A &amp; <code>b</code>") == "A & b"
