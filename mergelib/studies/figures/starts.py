"""The figures of chapter 52 on pictures: starts of a larger network, by step and by distance."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from mergelib.plots import label
from mergelib.records.statistics import over_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARMS = {
    "scratch": ("scratch", "#000000", ":"),
    "nearest source": ("nearest source alone", "#e69f00", "--"),
    "SAIL": ("SAIL", "#0072b2", "-"),
}


def curves(table: pd.DataFrame, ax: "Axes") -> None:
    """Loss against steps from each start, with 95 % intervals over seeds.

    Args:
        table: of one target, as from `mergelib.studies.analysis.sail.arms.curves`.
        ax: where to draw.
    """
    for arm, (text, shade, style) in ARMS.items():
        rows = over_seeds(table[table["arm"] == arm], "step", "judge").sort_index()
        ax.plot(rows.index, rows["mean"], style, color=shade, lw=1.6, label=text)
        ends = (rows["mean"] - rows["half_width"], rows["mean"] + rows["half_width"])
        ax.fill_between(rows.index, *ends, color=shade, alpha=0.15, lw=0)
    ax.set(xlabel="steps")


def by_distance(
    speeds: Mapping[str, pd.DataFrame], distances: "pd.Series[float]", ax: "Axes"
) -> None:
    """log₂ speed-ups against distance, a point for each target, with 95 % intervals over seeds.

    Args:
        speeds: names of `ARMS` to rows of ``target`` and ``speed``, one per seed and target.
        distances: MMD² by target, above 0; the axis is logarithmic.
        ax: where to draw.
    """
    for (arm, rows), (mark, shift) in zip(speeds.items(), (("o", 1.0), ("D", 1.06)), strict=True):
        text, shade, _ = ARMS[arm]
        found = over_seeds(rows, "target", "speed")
        places = distances[found.index] * shift
        bars: dict[str, Any] = {"color": shade, "fmt": mark, "ms": 5, "capsize": 2, "label": text}
        ax.errorbar(places, found["mean"], found["half_width"], **bars)
        if arm == "SAIL":
            tops = (found["mean"] + found["half_width"]).to_dict()
            for target, place in places.items():
                words: dict[str, Any] = {"ha": "center", "fontsize": 9, "color": "#444444"}
                offset: dict[str, Any] = {"xytext": (0, 4), "textcoords": "offset points"}
                ax.annotate(label(str(target)), (place, tops[target]), **offset, **words)
    ax.axhline(0, color="#000000", lw=1)
    ax.set(xscale="log", xlabel="MMD² from the nearer source", ylabel="log₂ speed-up")
