"""The book's figure styles: opaque, colour-blind safe, legible on a phone.

Every method keeps its colour and label in every figure. The colours are those of Okabe and Ito
(2008), so no two that meet are told apart by red against green alone.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {
    "pretrained": "pretrained",
    "average": "average",
    "task_arithmetic": "task arithmetic",
    "low_rank_task_arithmetic": "low-rank task arithmetic",
    "ties": "TIES",
    "dare": "DARE",
    "slerp": "SLERP",
    "model_stock": "Model Stock",
    "breadcrumbs": "Breadcrumbs",
    "della": "DELLA",
    "consensus": "Consensus",
    "cart": "CART",
    "tsv": "TSV",
    "iso_c": "Iso-C",
    "iso_cts": "Iso-CTS",
    "individual": "individual",
    "fisher": "Fisher",
    "regmean": "RegMean",
    "uniform_soup": "uniform soup",
    "greedy_soup": "greedy soup",
    "adamerging": "AdaMerging",
    "concrete": "Concrete",
    "surgery": "Surgery",
    "frank_wolfe": "FW",
    "multitask": "multi-task training",
    "cogram": "CoGraM",
}
COLOURS = {
    "pretrained": "#8c8c8c",
    "average": "#56b4e9",
    "task_arithmetic": "#0072b2",
    "low_rank_task_arithmetic": "#004a75",
    "ties": "#e69f00",
    "dare": "#cc79a7",
    "slerp": "#b8a100",
    "model_stock": "#3a7ca5",
    "breadcrumbs": "#d9a441",
    "della": "#8e5a7e",
    "consensus": "#a06a00",
    "cart": "#d55e00",
    "tsv": "#009e73",
    "iso_c": "#4db38f",
    "iso_cts": "#00694d",
    "individual": "#000000",
}
MARKERS = {"pretrained": "s", "individual": "D"}


def use_style() -> None:
    """Set matplotlib's defaults for the book; call once at the top of a notebook."""
    import matplotlib as mpl
    from matplotlib.rcsetup import cycler

    mpl.rcParams.update(
        {
            "figure.figsize": (7.2, 4.2),
            "figure.dpi": 110,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "savefig.bbox": "tight",
            "figure.constrained_layout.use": True,
            "font.size": 12,
            "axes.titlesize": 13,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#e3e3e3",
            "axes.axisbelow": True,
            "lines.linewidth": 2.2,
            "legend.frameon": False,
            "axes.prop_cycle": cycler(color=list(COLOURS.values())[1:]),
        }
    )


def label(method: str) -> str:
    """A method's name as figures write it."""
    return LABELS.get(method, method.replace("_", " "))


def colour(method: str) -> str:
    """A method's colour, the same in every figure."""
    return COLOURS.get(method, "#7b4ea3")


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


def ladder(
    means: pd.DataFrame, ax: "Axes", *, order: Sequence[str] | None = None, **style: Any
) -> None:
    """Horizontal bars of mean accuracy with intervals, one method below the other.

    Args:
        means: indexed by method, with columns ``mean`` and ``half_width`` in 0..1.
        ax: where to draw.
        order: methods from top to bottom; by default as in the table.
        **style: passed on to ``barh``.
    """
    chosen = list(means.index if order is None else order)[::-1]
    values = 100 * means.loc[chosen, "mean"]
    errors = 100 * means.loc[chosen, "half_width"]
    bars = {"color": [colour(method) for method in chosen], "height": 0.66, **style}
    ax.barh([label(method) for method in chosen], values, xerr=errors, capsize=4, **bars)
    for row, (value, error) in enumerate(zip(values, errors, strict=True)):
        ax.text(value + error + 1.2, row, f"{value:.1f}", va="center", fontsize=11)
    ax.set(xlabel="mean test accuracy, %", xlim=(0, 100))
    ax.grid(axis="y", visible=False)


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
