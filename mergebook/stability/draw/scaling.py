"""What several figures of the chapter on measured scaling laws draw: curves over one parameter."""

import pandas as pd
from matplotlib.axes import Axes

from mergebook import plots
from mergebook.stability.read import scaling as sweep

PARTS = {
    "loss": ("test loss", plots.BLACK, "o-"),
    "train_loss": ("training loss: optimisation", plots.BLUE, "s--"),
    "generalisation": ("difference: generalisation", plots.VERMILION, "^-"),
}
UNITS = {"learning_rate": 1e-4}


def loss_parts(rows: pd.DataFrame, column: str, ax: Axes) -> None:
    """Test loss, training loss and their difference against a parameter; zero is the pretrained."""
    ax.axhline(0, color=plots.GREY, lw=1.2, ls="--")
    for value, look in PARTS.items():
        plots.curve(ax, sweep.curve(rows, column, value), look)
    plots.log_axis(ax, rows[column], unit=UNITS.get(column, 1.0))


def method_curves(rows: pd.DataFrame, column: str, value: str, ax: Axes) -> None:
    """One curve per ``method`` against a parameter; accuracies are drawn in per cent."""
    for method, look in plots.method_looks(rows["method"].unique()).items():
        plots.curve(ax, sweep.curve(rows[rows["method"] == method], column, value), look)
    plots.log_axis(ax, rows[column], unit=UNITS.get(column, 1.0))
