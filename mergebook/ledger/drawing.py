"""The ledger of `judge` drawn and written: forest plots, and entries that fit a phone."""

import textwrap
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mergebook.lab.statistics import Pooled
from mergebook.ledger.checks import SPREAD
from mergebook.ledger.verdicts import VERDICTS
from mergebook.plots import BLUE, GREY, LIGHT, VERMILION

# What fails also has a shape of its own, and so have facts.
COLOURS = {"holds": BLUE, "open": GREY, "fails": VERMILION, "proved": BLUE, "refuted": VERMILION}
SHAPES = {"holds": "o", "open": "o", "fails": "X", "proved": "s", "refuted": "X"}
MARKS = dict(zip(VERDICTS, "●■◐○✕✖–", strict=True))
UNITS = {
    "seeds": "other seeds, on these tasks and networks",
    "tasks": "other seeds and, in checks on several tasks, other tasks like these",
    "layers": "other seeds and other layers like these",
    "networks": "other networks like these",
    "facts": "nothing else: it rests on facts",
}
ROLES = {"primary": "Primary checks", "secondary": "Secondary checks", "control": "Controls"}
WIDTH = 46  # letters of a line beside the intervals
LEFT, RIGHT = -3.62, 2.25  # what the figure spans, where an interval's longest reach is 1


def forest(table: pd.DataFrame, checks: pd.DataFrame) -> Figure:
    """Draw the `weakest` check of each claim as a distance from its bound, longest reaching 1."""
    drawn: list[tuple[Any, Any]] = []
    for row in table.itertuples():
        if check := weakest(checks[checks["claim"] == row.claim]):
            drawn.append((row, check))
    texts = [textwrap.wrap(str(check.what), WIDTH) for _, check in drawn]
    heights = [1.5 + 0.75 * len(text) for text in texts]
    figure, ax = plt.subplots(figsize=(7.2, 0.225 * sum(heights) + 0.7))
    place = 0.0
    for (row, check), text, height in zip(drawn, texts, heights, strict=True):
        title = f"{row.claim}  {row.verdict}"
        ax.text(LEFT, place, title, fontsize=10.5, weight="bold", va="center")
        middle = place + 0.6 + 0.375 * len(text)
        ends = [abs(end - check.bound) for end in (check.low, check.value, check.high)]
        _draw(ax, check, middle, max([1e-12, *(end for end in ends if np.isfinite(end))]))
        ax.text(LEFT + 0.08, middle, "\n".join(text), fontsize=8.6, va="center", linespacing=1)
        ax.text(RIGHT, middle, number(check), fontsize=8.6, va="center", ha="right")
        ax.plot([0, 0], [middle - 0.7, middle + 0.7], color="black", lw=1, zorder=0)
        place += height
    mine = pd.DataFrame([check for _, check in drawn])
    ax.set(ylim=(place - 0.4, -0.8), xlim=(LEFT, RIGHT), xticks=[], yticks=[])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.grid(visible=False)
    for outcome, shade in COLOURS.items():
        if outcome in {*mine["outcome"]} | {"holds", "open", "fails"}:
            ax.plot([], [], SHAPES[outcome], ls="-", color=shade, ms=6, label=outcome)
    if mine["paper"].map(_given).any():
        ax.plot([], [], "D", ls="", mfc="white", mec="black", ms=5.5, label="the paper's figure")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=9.5)
    return figure


def _draw(ax: Axes, check: Any, place: float, reach: float) -> None:
    low, value, high = (
        np.clip((getattr(check, name) - check.bound) / reach, -1, 1)
        for name in ("low", "value", "high")
    )
    if _given(check.tolerance):
        width = min(1.0, check.tolerance / reach)
        ax.fill_between([-width, width], place - 0.4, place + 0.4, color=LIGHT, lw=0)
    shade = COLOURS[check.outcome]
    ax.plot([low, high], [place, place], color=shade, lw=2)
    ax.plot(value, place, SHAPES[check.outcome], color=shade, ms=6)
    if _given(check.paper):
        spot = (check.paper - check.bound) / reach
        shape = "D" if abs(spot) <= 1.1 else ">" if spot > 0 else "<"
        ax.plot(np.clip(spot, -1.1, 1.1), place, shape, mfc="white", mec="black", ms=5.5)


def _given(value: Any) -> bool:
    return value is not None and bool(np.isfinite(value))


def number(check: Any) -> str:
    """A check's value with its unit, and digits that suit its size."""
    if check.unit == SPREAD:
        return f"spread × {_digits(np.exp(check.value))}"
    if check.unit == "rank correlation":
        return f"ρ = {_digits(check.value)}"
    return f"{_digits(check.value)} {check.unit}"


def _digits(value: float) -> str:
    size = abs(value)
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    form = "z.0f" if size >= 99.95 else "z.1f" if size >= 0.995 else "z.2f"
    if 1e-6 < size < 0.0005:  # less is rounding
        form = ".0e"
    return f"{value:{form}}".replace("-", "−")


