"""Draw the cover of the book: what merging does, at a glance.

Above, the space of weights: one pretrained model, the task vectors that lead to three experts, and
the merged model between them. Below, what each of them answers on one picture of each task. It is
a scheme, not a measurement, and needs nothing but Python: `python tools/cover.py` writes
`book/_static/cover.svg`, the same bytes everywhere. Sizes are chosen for a phone, where 600 units
become about 350 pixels. `--card` also writes `cover.png`, which previews of links show for pages
without a figure. It needs Playwright and a Chromium, whose path is in the variable CHROMIUM.
"""

import math
import os
import shutil
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "book" / "_static" / "cover.svg"

WIDTH, HEIGHT = 600, 638
CARD_SIZE = (1200, 630)
INK, RULE, PANEL = "#22303c", "#d9e2ea", "#f4f8fb"
GREY, BLUE = "#6f7a85", "#1b76b8"
EXPERTS = {"digits": "#c65400", "clothes": "#0b7a7a", "signs": "#b0468a"}
FONT = "Avenir Next, Segoe UI, Helvetica Neue, Helvetica, Arial, sans-serif"

Point = tuple[float, float]
PRETRAINED: Point = (78, 282)
PLACES: dict[str, Point] = {"digits": (86, 52), "clothes": (424, 180), "signs": (404, 292)}
MERGED: Point = (
    sum(x for x, _ in PLACES.values()) / len(PLACES),
    sum(y for _, y in PLACES.values()) / len(PLACES),
)


def text(at: Point, words: str, *, size: float = 20, fill: str = INK, **more: str) -> str:
    extra = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    place = f'x="{at[0]:g}" y="{at[1]:g}" font-size="{size:g}"'
    return f'<text {place} fill="{fill}"{extra}>{words}</text>'


def italic(letter: str) -> str:
    family = "Georgia, Times New Roman, serif"
    return f'<tspan font-style="italic" font-family="{family}">{letter}</tspan>'


def symbol(letter: str, index: str) -> str:
    """An italic letter with an index, as the formulas of the book have it."""
    return f'{italic(letter)}<tspan dy="5" font-size="75%">{index}</tspan>'


def arrow(start: Point, end: Point, fill: str, *, gap: tuple[float, float] = (15, 16)) -> str:
    """A straight arrow that leaves room for the dots at both of its ends."""
    length = math.dist(start, end)
    ux, uy = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    x0, y0 = start[0] + gap[0] * ux, start[1] + gap[0] * uy
    tip = end[0] - gap[1] * ux, end[1] - gap[1] * uy
    base = tip[0] - 15 * ux, tip[1] - 15 * uy
    head = [tip, (base[0] - 7.5 * uy, base[1] + 7.5 * ux), (base[0] + 7.5 * uy, base[1] - 7.5 * ux)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in head)
    return (
        f'<path d="M{x0:.1f} {y0:.1f}L{base[0]:.1f} {base[1]:.1f}" stroke="{fill}" '
        f'stroke-width="4.5"/><path d="M{points}Z" fill="{fill}"/>'
    )


def dot(at: Point, radius: float, fill: str) -> str:
    return (
        f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:g}" fill="{fill}" stroke="#fff" '
        'stroke-width="3"/>'
    )


def picture(task: str, at: Point, side: float) -> str:
    """A little test picture of a task: a seven, a shirt, a road sign; `at` is its corner."""
    drawn = {
        "digits": '<rect width="40" height="40" rx="5" fill="#10161c"/><path d="M11 11H29L18 31" '
        'fill="none" stroke="#fff" stroke-width="5" stroke-linecap="round" '
        'stroke-linejoin="round"/>',
        "clothes": '<rect width="40" height="40" rx="5" fill="#e3efef"/><path d="M14 8C16 12 24 12 '
        '26 8L36 13L32 21L28 19V33H12V19L8 21L4 13Z" fill="#3a9c9c"/>',
        "signs": '<rect width="40" height="40" rx="5" fill="#cfe3f2"/><path d="M20 6L36 33H4Z" '
        'fill="#fff" stroke="#d03030" stroke-width="4" stroke-linejoin="round"/><path d="M20 '
        '15V23" stroke="#222" stroke-width="3.6" stroke-linecap="round"/><circle cx="20" cy="28.5" '
        'r="2" fill="#222"/>',
    }[task]
    return f'<g transform="translate({at[0]:g} {at[1]:g}) scale({side / 40:g})">{drawn}</g>'


def tick(at: Point, fill: str) -> str:
    x, y = at
    return (
        f'<circle cx="{x}" cy="{y}" r="14" fill="{fill}"/><path d="M{x - 6.5} {y + 0.5}L{x - 1.5} '
        f'{y + 5.5}L{x + 7} {y - 5}" fill="none" stroke="#fff" stroke-width="3.4" '
        'stroke-linecap="round" stroke-linejoin="round"/>'
    )


def cross(at: Point) -> str:
    x, y = at
    return (
        f'<path d="M{x - 6} {y - 6}L{x + 6} {y + 6}M{x + 6} {y - 6}L{x - 6} {y + 6}" '
        'stroke="#b3bdc6" stroke-width="3.2" stroke-linecap="round"/>'
    )


