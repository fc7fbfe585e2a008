"""The figures of chapter 40: exact errors and bounds of a merge, against the experts' steps."""

from typing import TYPE_CHECKING

import pandas as pd

from mergelib.theory.stability.bounds import PAPERS_DOMAIN, REPAIRED_DOMAIN

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


def error_curves(table: pd.DataFrame, start: float, ax: "Axes") -> None:
    """The parts of the excess error against K, and the pretrained model's as a line.

    Args:
        table: as from `mergelib.studies.analysis.stability.quadratics.errors_over_steps`.
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
        table: as from `mergelib.studies.analysis.stability.quadratics.bounds_over_steps`.
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
