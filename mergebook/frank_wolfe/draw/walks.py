"""The figures of chapter 22: procedures, samples, walks, and pools of experts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from mergebook.frank_wolfe.read import POOLED, SHADES, SUITES, group, pools, short
from mergebook.lab.statistics import interval, over_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def procedure_dots(table: pd.DataFrame, seconds: "pd.Series[float]", ax: "Axes") -> None:
    """One row per procedure, from the lowest mean accuracy up, with its interval over seeds."""
    means = over_seeds(table, "method").sort_values("mean")
    names = [str(method) for method in means.index]
    for row, (method, ends) in enumerate(zip(names, means.to_numpy(), strict=True)):
        mean, half = 100 * ends
        shade = SHADES[group(method)]
        ax.errorbar(mean, row, xerr=half, fmt="o", ms=8, capsize=4, color=shade)
        cost = f"   ({seconds[method]:.0f} s)" if method in seconds else ""
        ax.text(mean + half + 0.7, row, f"{mean:.1f}{cost}", va="center", fontsize=10)
    ax.set(yticks=range(len(names)), yticklabels=[short(method) for method in names])
    ax.set_xlabel("mean test accuracy, %")
    ax.set_xlim(None, 100 * means["mean"].max() + 8)
    for kind, shade in SHADES.items():
        ax.plot([], [], "o", ms=8, color=shade, label=kind)
    ax.legend(loc="lower right")


def sample_curves(table: pd.DataFrame, ax: "Axes") -> None:
    """Accuracy in per cent against labelled examples a task; lines for what needs none, or all."""
    samples = 100 * over_seeds(table, ["method", "examples"])
    heights = dict(zip(samples.index, samples["mean"].tolist(), strict=True))
    shades = {"frank_wolfe soft": "#0072b2", "frank_wolfe hard, from cart": "#d55e00"}
    shades |= {"regmean": "#009e73", "multitask": "#000000"}
    levels = {"cart": "CART", "multitask": "multi-task, all data", "pretrained": "pretrained"}
    for method, shade in shades.items():
        curve = samples.loc[method].drop(0, errors="ignore")
        bars: dict[str, Any] = {"fmt": "o-", "color": shade, "capsize": 4, "label": short(method)}
        ax.errorbar(curve.index, curve["mean"], curve["half_width"], **bars)
    sizes = list(curve.index)
    for method, text in levels.items():
        height = heights[method, 0]
        ax.axhline(height, color="#8c8c8c", lw=1.2, ls="--")
        ax.text(sizes[0], height + 0.5, text, fontsize=10)
    ax.set(xscale="log", xlabel="labelled pictures a task", ylabel="mean test accuracy, %")
    ax.set_xticks(sizes, labels=[str(size) for size in sizes])
    ax.minorticks_off()
    ax.legend()


def kind_curves(history: pd.DataFrame, axes: Sequence["Axes"]) -> None:
    """The loss and the gap of Frank-Wolfe's four kinds over their steps, means over the seeds."""
    style = {"hard": "--", "soft": "-", "task": "#0072b2", "layer": "#d55e00"}
    for variant in ("hard", "soft"):
        for unit in ("task", "layer"):
            mine = history[history["method"] == f"frank_wolfe {variant}, by {unit}"]
            look: dict[str, Any] = {
                "ls": style[variant],
                "color": style[unit],
                "label": f"{variant}, {unit}",
            }
            for ax, column in zip(axes, ("loss", "gap"), strict=True):
                walks = mine.pivot(index="step", columns="seed", values=column)
                curve = walks.ffill().mean(axis=1)
                ax.plot(curve.index, curve, **look)
    axes[0].set(xlabel="step", ylabel="calibration loss, nats")
    axes[1].set(xlabel="step", ylabel="Frank-Wolfe gap", ylim=(0, None))
    axes[1].legend()


def pool_curves(study: str, axes: Sequence["Axes"], xlabel: str) -> None:
    """Change of accuracy from the smallest pool, with Student's intervals; one panel per suite."""
    wide = pools(study)
    for ax, (suite, kind) in zip(axes, SUITES.items(), strict=True):
        part = wide.loc[suite]
        for place, method in enumerate(each for each in POOLED if each in part.index):
            text, shade, style = POOLED[method]
            change = part.loc[method] - part.loc[method].iloc[0]
            ends = [interval(row.dropna().tolist()) for _, row in change.iterrows()]
            x = [spot + 0.06 * (place - 3) for spot in range(len(ends))]
            bars: dict[str, Any] = {"fmt": style, "color": shade, "capsize": 3, "label": text}
            ax.errorbar(x, [mean for mean, _ in ends], [half for _, half in ends], **bars)
        ax.set(title=f"{suite}: {kind}", ylabel="change in accuracy, points")
        ax.set_xticks(range(len(ends)), labels=change.index)
    axes[-1].set(xlabel=xlabel)
    axes[0].legend(ncols=2, fontsize=10)
