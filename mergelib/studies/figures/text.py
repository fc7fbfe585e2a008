"""The figures of the chapter on SAIL in text: maps of blocks, and curves over γ."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
from torch import Tensor

from mergelib.records.statistics import interval
from mergelib.studies.papers.sail.clusters import PARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHADES = ("#0072b2", "#e69f00", "#009e73")
STEPS = ("#000000", "#56b4e9", "#d55e00")


def map_blocks(places: Tensor, thirds: Sequence[Tensor], ax: "Axes") -> None:
    """Blocks on a plane, a shade for each third.

    Args:
        places: ``(n, 2)``.
        thirds: rows of D_1, D_2 and D_t.
        ax: where to draw.
    """
    for name, rows, shade in zip(PARTS, thirds, SHADES, strict=True):
        ax.plot(*places[rows].T, ".", color=shade, ms=5, label=name)
    ax.set(xticks=[], yticks=[])


def sweep(curves: pd.DataFrame, ax: "Axes") -> None:
    """Loss against γ, a curve for each number of steps, with intervals over seeds.

    Args:
        curves: of one start, rows of ``gamma``, ``step`` and ``judge``.
        ax: where to draw.
    """
    for (step, part), shade in zip(curves.groupby("step"), STEPS, strict=True):
        groups = part.groupby("gamma")["judge"].agg(list)
        bars = [interval(values) for values in groups]
        means, halves = zip(*bars, strict=True)
        ax.errorbar(
            groups.index, means, halves, color=shade, marker="o", ms=3, lw=1.2, label=f"{step}"
        )
    ax.set(xlabel="γ, weight of θ₁")