def summary(table: pd.DataFrame, checks: pd.DataFrame, page: str) -> str:
    """Rows of a Markdown table: claim with a link, verdict, first primary interval, networks."""
    rows = []
    for row in table.to_dict("records"):
        key, own = row["claim"], checks[checks["claim"] == row["claim"]]
        primary = own[own["role"] == "primary"]
        shown = ""
        if len(primary):
            check: Any = next(primary.itertuples())
            paper = f"; the paper: {_digits(check.paper)}" if _given(check.paper) else ""
            shown = f"{check.what}: {_interval(check)}{paper}"
        holding = primary["outcome"].isin(["holds", "proved"]).sum()
        link = f'<a href="{page}.html#{key}">{key}</a>'
        verdict = f"{MARKS[row['verdict']]} {row['verdict']}, {holding} of {len(primary)}"
        rows.append(f"| {link} {row['statement']} | {verdict} | {shown} | {row['networks']} |")
    return "\n".join(rows)


def counted(table: pd.DataFrame) -> str:
    """How many claims have which verdict, in words."""
    counts = table["verdict"].value_counts().reindex(VERDICTS).dropna().astype(int)
    many = {"holds": "hold", "does not hold here": "do not hold here"}
    return ", ".join(
        f"{count} {verdict if count == 1 else many.get(str(verdict), verdict)}"
        for verdict, count in counts.items()
    )


def entries(table: pd.DataFrame, checks: pd.DataFrame) -> str:
    """Claims in Markdown: verdict, statement, the paper's figure and ours; the rest folded away."""
    parts = []
    for row in table.to_dict("records"):
        own, listed = checks[checks["claim"] == row["claim"]], []
        for role, heading in ROLES.items():
            if lines := [_line(check) for check in own[own["role"] == role].itertuples()]:
                listed += [f"{heading}:\n", *lines, ""]
        parts += [
            f'<span id="{row["claim"]}"></span>**{row["claim"]} {MARKS[row["verdict"]]} '
            f"{row['verdict']}:** {row['statement']}.\n",
            f"* *The paper* ({row['place']}): {row['reported']}.",
            f"* *Here:* {row['ours']}{_weakest(own)}.",
            *_pooled(row["pooled"], own),
            f"\n<details><summary>How it was tested; all {len(own)} checks</summary>\n",
            f"* *Networks:* {row['networks']}.",
            f"* *Tested by:* {row['method']}.",
            f"* *Data:* {row['data']}.",
            f"* *Intervals are about* {UNITS[row['unit']]}.",
            f"* *Shown in* [](../{row['page']}).\n",
            *listed,
            "</details>\n",
        ]
    return "\n".join(parts)


def weakest(checks: pd.DataFrame) -> Any:
    """The primary check, of those of a claim, that speaks most against it; or None."""
    order = ("refuted", "fails", "open", "proved", "holds")

    def standing(check: Any) -> tuple[int, float]:
        beyond = check.value - check.bound
        if _given(check.tolerance):
            beyond = check.tolerance - abs(beyond)
        scale = 1 if check.kind == "fact" else check.detectable
        return order.index(str(check.outcome)), beyond / scale

    primary = checks[checks["role"] == "primary"].itertuples()
    return min(primary, key=standing, default=None)


def _weakest(checks: pd.DataFrame) -> str:
    """The weakest check in words, and its power."""
    check = weakest(checks)
    if check is None:
        return ""
    shown = f". Weakest check: {check.what}: {_interval(check)}"
    power = f". It could only have shown {_distance(check)} or more"
    return shown + power if check.outcome == "open" else shown


def _pooled(effect: Pooled | None, checks: pd.DataFrame) -> list[str]:
    """The effect over networks, with what is to be expected of another network."""
    if effect is None:
        return []
    unit = checks.loc[checks["role"] == "primary", "unit"].iloc[0]
    low, high = map(_digits, effect.estimate.interval())
    return [
        f"* *Over networks:* {_digits(effect.estimate.value)} {unit} [{low}, {high}]; between them "
        f"the effect has a standard deviation of {_digits(effect.between)} (Q = "
        f"{_digits(effect.heterogeneity)}, p = {_digits(effect.p)}); for one more network like "
        f"these expect [{_digits(effect.low)}, {_digits(effect.high)}]."
    ]


def _interval(check: Any) -> str:
    if check.kind == "fact":
        return number(check)
    scale: Any = np.exp if check.unit == SPREAD else float
    low, high = (_digits(float(scale(end))) for end in (check.low, check.high))
    return f"{number(check)} [{low}, {high}]"


def _line(check: Any) -> str:
    aim = f", against a bound of {_digits(check.bound)}" if check.bound else ""
    if _given(check.tolerance):
        aim = f", against a tolerance of {_digits(check.tolerance)}"
    power = "" if check.kind == "fact" else f" (could show {_distance(check)})"
    return f"* {check.what}: {_interval(check)}{aim}; **{check.outcome}**{power}"


def _distance(check: Any) -> str:
    """The smallest difference from its bound that a check could show, with its unit."""
    if check.unit == SPREAD:
        return f"a factor of {_digits(np.exp(check.detectable))}"
    return f"{_digits(check.detectable)} {check.unit}".strip()
