"""The figure that chapter 22 draws twice: what a pool of experts does to every method."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from mergebook import plots
from mergebook.frank_wolfe.read import POOLED, SUITES, pools
from mergebook.lab.statistics import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def pool_curves(study: str, axes: Sequence["Axes"], xlabel: str) -> None:
    """Change of accuracy from the smallest pool, with Student's intervals; one panel per suite."""
    wide = pools(study)
    for ax, (suite, kind) in zip(axes, SUITES.items(), strict=True):
        part = wide.loc[suite]
        for place, method in enumerate(each for each in POOLED if each in part.index):
            change = part.loc[method] - part.loc[method].iloc[0]
            ends = [interval(row.dropna().tolist()) for _, row in change.iterrows()]
            spots = [spot + 0.06 * (place - 3) for spot in range(len(ends))]
            rows = pd.DataFrame(ends, index=spots, columns=["mean", "half_width"])
            plots.curve(ax, rows, POOLED[method], ms=6)
        ax.set(title=f"{suite}: {kind}", ylabel="change in accuracy, points")
        ax.set_xticks(range(len(ends)), labels=change.index)
    axes[-1].set(xlabel=xlabel)
    axes[0].legend(ncols=2, fontsize=10)
