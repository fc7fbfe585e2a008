"""The figures of chapter 57: steps saved against the loss aimed at, and cells of the factorial."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mergebook.lab.statistics import over_seeds
from mergebook.sail.measure.arms import MAPS, Cell
from mergebook.sail.read.factorial import ALIKE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = {
    Cell(1, "shared", "mean"): ("one source", "#e69f00", "-"),
    Cell(2, "shared", "mean"): ("two, shared start", "#0072b2", "--"),
    Cell(2, "own", "mean"): ("two, own starts", "#d55e00", "-."),
    Cell(1, "shared", "LiGO alone"): ("one, LiGO", "#cc79a7", "--"),
    Cell(1, "shared", "svd_random"): ("one, random factors", "#009e73", ":"),
    Cell(0, "", ALIKE): ("random weights, grown scale", "#56b4e9", "-"),
}
PLACES = {  # of sources and start, beside each other
    (1, "shared"): ("one source", "#e69f00", "D", -0.24),
    (2, "shared"): ("two, shared start", "#0072b2", "o", -0.08),
    (2, "own"): ("two, own starts", "#d55e00", "s", 0.08),
    (2, "re-basin"): ("two, re-basin", "#009e73", "^", 0.24),
}
CURVES = {"two curvatures": ("#0072b2", "-"), "many curvatures": ("#d55e00", "--")}


def quadratics(table: pd.DataFrame, value: str, ax: "Axes") -> None:
    """A column against the excess that is aimed at, harder to the right."""
    for name, part in table.groupby("loss", sort=False):
        shade, style = CURVES[str(name)]
        ax.plot(part["goal"], part[value], style, color=shade, lw=1.8, label=name)
    ax.set(xscale="log", xlabel="excess loss aimed at", ylim=(0, None))
    ax.invert_xaxis()


def against_goals(table: pd.DataFrame, value: str, ax: "Axes") -> None:
    """Steps saved, or a factor, against the loss aimed at, harder to the right."""
    for cell, (text, shade, style) in LINES.items():
        own = table[(table[list(Cell._fields)] == list(cell)).all(axis=1)]
        if own.empty:
            continue
        rows = over_seeds(own, "goal", value).sort_index(ascending=False)
        begun = own.groupby("goal")["begun"].mean()[rows.index].to_numpy() > 0.5
        later = rows[~begun]
        ax.plot(rows.index[begun], rows["mean"][begun], ":", color=shade, lw=1)
        ax.plot(later.index, later["mean"], style, color=shade, lw=1.8, label=text)
        ends = (later["mean"] - later["half_width"], later["mean"] + later["half_width"])
        ax.fill_between(later.index, *ends, color=shade, alpha=0.15, lw=0)
    ax.axhline(0, color="#000000", lw=1)
    ax.set(xlabel="test loss aimed at, nats")
    ax.invert_xaxis()


def cells(table: pd.DataFrame, ax: "Axes", account: str = "B") -> None:
    """Loss at equal cost above that of one source by mean padding, by maps, sources and start."""
    base = table[(table["sources"] == 1) & (table["maps"] == "mean")].set_index("seed")[account]
    above = table.assign(above=table[account] - base.reindex(table["seed"]).to_numpy())
    above = above[above["above"].notna()]
    known = [maps for maps in MAPS if maps in set(above["maps"])]
    for (sources, start), (text, shade, mark, shift) in PLACES.items():
        own = above[(above["sources"] == sources) & (above["start"] == start)]
        rows = over_seeds(own, "maps", "above")
        at = np.array([known.index(str(maps)) for maps in rows.index]) + shift
        bars = {"fmt": mark, "color": shade, "ms": 5, "capsize": 2, "label": text}
        ax.errorbar(at, rows["mean"], rows["half_width"], **bars)  # type: ignore[arg-type]
    ax.axhline(0, color="#000000", lw=1)
    ax.set_xticks(
        range(len(known)), [maps.replace("svd_random", "random\nfactors") for maps in known]
    )
