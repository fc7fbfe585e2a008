"""The figures of chapter 41: what masks do to variance, and to the loss of the merge."""

from typing import TYPE_CHECKING

import pandas as pd

from mergebook.plots import colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Operators of the study `variance`, by what they are called on the page.
STYLES = {
    "none": ("average", "#000000", "*"),
    "trim": ("trim", "#009e73", "s"),
    "elect": ("elect", "#0072b2", "D"),
    "trim, elect": ("trim, elect (TIES)", colour("ties"), "o"),
    "drop": ("drop, rescale (DARE)", colour("dare"), "^"),
    "elect the minority": ("elect the wrong sign", "#d55e00", "X"),
    "shrink": ("shrink", "#8c8c8c", "v"),
}


def variances(table: pd.DataFrame, measure: str, ax: "Axes") -> None:
    """Variance against density, for every operator: lines, or a point where it has no density.

    Args:
        table: rows of ``operator``, ``density`` and the measure, of one seed.
        measure: a column.
        ax: where to draw.
    """
    for operator, (text, shade, mark) in STYLES.items():
        rows = table[table["operator"] == operator]
        style = f"{mark}:" if operator == "shrink" else f"{mark}-"
        ax.plot(rows["density"], rows[measure], style, color=shade, label=text)
    densities = sorted(table["density"].unique())
    ax.set(xscale="log", xlabel="density", xticks=densities)
    ax.set_xticklabels([f"{density:g}" for density in densities])
    ax.minorticks_off()
    ax.invert_xaxis()


def against(changes: pd.DataFrame, measure: str, ax: "Axes") -> None:
    """Loss change against another column, means over seeds: a mark for every operator.

    Args:
        changes: of one kind of scale, as from
            `mergebook.stability.read.corollary.beside_losses`.
        measure: the column, ``raw``, ``relative`` or ``projection``.
        ax: where to draw; lines cross at the merge without an operator.
    """
    means = changes.groupby(["operator", "density"])[[measure, "change"]].mean().reset_index()
    ax.axhline(0, color="#8c8c8c", lw=1)
    ax.axvline(
        float(means.loc[means["operator"] == "none", measure].iloc[0]), color="#8c8c8c", lw=1
    )
    for operator, (text, shade, mark) in STYLES.items():
        rows = means[means["operator"] == operator]
        if len(rows):
            ax.plot(rows[measure], rows["change"], mark, color=shade, label=text, ms=8)
