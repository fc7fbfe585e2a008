"""The figures of chapter 52: points, runs by weight, valleys, and speed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import Tensor

from mergebook.lab.statistics import interval, over_seeds
from mergelib.evaluation.tasks import Split

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = {"D₁": "#0072b2", "D₂": "#d55e00"}
STARTS = {
    "shared": ("shared start", "#0072b2", "o"),
    "own": ("own starts", "#d55e00", "s"),
}
METHODS = {
    "theorem": ("Theorem 3", "#0072b2", "o"),
    "uniform": ("uniform", "#e69f00", "s"),
    "nearest source": ("nearest source alone", "#000000", "D"),
}


def points(data: Split, rows: Sequence[Tensor], ax: "Axes") -> None:
    """All points in grey, those of each source in its colour; classes by their marks."""
    for label, mark in enumerate("o^"):
        rest = data.inputs[data.labels == label]
        ax.plot(*rest.T, mark, color="#cccccc", ms=3, zorder=0)
        for own, (name, shade) in zip(rows, PARTS.items(), strict=True):
            chosen = own[data.labels[own] == label]
            ax.plot(*data.inputs[chosen].T, mark, color=shade, ms=3)
            ax.plot([], [], "o", color=shade, label=name if label == 0 else None)
    ax.set(aspect="equal")
    ax.axis("off")


def by_weight(table: pd.DataFrame, column: str, ax: "Axes") -> Any:
    """A quantity against steps, a line for every γ in its colour, scratch in black."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    shades = ScalarMappable(Normalize(table["gamma"].min(), table["gamma"].max()), "viridis")
    for gamma in table["gamma"].dropna().unique():
        rows = table[table["gamma"] == gamma]
        ax.plot(rows["step"], rows[column], color=shades.to_rgba(gamma), lw=1.1)
    scratch = table[table["gamma"].isna()]
    ax.plot(scratch["step"], scratch[column], color="#000000", lw=2.6, label="scratch")
    ax.set(yscale="linear" if column == "accuracy" else "log")
    return shades


def way(table: pd.DataFrame, ax: "Axes") -> None:
    """Loss along the way from random weights over the average to its optimum."""
    ax.plot(table["place"], table["loss"], color="#0072b2")
    stops = table[table["place"].isin([0, 1, 2])]
    ax.plot(stops["place"], stops["loss"], "o", color="#000000", ms=7)
    ax.set_xticks([0, 1, 2], ["random", "θᴾ", "θ*"])


def valley(sweep: pd.DataFrame, column: str, ax: "Axes") -> None:
    """Loss against γ, means over seeds with 95 % intervals, for shared and own starts."""
    for start, (text, shade, mark) in STARTS.items():
        rows = over_seeds(sweep[sweep["start"] == start], "gamma", column).sort_index()
        ax.plot(rows.index, rows["mean"], f"{mark}-", color=shade, ms=3, lw=1.4, label=text)
        ends = (rows["mean"] - rows["half_width"], rows["mean"] + rows["half_width"])
        ax.fill_between(rows.index, *ends, color=shade, alpha=0.2, lw=0)
    ax.set(yscale="log", xlabel="weight γ")


def gains(sets: Mapping[str, pd.DataFrame], ax: "Axes") -> None:
    """log₂ speed-ups with 95 % intervals over seeds: a row for each reading, a mark each method."""
    names = list(dict.fromkeys(next(iter(sets.values()))["reading"]))
    for shift, (method, rows) in zip(np.linspace(-0.2, 0.2, len(sets)), sets.items(), strict=True):
        text, shade, mark = METHODS[method]
        found = [interval(rows.loc[rows["reading"] == name, "speed"].tolist()) for name in names]
        middle, half = np.array(found).T
        heights = np.arange(len(names)) + shift
        ax.errorbar(middle, heights, xerr=half, fmt=mark, color=shade, ms=6, label=text)
    ax.axvline(0, color="#000000", lw=1)
    ax.set_yticks(range(len(names)), names)
    ax.set(ylim=(len(names) - 0.5, -0.5))
