"""Make the pages of the built site light, as an extension of Sphinx.

The theme loads every icon, rule and script that any of its pages may need. After a build it is
known what this book's pages do need: rules of style whose classes occur nowhere are dropped, fonts
of icons keep the icons that are left, and pages load no script without a use on them. The icons
are drawn with the fonts, so the script that draws the same icons goes, too.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fontTools import subset
from fontTools.ttLib import TTFont

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ICON_SCRIPT = "scripts/fontawesome.js"
SEARCH_SCRIPTS = ("_static/searchtools.js", "_static/language_data.js", "searchindex.js")
SCRIPT = re.compile(r'[ \t]*<script[^>]*\bsrc="([^"?]+)[^>]*></script>\n?')
MATHJAX_SETTINGS = re.compile(r"[ \t]*<script>window\.MathJax = .*?</script>\n?")
NAME = re.compile(r"[A-Za-z_][\w-]*")
COMMENT = re.compile(r"/\*(?!!).*?\*/", re.DOTALL)  # licences stand in comments that begin with `!`
RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
BUILT_NAMES = ("bs-",)  # scripts put these together from parts
FONT_SOURCES = re.compile(
    r'url\(([^)]*?)\.woff2\) format\("woff2"\),url\(\1\.ttf\) format\("[^"]+"\)'
)


def without_unused_scripts(page: str, *, searches: bool) -> str:
    """Return a page without the scripts that do nothing on it."""
    formulas = 'class="math' in page
    unused = [ICON_SCRIPT] + ([] if searches else [*SEARCH_SCRIPTS])
    unused += [] if formulas else ["mathjax/startup.js", "_static/formulas.js"]
    page = SCRIPT.sub(lambda tag: "" if tag[1].endswith(tuple(unused)) else tag[0], page)
    return page if formulas else MATHJAX_SETTINGS.sub("", page)


def names_in(texts: Iterable[str]) -> set[str]:
    """Return all words of pages and scripts that may be the name of a class."""
    return {name for text in texts for name in NAME.findall(text)}


def is_used(selector: str, names: set[str]) -> bool:
    """Whether a selector of CSS may match: all its classes, outside parentheses, have a use."""
    while (shorter := re.sub(r"\([^()]*\)", "", selector)) != selector:
        selector = shorter
    classes = re.findall(r"\.(-?[A-Za-z_][\w-]*)", selector)
    return all(name in names or name.startswith(BUILT_NAMES) for name in classes)


def used_rules(css: str, names: set[str]) -> str:
    """Return a style sheet without the rules that match nothing."""

    def kept(rule: re.Match[str]) -> str:
        licence, end, prelude = rule[1].rpartition("*/")
        if prelude.lstrip().startswith("@"):
            return rule[0]
        selectors = re.split(r",(?![^()]*\))", prelude)
        left = ",".join(each for each in selectors if is_used(each, names))
        return f"{licence}{end}" + (f"{left}{{{rule[2]}}}" if left else "")

    return RULE.sub(kept, COMMENT.sub("", css))


def icons_in(css: str) -> set[int]:
    """Return the icons that rules or their variables name, as characters or by their numbers."""
    numbers = {int(code, 16) for code in re.findall(r'"\\([ef][0-9a-f]{3})"', css)}
    return numbers | {ord(icon) for icon in re.findall("[\ue000-\uf8ff]", css)}


def write_icons(font: Path, codes: set[int]) -> None:
    """Write a font with some of its icons beside it, as WOFF, and remove the whole one."""
    loaded = TTFont(font)
    options = subset.Options(notdef_outline=True, glyph_names=False, layout_features=[])
    options.drop_tables += ["FFTM"]
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=codes)
    subsetter.subset(loaded)
    loaded.flavor = "woff"
    loaded.save(font.with_suffix(".woff"))
    for suffix in (".ttf", ".woff2"):
        font.with_suffix(suffix).unlink(missing_ok=True)


def lighten(site: Path) -> None:
    """Make all pages of a built site light, in place."""
    static = site / "_static"
    pages = {file: file.read_text(encoding="utf-8") for file in site.rglob("*.html")}
    for file, page in pages.items():
        pages[file] = without_unused_scripts(page, searches=file == site / "search.html")
        file.write_text(pages[file], encoding="utf-8")
    (static / ICON_SCRIPT).unlink(missing_ok=True)
    for file in static.rglob("*.map"):
        file.unlink()
    own_scripts = [file for file in static.rglob("*.js") if "mathjax" not in file.parts]
    scripts = [file.read_text(encoding="utf-8", errors="replace") for file in own_scripts]
    names = names_in([*pages.values(), *scripts])
    codes: set[int] = set()
    for file in static.rglob("*.css"):
        css = used_rules(file.read_text(encoding="utf-8"), names)
        codes |= icons_in(css)
        file.write_text(FONT_SOURCES.sub(r'url(\1.woff) format("woff")', css), encoding="utf-8")
    for font in [*static.rglob("fa-*.ttf")]:
        write_icons(font, codes)


def finish(app: "Sphinx", exception: Exception | None) -> None:
    """Handle Sphinx's event ``build-finished``."""
    if exception is None and app.builder.format == "html":
        lighten(Path(app.outdir))


def setup(app: "Sphinx") -> dict[str, bool]:
    """Connect the extension, as the last one."""
    app.connect("build-finished", finish, priority=1000)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
