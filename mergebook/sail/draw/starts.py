"""The figures of chapters 53 and 55: starts of a larger network, by step, target and account."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pandas as pd

from mergebook.lab.statistics import over_seeds
from mergebook.sail.costs import Account
from mergebook.sail.read.arms import speed_ups
from mergebook.sail.read.reached import bounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARMS = {
    "scratch": ("scratch", "#000000", ":"),
    "nearest source": ("nearest source alone", "#e69f00", "--"),
    "farther source": ("farther source alone", "#009e73", "-."),
    "SAIL": ("SAIL", "#0072b2", "-"),
    "LiGO": ("LiGO", "#cc79a7", "-."),
    "random, same scale": ("random weights, grown scale", "#009e73", "-."),
    "uniform": ("uniform average", "#56b4e9", "--"),
}
PERPLEXITIES = (8, 10, 12, 15, 20, 30)  # that are written on an axis
PICTURED = ("scratch", "nearest source", "farther source", "SAIL")
MARKS = {
    "SAIL": ("o", -0.2),
    "nearest source": ("D", 0.0),
    "farther source": ("s", 0.2),
    "uniform": ("^", 0.2),
}


def curves(
    table: pd.DataFrame, ax: "Axes", arms: Sequence[str] = PICTURED, value: str = "judge"
) -> None:
    """Loss against steps from each start that was measured, with 95 % intervals over seeds."""
    for arm in arms:
        text, shade, style = ARMS[arm]
        own = table[table["arm"] == arm]
        if own.empty:
            continue
        rows = over_seeds(own, "step", value).sort_index()
        ax.plot(rows.index, rows["mean"], style, color=shade, lw=1.6, label=text)
        ends = (rows["mean"] - rows["half_width"], rows["mean"] + rows["half_width"])
        ax.fill_between(rows.index, *ends, color=shade, alpha=0.15, lw=0)
    ax.set(xlabel="steps")


def perplexities(table: pd.DataFrame, ax: "Axes", arms: Sequence[str], title: str) -> None:
    """`curves` of the exponential of the loss, on a logarithmic axis."""
    curves(table.assign(perplexity=np.exp(table["judge"])), ax, arms, "perplexity")
    ax.set(title=title, yscale="log", ylim=(7, 40))
    ax.set_yticks(PERPLEXITIES, [*map(str, PERPLEXITIES)])
    ax.minorticks_off()


def by_target(
    table: pd.DataFrame,  # as from `mergebook.sail.read.arms.starts`
    names: Mapping[tuple[str, str], str],  # target and size to what is written below, in order
    arms: Sequence[str],  # names of `MARKS`
    ax: "Axes",  # where to draw
    goal: str = "easy",  # that they reach
) -> None:
    """log₂ speed-ups over scratch side by side (account A), with 95 % intervals over seeds."""
    _by_place({arm: speed_ups(table, goal, "A", arm) for arm in arms}, names, ax)
    ax.set_ylabel("log₂ speed-up")


def _by_place(
    speeds: Mapping[str, pd.DataFrame], names: Mapping[tuple[str, str], str], ax: "Axes"
) -> None:
    places = {value: place for place, value in enumerate(names)}
    for arm, rows in speeds.items():
        (mark, shift), (text, shade, _) = MARKS[arm], ARMS[arm]
        where = zip(rows["target"], rows["size"], strict=True)
        rows = rows.assign(place=[places[pair] for pair in where])
        found = over_seeds(rows, "place", "speed")
        bound = bounded(rows, "place")
        bars: dict[str, Any] = {"color": shade, "fmt": mark, "ms": 5, "capsize": 2}
        ax.plot([], [], mark, color=shade, ms=5, label=text)
        for fill, chosen in ((shade, ~bound), ("white", bound)):
            own = found[chosen[found.index]]
            ax.errorbar(own.index + shift, own["mean"], own["half_width"], mfc=fill, **bars)
    ax.axhline(0, color="#000000", lw=1)
    ax.set_xticks(range(len(names)), [*names.values()], rotation=40, ha="right", fontsize=10)


COUNTED = {  # by account: what it counts, a mark and a shade
    "A": ("retraining alone", "o", "#56b4e9"),
    "B": ("and what the start takes", "D", "#0072b2"),
    "C": ("and the sources", "s", "#d55e00"),
}


def accounts(table: pd.DataFrame, ax: "Axes") -> None:
    """log₂ speed-ups over scratch by account, an arm below the other, with 95 % intervals."""
    names = [*table["arm"].unique()]
    for shift, account in zip((-0.2, 0.0, 0.2), get_args(Account), strict=True):
        text, mark, shade = COUNTED[account]
        found = over_seeds(table[table["account"] == account], "arm", "speed").loc[names]
        at = [place + shift for place in range(len(names))]
        bars: dict[str, Any] = {"color": shade, "fmt": mark, "ms": 4, "capsize": 2}
        ax.errorbar(found["mean"], at, xerr=found["half_width"], label=f"{account}: {text}", **bars)
    ax.axvline(0, color="#000000", lw=1)
    ax.set_yticks(range(len(names)), names)
    ax.set(xlabel="log₂ speed-up over scratch", ylim=(len(names) - 0.5, -0.5))
