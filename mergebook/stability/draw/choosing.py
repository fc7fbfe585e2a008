"""The figures of chapter 43: how bounds rank and choose settings, and merges of unequal experts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mergebook.lab.statistics import interval
from mergebook.stability.draw.bounds import BOUNDS
from mergebook.stability.read.choosing import HABIT
from mergebook.stability.theory.bounds import PAPERS_DOMAIN, REPAIRED_DOMAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.contour import ContourSet
    from matplotlib.image import AxesImage

GUIDE_NAMES = {
    "theorem_3": "Theorem 3",
    "best_gamma": "Theorem 3 with γ*",
    "repaired": "repaired bound",
    HABIT: "no bound: the usual ηK",
}
GUIDE_COLOURS = {"theorem_3": "#d55e00", "repaired": "#009e73", HABIT: "#0072b2"}
WAY_STYLES = {
    "average": ("average", "#56b4e9", "-"),
    "fednova": ("FedNova", "#d55e00", "-"),
    "equal": ("average, equal lengths", "#000000", ":"),
}
AXIS_NAMES = {
    "steps": "steps K",
    "rate": "learning rate η",
    "batch": "batch b",
    "examples": "examples n",
    "tasks": "tasks T",
}


def banded(
    ax: "Axes", table: pd.DataFrame, by: str, value: str, colour: str, style: str, label: str
) -> None:
    """Mean over seeds against a column, with its 95 % interval.

    Args:
        ax: where to draw.
        table: columns ``by`` and ``value``, and one row per seed and point.
        by: the horizontal axis.
        value: the vertical one.
        colour: of line and band.
        style: of the line.
        label: for a legend.
    """
    means, widths = np.array([interval(list(v)) for _, v in table.groupby(by)[value]]).T
    points = sorted(table[by].unique())
    ax.plot(points, means, style, color=colour, label=label)
    ax.fill_between(points, means - widths, means + widths, color=colour, alpha=0.18, lw=0)


def name_ticks(ax: "Axes", values: pd.Series) -> None:
    """Put the ticks of a logarithmic horizontal axis at a column's values."""
    points = sorted(values.unique())
    ax.set_xticks(points, [f"{value:g}" for value in points])
    ax.minorticks_off()


def law_curves(table: pd.DataFrame, axes: Sequence["Axes"]) -> None:
    """Truth and bounds against each parameter, each curve over its least value, cut off at 300.

    Args:
        table: from `mergebook.stability.read.choosing.laws`.
        axes: one for each parameter.
    """
    for ax, (parameter, part) in zip(axes, table.groupby("parameter", sort=False), strict=False):
        for name in ("theorem_3", "repaired", "truth"):
            text, shade = BOUNDS[name]
            logs = part.assign(log=np.log10(part[name]))
            means = logs.groupby("value")["log"].mean()
            ax.plot(means.index, 10 ** (means - means.min()), color=shade, label=text)
        ax.set(xscale="log", yscale="log", ylim=(0.8, 300), xlabel=AXIS_NAMES[str(parameter)])
        if part["value"].nunique() < 5:
            name_ticks(ax, part["value"])


def error_plane(table: pd.DataFrame, own_rate: float, ax: "Axes") -> "ContourSet":
    """The exact error over η and K, where bounds are proved for L = 1, and where each is least.

    Args:
        table: from `mergebook.stability.read.choosing.plane`.
        own_rate: the paper's η at one step, √T; it falls with the root of K.
        ax: where to draw.
    """
    grid, low = table.pivot(index="rate", columns="steps", values="truth"), table["rate"].min()
    levels = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.1, 1.6]
    image = ax.contourf(grid.columns, grid.index, grid, levels, cmap="Greys", alpha=0.6)
    domains = {"repaired": (REPAIRED_DOMAIN, "//", "s"), "theorem_3": (PAPERS_DOMAIN, "\\\\", "^")}
    for name, (limit, hatch, marker) in (domains | {"truth": (0, "", "o")}).items():
        (text, shade), best = BOUNDS[name], table.loc[table.groupby("rate")[name].idxmin()]
        ax.plot(best["steps"], best["rate"], marker, color=shade, ms=5, label=f"{text}: best K")
        if limit:
            area = ax.fill_between([1, limit / low], low, [limit, low], label=f"{text}: domain")
            area.set(hatch=hatch, facecolor="none", edgecolor=shade)
    ends = np.array([1.0, table["steps"].max()])
    ax.plot(ends, own_rate / ends**0.5, "--", color="#0072b2", label="Theorem 3's own rate")
    ax.set(xscale="log", yscale="log", xlabel="steps K", ylabel="learning rate η")
    ax.set(xlim=ends, ylim=(low, table["rate"].max()))
    return image