def weights() -> list[str]:
    """The upper half: the space of weights."""
    corners = " ".join(f"{x:g},{y:g}" for x, y in PLACES.values())
    pictures: dict[str, Point] = {"digits": (110, 30), "clothes": (448, 158), "signs": (428, 270)}
    names: dict[str, Point] = {"digits": (164, 60), "clothes": (502, 187), "signs": (482, 299)}
    letters: dict[str, Point] = {"digits": (62, 172), "clothes": (296, 244), "signs": (262, 314)}
    parts = [
        f'<rect x="12" y="12" width="576" height="330" rx="12" fill="{PANEL}"/>',
        f'<polygon points="{corners}" fill="{BLUE}" fill-opacity="0.10" stroke="{BLUE}" '
        'stroke-opacity="0.4" stroke-width="1.5" stroke-dasharray="2 5"/>',
    ]
    for index, (task, place) in enumerate(PLACES.items(), 1):
        fill = EXPERTS[task]
        parts += [
            arrow(PRETRAINED, place, fill),
            dot(place, 12, fill),
            picture(task, pictures[task], 44),
            text(names[task], task, fill=fill, font_weight="600"),
            text(letters[task], symbol("τ", str(index)), size=23, fill=fill, text_anchor="middle"),
        ]
    x, y = MERGED
    plus = '<tspan dy="-5"> + </tspan>'  # back up from the index before it
    taus = plus.join(symbol("τ", str(index)) for index in range(1, len(PLACES) + 1))
    formula = f'{symbol("θ", "0")}{plus}{italic("λ")} ({taus}<tspan dy="-5">)</tspan>'
    return [
        *parts,
        f'<path d="M{PRETRAINED[0]} {PRETRAINED[1]}L{x:.1f} {y:.1f}" stroke="{BLUE}" '
        'stroke-width="3" stroke-dasharray="3 7" stroke-linecap="round"/>',
        text((570, 58), formula, size=25, fill=BLUE, text_anchor="end"),
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="30" fill="{BLUE}" fill-opacity="0.18"/>',
        dot(MERGED, 18, BLUE),
        text(
            (x - 4, y - 36), "merged", size=23, fill=BLUE, font_weight="700", text_anchor="middle"
        ),
        dot(PRETRAINED, 12, GREY),
        text((30, 326), "pretrained", fill=GREY, font_weight="600"),
    ]


def answers() -> list[str]:
    """The lower half: who answers what."""
    columns = dict(zip(EXPERTS, (330, 430, 530), strict=True))
    models = {"pretrained": GREY, **EXPERTS, "merged": BLUE}
    parts = [picture(task, (x - 22, 360), 44) for task, x in columns.items()]
    for row, (model, fill) in enumerate(models.items()):
        y = 434 + 42 * row
        merged, name = (
            model == "merged",
            f"{model} expert" if model in EXPERTS else f"{model} model",
        )
        if merged:
            parts.append(
                f'<rect x="12" y="{y - 22}" width="576" height="46" rx="10" fill="{BLUE}" '
                'fill-opacity="0.13"/>'
            )
        elif row:
            parts.append(f'<path d="M28 {y - 21}H572" stroke="{RULE}" stroke-width="1.2"/>')
        parts += [
            dot((42, y), 13 if merged else 9, fill),
            text((66, y + 7), name, size=21, fill=fill, font_weight="700" if merged else "600"),
        ]
        for task, x in columns.items():
            parts.append(tick((x, y), fill) if model == task or merged else cross((x, y)))
    return parts


def cover() -> str:
    """The whole drawing, as SVG."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" font-family="{FONT}">',
            "<title>Merging at a glance</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="14" fill="#fff"/>',
            *weights(),
            *answers(),
            "</svg>\n",
        ]
    )


def card() -> str:
    """The drawing beside the library's name, in the format of a link's preview, as SVG."""
    width, height = CARD_SIZE
    words = [
        text((56, 270), "mergelib", size=84, fill=BLUE, font_weight="700"),
        text((58, 336), "Merge fine-tuned models into one,", size=30),
        text((58, 378), "and see what each of them keeps", size=30),
    ]
    drawing = "\n".join([*weights(), *answers()])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="{FONT}"><rect width="{width}" height="{height}" fill="#fff"/>'
        f'{"".join(words)}<svg x="590" y="10" width="574" height="610" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}">{drawing}</svg></svg>'
    )


def photograph(drawing: str, target: Path) -> None:
    """Write a drawing of the size of a card as PNG, as Chromium shows it."""
    from playwright.sync_api import sync_playwright

    width, height = CARD_SIZE
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"),
            args=["--no-sandbox"],
        )
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_content(f'<body style="margin: 0">{drawing}</body>')
        page.screenshot(path=target)
        browser.close()


if __name__ == "__main__":
    TARGET.write_text(cover(), encoding="utf-8")
    if "--card" in sys.argv:
        photograph(card(), TARGET.with_suffix(".png"))
