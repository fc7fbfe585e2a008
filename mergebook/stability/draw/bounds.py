"""The figures of chapter 40: exact errors and bounds of a merge, and measured stability."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mergebook.lab.statistics import interval
from mergebook.stability.read.networks import sweeps
from mergebook.stability.theory.bounds import PAPERS_DOMAIN, REPAIRED_DOMAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = {
    "optimisation": ("optimisation error", "#0072b2", "-"),
    "generalisation": ("generalisation error", "#d55e00", "-"),
    "excess": ("their sum", "#000000", ":"),
}
BOUNDS = {
    "theorem_3": ("Theorem 3", "#d55e00"),
    "best_gamma": ("with γ*", "#e69f00"),
    "repaired": ("repaired", "#009e73"),
    "truth": ("truth", "#000000"),
}
SWEPT = {
    "steps": ("steps, first pass", "steps, later passes"),
    "rate": ("rate",),
    "batch": ("batch, one pass", "batch, many"),
    "examples": ("examples, one pass", "examples, many"),
}
LAWS = {"printed": ("--", "#d55e00"), "repaired": (":", "#009e73")}
LABELS = {"printed": "Lemma 3", "repaired": "repaired bound"}
WORDS = {
    "steps": "steps K",
    "rate": "learning rate η",
    "batch": "batch b",
    "examples": "training examples n",
}


def error_curves(table: pd.DataFrame, start: float, ax: "Axes") -> None:
    """The parts of the excess error against K, and the pretrained model's as a line.

    Args:
        table: as from `mergebook.stability.read.quadratics.errors_over_steps`.
        start: excess error of θ_0.
        ax: where to draw.
    """
    ax.axhline(start, color="#8c8c8c", lw=1.2, ls="--", label="pretrained")
    for name, (text, shade, style) in PARTS.items():
        ax.plot(table["steps"], table[name].where(table[name] > 0), style, color=shade, label=text)
    ax.set(xscale="log", yscale="log", xlabel="steps K of every expert")


def bound_curves(table: pd.DataFrame, start: float, progress: float, ax: "Axes") -> None:
    """Truth and bounds against K: solid where they are proved, dotted beyond.

    Args:
        table: as from `mergebook.stability.read.quadratics.bounds_over_steps`.
        start: excess error of θ_0.
        progress: η L, by which the domains are drawn.
        ax: where to draw.
    """
    for limit, shade in ((REPAIRED_DOMAIN, "#e4f2ec"), (PAPERS_DOMAIN, "#f6dccb")):
        ax.axvspan(table["steps"].min(), max(limit / progress, 1), color=shade, lw=0, zorder=0)
    ax.axhline(start, color="#8c8c8c", lw=1.2, ls="--", label="pretrained")
    for name, (text, shade) in BOUNDS.items():
        proved = table["domain" if name == "repaired" else "papers_domain"] | (name == "truth")
        ax.plot(table["steps"], table[name], ":", color=shade, lw=1.3)
        ax.plot(table["steps"], table[name].where(proved), "-", color=shade, label=text)
    ax.set(xscale="log", yscale="log", xlabel="steps K")


def law_panels(table: pd.DataFrame, axes: "Sequence[Axes]") -> None:
    """Measured stability against K, η, b and n, each in a panel, and both laws as lines.

    Points are geometric means over seeds with 95 % intervals. Where b and n vary, the lighter
    series is after one pass over the usual data, the darker after the last step.

    Args:
        table: as from `mergebook.stability.read.networks.moves_with_laws`.
        axes: four.
    """
    parts = sweeps(table)
    for ax, (column, names) in zip(axes, SWEPT.items(), strict=True):
        for name in names:
            alpha = 0.45 if name.endswith("one pass") else 1.0
            logs = parts[name][1].set_index(column)[["stability", *LAWS]].apply(np.log)
            centres = logs.groupby(level=0).mean()
            ends = [interval(own.tolist())[1] for _, own in logs.groupby(level=0)["stability"]]
            middle = np.exp(centres["stability"])
            spread = [middle - np.exp(centres["stability"] - ends)]
            spread.append(np.exp(centres["stability"] + ends) - middle)
            ax.errorbar(
                middle.index, middle, spread, fmt="o-", color="#000000", ms=4, lw=1.3, alpha=alpha
            )
            for law, (style, shade) in LAWS.items():
                ax.plot(centres.index, np.exp(centres[law]), style, color=shade, alpha=alpha)
        ax.set(xscale="log", yscale="log", xlabel=WORDS[column])
        values = sorted({value for name in names for value in parts[name][1][column]})
        ax.set_xticks(values, [f"{value:g}" for value in values])
        ax.minorticks_off()
    axes[0].plot([], [], "o-", color="#000000", ms=4, label="measured")
    for law, (style, shade) in LAWS.items():
        axes[0].plot([], [], style, color=shade, label=LABELS[law])
