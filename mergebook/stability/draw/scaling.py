"""What several figures of the chapter on measured scaling laws draw: curves over one parameter."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from mergebook import plots
from mergebook.stability.read import scaling as sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = {
    "loss": ("test loss", plots.BLACK, "o-"),
    "train_loss": ("training loss: optimisation", plots.BLUE, "s--"),
    "generalisation": ("difference: generalisation", plots.VERMILION, "^-"),
}
LAWS = {
    "printed": ("Lemma 3", plots.VERMILION, "--"),
    "root": ("√s", plots.BLUE, ":"),
    "root_loss": ("√(s f)", plots.GREEN, "-."),
}
AXES = {"steps": "steps K", "learning_rate": "learning rate η, 10⁻⁴", "batch_size": "batch b"}
AXES["share"] = "fraction of the data α"
UNITS = {"learning_rate": 1e-4}
SHADES = (plots.SKY, plots.BLUE, plots.ORANGE, plots.VERMILION)  # of rates, from small to large


def loss_parts(rows: pd.DataFrame, column: str, ax: "Axes") -> None:
    """Test loss, training loss and their difference against a parameter; zero is the pretrained."""
    ax.axhline(0, color=plots.GREY, lw=1.2, ls="--")
    for value, look in PARTS.items():
        plots.curve(ax, sweep.curve(rows, column, value), look)
    plots.log_axis(ax, rows[column], unit=UNITS.get(column, 1.0))


def curves(rows: pd.DataFrame, column: str, ax: "Axes", name: str, power: int = 0) -> None:
    """Test loss, one curve per value of a parameter, against K times a power of the value."""
    for shade, (_, own) in zip(SHADES, rows.groupby(column), strict=False):
        chosen = float(own[column].iloc[0])
        curve = sweep.curve(own, "steps", "loss")
        moved = curve.set_axis(curve.index * chosen**power)
        plots.curve(ax, moved, (f"{name} = {chosen:g}", shade, "o-"))
    ax.axhline(0, color=plots.GREY, lw=1.2, ls="--")
    if not power:
        plots.log_axis(ax, rows["steps"])
        ax.set(xlabel="steps K")


def method_curves(rows: pd.DataFrame, column: str, value: str, ax: "Axes") -> None:
    """One curve per ``method`` against a parameter; accuracies are drawn in per cent."""
    for method, look in plots.method_looks(rows["method"].unique()).items():
        plots.curve(ax, sweep.curve(rows[rows["method"] == method], column, value), look)
    plots.log_axis(ax, rows[column], unit=UNITS.get(column, 1.0))


def law_points(tables: Mapping[str, pd.DataFrame], gains: pd.DataFrame, axes: Any) -> None:
    """E_G of averages against each parameter, and the curves of `sweep.beside_theory`."""
    for ax, own in zip(axes.flat, sweep.sweeps(gains), strict=True):
        column = sweep.free(own)
        table = tables[column]
        for law, (text, shade, style) in LAWS.items():
            ax.plot(table.index, table[law], style, lw=2, color=shade, label=text)
        plots.curve(ax, table, ("measured", plots.BLACK, "o"))
        plots.log_axis(ax, table.index, unit=UNITS.get(column, 1.0))
        ax.set(xlabel=sweep_name(own))
    axes[0, 0].set(ylabel="nats", ylim=(-0.1, 0.5))
    axes[1, 0].set(ylabel="nats")
    plots.legend_outside(axes[0, 0].figure, fontsize=10)


def sweep_name(varied: Mapping[str, Any]) -> str:
    """What the axis of one of `sweep.sweeps` is called."""
    column = sweep.free(varied)
    return AXES[column] + f", K = {varied['steps']}" * (column != "steps")