def agreement_map(table: pd.DataFrame, guide: str, ax: "Axes") -> "AxesImage":
    """Mean Kendall's τ by how tasks' gradients and curvatures differ.

    Args:
        table: from `mergebook.stability.read.choosing.agreement`.
        guide: which column.
        ax: where to draw.
    """
    grid = table.pivot_table(index="turned", columns="own", values=guide)
    image = ax.imshow(grid, cmap="PuOr", vmin=-1, vmax=1, origin="lower", aspect="auto")
    for (row, column), value in np.ndenumerate(grid.to_numpy()):
        shade = "white" if abs(value) > 0.7 else "black"
        ax.text(column, row, f"{value:.2f}", ha="center", va="center", color=shade, fontsize=11)
    ax.set_xticks(range(grid.shape[1]), [f"{v:g}" for v in grid.columns])
    ax.set_yticks(range(grid.shape[0]), [f"{v:g}" for v in grid.index])
    ax.set_title(GUIDE_NAMES[guide])
    ax.grid(False)
    return image


def progress_points(table: pd.DataFrame, ax: "Axes") -> None:
    """The best ηK of every family against that which the rule says from gradients at θ_0.

    Args:
        table: from `mergebook.stability.read.choosing.predicted_progress`.
        ax: where to draw.
    """
    shades = ("#0072b2", "#e69f00", "#d55e00")
    markers = ("o", "s", "^")
    groups = table.groupby("turned")
    for (turned, part), shade, marker in zip(groups, shades, markers, strict=False):
        ax.scatter(
            part["free"], part["best"], color=shade, marker=marker, label=f"turned {turned:g}"
        )
    ends = [table["free"].min(), table["free"].max()]
    ax.plot(ends, ends, "--", color="#8c8c8c", lw=1.2, label="as predicted")
    ax.set(xscale="log", yscale="log", xlabel="ηK by the rule", ylabel="best ηK")


def search_curve(searched: pd.DataFrame, regrets: pd.DataFrame, ax: "Axes") -> None:
    """Regret of validation search against the settings it trains, and of choices without training.

    Args:
        searched: from `mergebook.stability.read.choosing.searched`.
        regrets: from `mergebook.stability.read.choosing.regret`, of the same families.
        ax: where to draw.
    """
    banded(ax, searched, "candidates", "regret", "#000000", "o-", "validation search")
    for guide, shade in GUIDE_COLOURS.items():
        mean, width = interval(regrets[guide].tolist())
        ax.axhline(mean, color=shade, label=GUIDE_NAMES[guide])
        ax.axhspan(mean - width, mean + width, color=shade, alpha=0.15, lw=0)
    ax.set(xscale="log", xlabel="settings that are trained", ylabel="regret")
    name_ticks(ax, searched["candidates"])


def setting_points(table: pd.DataFrame, column: str, ax: "Axes") -> None:
    """Test loss of measured settings, means over seeds, against what is known of them beforehand.

    Args:
        table: from `mergebook.stability.read.guides.settings`.
        column: such as ``theorem_3`` or ``progress``.
        ax: where to draw.
    """
    keys = ["learning_rate", "batch_size", "share", "steps"]
    means = table.groupby(keys)[[column, "loss"]].mean()
    shades = ("#56b4e9", "#0072b2", "#e69f00", "#d55e00")
    rates = means.groupby(level="learning_rate")
    for (rate, part), shade, marker in zip(rates, shades, "osD^", strict=True):
        ax.scatter(part[column], part["loss"], color=shade, marker=marker, label=f"η = {rate:g}")
    ax.set(xscale="log")


def uneven_curves(table: pd.DataFrame, ax: "Axes") -> None:
    """Excess error of merges of unequal experts against their mean length of training.

    Args:
        table: from `mergebook.stability.read.mixed.uneven`.
        ax: where to draw.
    """
    ax.axhline(1, color="#8c8c8c", lw=1.2, ls="--", label="pretrained")
    for name, (text, shade, style) in WAY_STYLES.items():
        banded(ax, table, "progress", name, shade, style, text)
    ax.set(xscale="log", yscale="log", xlabel="mean ηK", ylabel="excess error over pretrained")
    ax.set_yticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
    ax.minorticks_off()
