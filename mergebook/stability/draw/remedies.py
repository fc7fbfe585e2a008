"""The figures of chapter 44: what methods of Remark 4 change, and what becomes of the merge."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mergebook.lab.statistics import over_seeds
from mergebook.stability.read.remedies import OPTIMISERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAIRS = {"same task": ("one task", "#0072b2", "o"), "two tasks": ("two tasks", "#d55e00", "s")}
PLACES = {"as trained": 0, "matched": 1, "one start": 2}
SHADES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c8c")
SHAPES = "osD^v<>P"
MENDED = {
    "average": ("average", "#000000", "*"),
    "surgery, test": ("Surgery, test inputs", "#d55e00", "o"),
    "surgery, validation": ("Surgery, validation inputs", "#0072b2", "s"),
    "surgery, train": ("Surgery, training inputs", "#009e73", "^"),
    "individual": ("experts", "#8c8c8c", "D"),
}


def matching_points(pairs: pd.DataFrame, value: str, ax: "Axes") -> None:
    """A quantity of two networks as trained, matched, and from one start, with 95 % intervals.

    Args:
        pairs: the table of that name from the study ``rebasin``.
        value: a column; pairs that do not have it are left out.
        ax: where to draw.
    """
    start = (pairs["pair"] == "one start") & ~pairs["matched"]
    places = pairs["matched"].map({False: "as trained", True: "matched"}).mask(start, "one start")
    named = pairs.assign(place=places)
    for k, (pair, (text, shade, mark)) in enumerate(PAIRS.items()):
        kinds = [pair] if pair == "same task" else [pair, "one start"]
        own = named[named["pair"].isin(kinds) & named[value].notna()]
        own = own[(own["pair"] == pair) | start[own.index]]
        if len(own):
            points = over_seeds(own, "place", value)
            at = [PLACES[place] + 0.12 * (2 * k - 1) for place in points.index]
            ax.errorbar(
                at, points["mean"], points["half_width"], fmt=mark, color=shade, ms=7, label=text
            )
    ax.set_xticks(list(PLACES.values()), ["as\ntrained", "matched", "one\nstart"])
    ax.set_xlim(-0.5, 2.5)


def growth_curves(experts: pd.DataFrame, ax: "Axes") -> None:
    """How far experts are from the pretrained model after some steps; dashed: ∝ steps.

    Args:
        experts: as from `mergebook.stability.read.remedies.longer`.
        ax: where to draw.
    """
    for (optimiser, name), shade in zip(OPTIMISERS.items(), ("#0072b2", "#d55e00"), strict=True):
        own = experts[experts["optimiser"] == optimiser]
        points = over_seeds(own, "steps", "distance").sort_index()
        ax.errorbar(
            points.index, points["mean"], points["half_width"], fmt="o-", color=shade, label=name
        )
        line = points["mean"].iloc[0] * points.index / points.index[0]
        ax.plot(points.index, line, "--", color=shade, lw=1)
    ax.set(xscale="log", yscale="log", xlabel="steps of an expert", ylabel="distance from start")
    steps = sorted(experts["steps"].unique())
    ax.set_xticks(steps, [str(count) for count in steps])
    ax.set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    ax.minorticks_off()


def coefficient_points(coefficients: pd.DataFrame, ax: "Axes") -> None:
    """AdaMerging's coefficients against ζ², a point for every task and seed.

    Args:
        coefficients: the table of that name from the study ``mechanisms``, of one granularity;
            points whose ζ² is estimated below 0 are left out.
        ax: where to draw.
    """
    shown = coefficients[coefficients["heterogeneity"] > 0]
    for i, (task, rows) in enumerate(shown.groupby("task", sort=False)):
        mark, shade = SHAPES[i % len(SHAPES)], SHADES[i % len(SHADES)]
        ax.plot(rows["heterogeneity"], rows["coefficient"], mark, color=shade, label=task)
    ax.set(xscale="log")
    ends = shown["heterogeneity"].min(), shown["heterogeneity"].max()
    ticks = [tick for tick in (1, 3, 10, 30, 100, 300) if ends[0] <= tick <= ends[1]]
    ax.set_xticks(ticks, map(str, ticks))
    ax.minorticks_off()


def error_points(table: pd.DataFrame, ax: "Axes") -> None:
    """Optimisation against generalisation error of merges and experts, with 95 % intervals.

    Args:
        table: as from `mergebook.stability.read.remedies.errors`.
        ax: where to draw; dotted lines are of equal test loss.
    """
    across, up = (over_seeds(table, "method", part) for part in ("optimisation", "generalisation"))
    for name, (text, shade, mark) in MENDED.items():
        ax.errorbar(
            across["mean"][name],
            up["mean"][name],
            xerr=across["half_width"][name],
            yerr=up["half_width"][name],
            fmt=mark,
            color=shade,
            ms=9,
            label=text,
        )
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    for loss in np.arange(0.2, right + high, 0.2):
        ax.plot([loss - low, loss - high], [low, high], ":", color="#8c8c8c", lw=1, zorder=0)
    ax.set(xlim=(left, right), ylim=(low, high))
    ax.set(
        xlabel="training loss: $E_O$ but for a constant", ylabel="test less training loss: $E_G$"
    )
