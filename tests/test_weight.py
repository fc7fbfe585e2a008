"""Pages without what they do not use."""

from pathlib import Path

import pytest
import weight
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTFont

SCRIPTS = """<head>
    <script defer src="../_static/scripts/fontawesome.js?digest=1"></script>
    <script src="../_static/doctools.js?v=1"></script>
    <script>window.MathJax = {"options": {}}</script>
    <script defer="defer" src="../_static/mathjax/startup.js?v=2"></script>
    <script src="../searchindex.js"></script>
</head>
"""


@pytest.mark.parametrize(
    ("body", "searches", "kept"),
    [
        ("no formula", False, ("doctools",)),
        ('<span class="math">x</span>', False, ("doctools", "window.MathJax", "startup")),
        ("no formula", True, ("doctools", "searchindex")),
    ],
)
def test_a_page_loads_the_scripts_that_it_uses(
    body: str, searches: bool, kept: tuple[str, ...]
) -> None:
    page = weight.without_unused_scripts(SCRIPTS + body, searches=searches)
    names = ("fontawesome", "doctools", "window.MathJax", "startup", "searchindex")
    assert tuple(name for name in names if name in page) == kept


@pytest.mark.parametrize(
    ("rules", "used"),
    [
        (".a{x:1}.c{x:2}", ".a{x:1}"),
        (".a,.c,p .b{x:1}", ".a,p .b{x:1}"),
        ("p:not(.c,.d)>.a{x:1}", "p:not(.c,.d)>.a{x:1}"),
        ("@media (width<9px){.c{x:1}.a .b{x:2}}", "@media (width<9px){.a .b{x:2}}"),
        ("@font-face{src:url(c.woff)}html{x:.5em}", "@font-face{src:url(c.woff)}html{x:.5em}"),
        ("/*! by A, B.c */.a{x:1}/* B */.c{x:1}", "/*! by A, B.c */.a{x:1}"),
        ("/*! by A, B.c */.c{x:1}.a{x:2}", "/*! by A, B.c */.a{x:2}"),
        (".bs-tooltip-end .a{x:1}", ".bs-tooltip-end .a{x:1}"),
    ],
)
def test_a_style_sheet_keeps_the_rules_that_match(rules: str, used: str) -> None:
    names = weight.names_in(['<p class="a">', "list.add('b')"])
    assert weight.used_rules(rules, names) == used


def a_font(file: Path) -> None:
    """Write a font of four icons."""
    pen = TTGlyphPen(None)
    for move, point in ((pen.moveTo, (0, 0)), (pen.lineTo, (9, 0)), (pen.lineTo, (0, 9))):
        move(point)
    pen.closePath()
    names = [".notdef", "one", "two", "three", "four"]
    builder = FontBuilder(100, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({0xF001: "one", 0xF002: "two", 0xE003: "three", 0xF004: "four"})
    builder.setupGlyf(dict.fromkeys(names, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (10, 0)))
    builder.setupHorizontalHeader()
    builder.setupOS2()
    builder.setupPost()
    builder.save(file)


def test_a_site_keeps_its_icons(tmp_path: Path) -> None:
    static = tmp_path / "_static"
    (static / "scripts").mkdir(parents=True)
    a_font(static / "fa-some-1.ttf")
    (static / "fa-some-1.woff2").touch()
    (static / "scripts" / "fontawesome.js").write_text("fa-two")
    (static / "scripts" / "own.js").write_text("'fa-three'")
    (static / "theme.css").write_text(
        '@font-face{src:url(fa-some-1.woff2) format("woff2"),url(fa-some-1.ttf) format("truetype")}'
        '.fa-one:before{content:"\\f001"}.fa-two:before{content:"\\f002"}'
        '.fa-three:before{content:"\\e003"}'
        ':root{--icon-four:"\uf004"}p:before{content:var(--icon-four)}',
        encoding="utf-8",
    )
    (static / "theme.css.map").touch()
    (tmp_path / "page.html").write_text(f'{SCRIPTS}<i class="fa-one"></i>')
    weight.lighten(tmp_path)
    found = {file.name for file in static.rglob("*.*") if file.is_file()}
    assert found == {"fa-some-1.woff", "own.js", "theme.css"}
    assert set(TTFont(static / "fa-some-1.woff").getBestCmap()) == {0xF001, 0xE003, 0xF004}
    css = (static / "theme.css").read_text()
    assert 'src:url(fa-some-1.woff) format("woff")' in css
    assert "fa-two" not in css
