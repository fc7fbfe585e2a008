"""The figure that chapter 31 draws again and again: differences in every case of every source."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mergebook import plots
from mergebook.cogram.read import Case

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHADES = (plots.BLUE, plots.VERMILION, plots.GREEN, plots.PURPLE, "black", plots.SKY)


def named(case: Case) -> str:
    """A case as axes write it."""
    return f"{case[0]},\n{case[1]} weights"


def forest(
    panels: Mapping[str, Mapping[str, pd.DataFrame]], xlabel: str, *, ratios: bool = False
) -> "Figure":
    """Intervals: one panel per source, one row per case, one colour per comparison."""
    import matplotlib.pyplot as plt

    most = max(len(runs) for runs in panels.values())
    size = (7.2, len(panels) * (1.2 + 0.62 * most))
    figure, axes = plt.subplots(len(panels), 1, figsize=size, sharex=True, squeeze=False)
    for ax, (title, runs) in zip(axes[:, 0], panels.items(), strict=True):
        for place, (name, table) in enumerate(runs.items()):
            shift = 0.75 * (place / (len(runs) - 1) - 0.5) if len(runs) > 1 else 0.0
            look = (name, SHADES[place], "osDv^P"[place])
            plots.dots(ax, table, look, list(table.index), shift=shift, lw=1.8)
        ax.axvline(float(ratios), color="black", lw=1)
        ax.set(title=title, yticks=range(len(table)), yticklabels=[*map(named, table.index)])
        for line in np.arange(len(table) - 1) + 0.5:
            ax.axhline(line, color=plots.GREY, lw=0.6, ls=":")
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        if ratios:
            plots.log_axis(ax, (0.1, 0.2, 0.5, 1, 2))
    axes[-1, 0].set_xlabel(xlabel)
    plots.legend_outside(figure, "upper left", ncols=2, fontsize=10)
    return figure
