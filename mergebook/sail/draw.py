"""What several figures of SAIL's chapters draw: starts of larger networks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from mergebook import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARMS = {
    "scratch": ("scratch", plots.BLACK, ":"),
    "nearest source": ("nearest source alone", plots.ORANGE, "--"),
    "farther source": ("farther source alone", plots.GREEN, "-."),
    "SAIL": ("SAIL", plots.BLUE, "-"),
    "LiGO": ("LiGO", plots.PINK, "-."),
    "random, same scale": ("random weights, grown scale", plots.GREEN, "-."),
    "uniform": ("uniform average", plots.SKY, "--"),
}
STARTS = {  # sources share their initial weights, or do not
    "shared": ("same initialisation", plots.BLUE, "o"),
    "own": ("separate initialisations", plots.VERMILION, "s"),
}


def curves(table: pd.DataFrame, ax: "Axes", arms: Sequence[str], value: str) -> None:
    """A value against steps from each start that was measured, with 95 % intervals across seeds."""
    looks = {arm: ARMS[arm] for arm in arms}
    plots.series(ax, table, x="step", y=value, by="arm", looks=looks, band=True, lw=1.6)
    ax.set(xlabel="steps")
