"""Pieces of figures that chapters on results share."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANKS = (1, 2, 4, 8, 16, 32, 100)
MARKERS = "o^sDv"


def rank_axis(ax: "Axes", *, scale: str = "log", ticks: Sequence[int] = RANKS) -> None:
    """A horizontal axis for kept ranks in per cent of the full rank."""
    ax.set(xscale=scale, xlabel="kept rank, % of the full rank")
    ax.set_xticks(list(ticks), [str(tick) for tick in ticks])


def forest(sets: Mapping[str, pd.DataFrame], ax: "Axes", colours: Sequence[str]) -> None:
    """Differences with both intervals, from top to bottom: thick over seeds, thin over tasks too.

    Args:
        sets: name to differences, as of `cart.differences`: columns ``mean``, ``half_width``,
            ``low`` and ``high``; all with the same rows. Each set has its own marker, for a legend.
        ax: where to draw; row i stands at height i.
        colours: one for each row.
    """
    for k, (name, rows) in enumerate(sets.items()):
        values = rows[["mean", "half_width", "low", "high"]].to_numpy()
        marker = MARKERS[k % len(MARKERS)]
        ax.plot([], [], marker, color="#666666", label=name)
        for i, ((mean, half, low, high), colour) in enumerate(zip(values, colours, strict=True)):
            y = i + 0.75 * ((k + 0.5) / len(sets) - 0.5)
            ax.plot((low, high), (y, y), color=colour, lw=1.2)
            ax.plot((mean - half, mean + half), (y, y), color=colour, lw=3.5)
            ax.plot(mean, y, marker, color=colour, ms=7, mec="white")
    ax.set_yticks(range(len(rows)), [str(name) for name in rows.index])
    ax.set_ylim(len(rows) - 0.5, -0.5)


def contours(losses: pd.DataFrame, ax: "Axes", *, levels: int = 13) -> Any:
    """Filled contours of a `landscape.loss_map`, dark where the loss is high.

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
