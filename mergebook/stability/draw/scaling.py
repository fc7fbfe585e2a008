"""The figures of the chapter on measured scaling laws: curves over one parameter of training."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from mergebook.plots import colour, label
from mergebook.stability.read import scaling as sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = {
    "loss": ("test loss", "#000000", "o-"),
    "train_loss": ("training loss: optimisation", "#0072b2", "s--"),
    "generalisation": ("difference: generalisation", "#d55e00", "^-"),
}
GAINED = "test loss above the pretrained, nats"
AXES = {"steps": "steps K", "learning_rate": "learning rate η, 10⁻⁴", "batch_size": "batch b"}
AXES["share"] = "share of the data α"
TICKS = {"learning_rate": 1e-4}
SHADES = ("#56b4e9", "#0072b2", "#e69f00", "#d55e00")  # of rates, from small to large


def loss_parts(rows: pd.DataFrame, column: str, ax: "Axes") -> None:
    """Test loss, training loss and their difference against a parameter, with intervals over seeds.

    Args:
        rows: as of `sweep.gained`, where nothing but the parameter changes.
        column: the parameter; its axis is logarithmic.
        ax: where to draw; its zero is the pretrained model.
    """
    ax.axhline(0, color="#8c8c8c", lw=1.2, ls="--")
    for value, (text, shade, style) in PARTS.items():
        _bars(sweep.curve(rows, column, value), ax, text, shade, style)
    _axis(ax, sorted(rows[column].unique()), TICKS.get(column, 1.0))


def both_laws(gains: pd.DataFrame, axes: Sequence["Axes"]) -> None:
    """`loss_parts` of averages against the steps, and against the rate after 100 of them.

    Args:
        gains: as of `sweep.gained`, of all settings.
        axes: two; the legend stands below both.
    """
    loss_parts(sweep.at(gains, steps=None), "steps", axes[0])
    rates = sweep.at(gains, learning_rate=None, steps=100)
    loss_parts(rates, "learning_rate", axes[1])
    axes[0].set(xlabel=AXES["steps"], ylabel="nats above the pretrained model")
    axes[1].set(xlabel=AXES["learning_rate"])
    _legend(axes[0])


def error_bars(rows: pd.DataFrame, ax: "Axes") -> None:
    """Accuracy of averages against steps: every seed with the paper's bar, all with ours.

    Args:
        rows: averages of the usual setting, at all steps and groups.
        ax: where to draw.
    """
    curve = sweep.curve(rows, "steps")
    ax.plot(curve.index, curve["mean"], "k-", label="mean of seeds")
    low, high = (curve["mean"] + sign * curve["half_width"] for sign in (-1, 1))
    ax.fill_between(curve.index, low, high, color="black", alpha=0.15, lw=0)
    bars: dict[str, Any] = {"fmt": "o-", "color": "#8c8c8c", "ms": 3, "lw": 0.8}
    for i, (_, own) in enumerate(rows.groupby("seed")):
        bar = sweep.over_groups(own, "steps")
        text = "_" if i else "over groups, each seed"
        ax.errorbar(bar.index * 1.035 ** (i - 2), bar["mean"], bar["error"], label=text, **bars)
    _axis(ax, list(curve.index))


def live_parts(tables: Mapping[float, Mapping[str, Any]], axes: Sequence["Axes"]) -> None:
    """The same of one seed: a panel for each learning rate, the experts' test loss beside it.

    Args:
        tables: rate to what the study `scaling` returns.
        axes: one for each rate.
    """
    for ax, (rate, found) in zip(axes, tables.items(), strict=True):
        split = sweep.apart(pd.DataFrame(found["merged"])).groupby("steps").mean(numeric_only=True)
        for value, (text, shade, style) in PARTS.items():
            ax.plot(split.index, split[value], style, color=shade, ms=5, label=text)
        alone = pd.DataFrame(found["experts"]).query("steps > 0").groupby("steps")["loss"].mean()
        ax.plot(alone.index, alone, ":", color="#8c8c8c", label="experts, test loss")
        _axis(ax, list(split.index))
        ax.set(title=f"η = {rate:g}", xlabel="steps K")


def two_clocks(
    rows: pd.DataFrame, column: str, axes: Sequence["Axes"], names: tuple[str, str], power: int = 1
) -> None:
    """Test loss, one curve per value of a parameter, against K and against K times a power of it.

    Args:
        rows: as of `sweep.gained`, of every value and K, all else usual.
        column: the parameter.
        axes: two; their zero is the pretrained model.
        names: of the parameter, and of the right axis.
        power: 1 or −1.
    """
    for ax, factor in zip(axes, (0, power), strict=True):
        curves(rows, column, ax, names[0], factor)
    axes[0].set(ylabel=GAINED)
    axes[1].set(xscale="log", xlabel=names[1])


def curves(rows: pd.DataFrame, column: str, ax: "Axes", name: str, power: int = 0) -> None:
    """Test loss, one curve per value of a parameter, against K times a power of the value.

    Args:
        rows: as for `two_clocks`.
        column: the parameter.
        ax: where to draw.
        name: of the parameter.
        power: 0 for K itself, else 1 or −1.
    """
    for shade, (_, own) in zip(SHADES, rows.groupby(column), strict=False):
        chosen = float(own[column].iloc[0])
        curve = sweep.curve(own, "steps", "loss")
        moved = curve.set_axis(curve.index * chosen**power)
        _bars(moved, ax, f"{name} = {chosen:g}", shade, "o-")
    ax.axhline(0, color="#8c8c8c", lw=1.2, ls="--")
    if not power:
        _axis(ax, sorted(rows["steps"].unique()))
        ax.set(xlabel="steps K")


def method_curves(rows: pd.DataFrame, column: str, value: str, ax: "Axes") -> None:
    """One curve per merging method against a parameter.

    Args:
        rows: with ``method``.
        column: the parameter; its axis is logarithmic, rates in 10⁻⁴.
        value: a column; accuracies are drawn in per cent.
        ax: where to draw.
    """
    for method in rows["method"].unique():
        curve = sweep.curve(rows[rows["method"] == method], column, value)
        _bars(curve, ax, label(method), colour(method), "o-")
    _axis(ax, sorted(rows[column].unique()), TICKS.get(column, 1.0))


def methods_everywhere(rows: pd.DataFrame, axes: Any) -> None:
    """`method_curves` of accuracy against each parameter, all else usual.

    Args:
        rows: as of `sweep.gained`, of several methods on the same groups.
        axes: two by two; the legend stands below them.
    """
    for ax, own in zip(axes.flat, sweep.sweeps(rows), strict=True):
        method_curves(sweep.at(rows, **own), sweep.free(own), "accuracy", ax)
        ax.set(xlabel=_named(own))
    _finished(axes, "points above the pretrained")


LAW_LINES = {
    "printed": ("Lemma 3", "#d55e00", "--"),
    "root": ("√s", "#0072b2", ":"),
    "root_loss": ("√(s f)", "#009e73", "-."),
}


def law_points(tables: Mapping[str, pd.DataFrame], gains: pd.DataFrame, axes: Any) -> None:
    """E_G against each parameter, and the curves of the laws.

    Args:
        tables: from `laws.beside_theory`.
        gains: the averages that these were made from, as of `sweep.gained`.
        axes: two by two; the legend stands below them.
    """
    for ax, own in zip(axes.flat, sweep.sweeps(gains), strict=True):
        column = sweep.free(own)
        table = tables[column]
        for law, (text, shade, style) in LAW_LINES.items():
            ax.plot(table.index, table[law], style, lw=2, color=shade, label=text)
        _bars(table, ax, "measured", "#000000", "o")
        _axis(ax, list(table.index), TICKS.get(column, 1.0))
        ax.set(xlabel=_named(own))
    axes[0, 0].set_ylim(-0.1, 0.5)
    _finished(axes, "nats")


def _finished(axes: Any, ylabel: str) -> None:
    for ax in axes[:, 0]:
        ax.set_ylabel(ylabel)
    _legend(axes[0, 0])


def _legend(ax: "Axes") -> None:
    """One for the whole figure, below it."""
    handles, names = ax.get_legend_handles_labels()
    ax.figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=10)


def _named(varied: Mapping[str, Any]) -> str:
    column = sweep.free(varied)
    return AXES[column] + f", K = {varied['steps']}" * (column != "steps")


def _bars(curve: pd.DataFrame, ax: "Axes", text: str, shade: str, style: str) -> None:
    bars: dict[str, Any] = {"fmt": style, "color": shade, "capsize": 3, "label": text, "ms": 5}
    ax.errorbar(curve.index, curve["mean"], curve["half_width"], **bars)


def _axis(ax: "Axes", values: Sequence[float], unit: float = 1.0) -> None:
    ax.set(xscale="log")
    ax.set_xticks(values, labels=[f"{value / unit:g}" for value in values])
    ax.minorticks_off()
