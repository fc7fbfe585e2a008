"""Charts that chapters share: bars, dots, heat maps, intervals, contours."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mergebook.plots.style import MARKERS, colour, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANKS = (1, 2, 4, 8, 16, 32, 100)
SET_MARKERS = "o^sDv"


def accuracy_by_task(table: pd.DataFrame, ax: "Axes | None" = None) -> "Figure":
    """Dot plot: one row per task, one dot per method, from a table of `compare`.

    Rows are ordered by what the average keeps of the expert's accuracy, or the pretrained model
    where no average is shown; the grey bar spans from the pretrained model to the expert, the gap
    that merging has to close.
    """
    import matplotlib.pyplot as plt

    wide = table.pivot_table(index="task", columns="method", values="accuracy")
    kept = wide["average" if "average" in wide else "pretrained"] / wide["individual"]
    wide = wide.loc[kept.sort_values().index]
    if ax is None:
        _, ax = plt.subplots(figsize=(7.2, 1.6 + 0.42 * len(wide)))
    rows = range(len(wide))
    ax.hlines(rows, 100 * wide["pretrained"], 100 * wide["individual"], color="#d0d0d0", lw=7)
    for method in [m for m in table["method"].unique() if m in wide]:
        marker, name = MARKERS.get(method, "o"), label(method)
        values = 100 * wide[method]
        ax.scatter(values, rows, s=60, color=colour(method), marker=marker, label=name, zorder=3)
    ax.set(
        yticks=list(rows), yticklabels=list(wide.index), xlabel="test accuracy, %", xlim=(0, 101)
    )
    ax.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=4, fontsize=10)
    figure = ax.figure
    assert figure is not None
    return figure  # type: ignore[return-value]


def heat_map(
    values: pd.DataFrame,
    ax: "Axes",
    *,
    low: float,
    high: float,
    digits: int,
    bar: str,
    colours: str = "cividis",
) -> None:
    """A table as a picture: one coloured cell for each entry, with its number written in.

    Args:
        values: rows and columns carry the labels.
        ax: where to draw.
        low: value at the dark end of the colours; entries below it share its colour.
        high: value at the bright end, likewise.
        digits: decimals of the numbers.
        bar: what the colour bar says, with the unit.
        colours: a matplotlib colour map that runs from dark to bright.
    """
    import seaborn as sns

    sns.heatmap(
        values.astype(float),
        ax=ax,
        vmin=low,
        vmax=high,
        cmap=colours,
        annot=True,
        fmt=f".{digits}f",
        annot_kws={"fontsize": 10},
        cbar_kws={"label": bar, "fraction": 0.046, "pad": 0.02},
    )
    for text, value in zip(ax.texts, values.to_numpy(dtype=float).ravel(), strict=True):
        text.set_color("black" if value > (low + high) / 2 else "white")
    ax.set_xticklabels(ax.get_xticklabels(), rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticklabels(ax.get_yticklabels(), rotation=0)
    ax.set(xlabel="", ylabel="")
    ax.grid(visible=False)


def rank_axis(ax: "Axes", *, scale: str = "log", ticks: Sequence[int] = RANKS) -> None:
    """A horizontal axis for kept ranks in per cent of the full rank."""
    ax.set(xscale=scale, xlabel="kept rank, % of the full rank")
    ax.set_xticks(list(ticks), [str(tick) for tick in ticks])


def forest(
    sets: Mapping[str, pd.DataFrame],
    ax: "Axes",
    colours: Sequence[str],
    *,
    digits: int | None = None,
) -> None:
    """Differences with both intervals, from top to bottom: thick over seeds, thin over tasks too.

    Args:
        sets: name to differences, as of `both_intervals`: columns ``mean``, ``half_width``,
            ``low`` and ``high``; all with the same rows. Each set has its own marker, for a legend.
        ax: where to draw; row i stands at height i.
        colours: one for each row.
        digits: where given, the mean and the thin line's ends are written beside the last set.
    """
    for k, (name, rows) in enumerate(sets.items()):
        values = rows[["mean", "half_width", "low", "high"]].to_numpy()
        marker = SET_MARKERS[k % len(SET_MARKERS)]
        ax.plot([], [], marker, color="#666666", label=name)
        for i, ((mean, half, low, high), shade) in enumerate(zip(values, colours, strict=True)):
            y = i + 0.75 * ((k + 0.5) / len(sets) - 0.5)
            ax.plot((low, high), (y, y), color=shade, lw=1.2)
            ax.plot((mean - half, mean + half), (y, y), color=shade, lw=3.5)
            ax.plot(mean, y, marker, color=shade, ms=7, mec="white")
    if digits is not None:
        for i, (mean, _, low, high) in enumerate(values):
            text = f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
            ax.text(1.02, i, text, transform=ax.get_yaxis_transform(), va="center", fontsize=10)
    ax.set_yticks(range(len(rows)), [str(name) for name in rows.index])
    ax.set_ylim(len(rows) - 0.5, -0.5)


def contours(losses: pd.DataFrame, ax: "Axes", *, levels: int = 13) -> Any:
    """Filled contours of a map of losses, dark where the loss is high.

    Args:
        losses: one row per y and column per x.
        ax: where to draw.
        levels: as many, at equal shares of the map.

    Returns:
        What `Figure.colorbar` takes.
    """
    steps = np.unique(np.quantile(losses, np.linspace(0, 1, levels)))
    ax.grid(visible=False)
    return ax.contourf(losses.columns, losses.index, losses, levels=steps, cmap="cividis_r")
