"""What several figures of SAIL's chapters draw: starts of larger networks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mergebook import plots
from mergebook.lab.statistics import over_seeds
from mergebook.sail.read.arms import speed_ups
from mergebook.sail.read.reached import bounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARMS = {
    "scratch": ("scratch", plots.BLACK, ":"),
    "nearest source": ("nearest source alone", plots.ORANGE, "--"),
    "farther source": ("farther source alone", plots.GREEN, "-."),
    "SAIL": ("SAIL", plots.BLUE, "-"),
    "LiGO": ("LiGO", plots.PINK, "-."),
    "random, same scale": ("random weights, grown scale", plots.GREEN, "-."),
    "uniform": ("uniform average", plots.SKY, "--"),
}
PICTURED = ("scratch", "nearest source", "farther source", "SAIL")
MARKS = {"SAIL": "o", "nearest source": "D", "farther source": "s", "uniform": "^"}
STARTS = {"shared": ("shared", plots.BLUE, "o"), "own": ("own", plots.VERMILION, "s")}
COUNTED = {
    "A": ("A: retraining alone", plots.SKY, "o"),
    "B": ("B: and what the start takes", plots.BLUE, "D"),
    "C": ("C: and the sources", plots.VERMILION, "s"),
}
PERPLEXITIES = (8, 10, 12, 15, 20, 30)  # that are written on an axis


def curves(
    table: pd.DataFrame, ax: "Axes", arms: Sequence[str] = PICTURED, value: str = "judge"
) -> None:
    """Loss against steps from each start that was measured, with 95 % intervals over seeds."""
    looks = {arm: ARMS[arm] for arm in arms}
    plots.series(ax, table, x="step", y=value, by="arm", looks=looks, band=True, lw=1.6)
    ax.set(xlabel="steps")


def perplexities(table: pd.DataFrame, ax: "Axes", arms: Sequence[str], title: str) -> None:
    """`curves` of the exponential of the loss, on a logarithmic axis."""
    curves(table.assign(perplexity=np.exp(table["judge"])), ax, arms, "perplexity")
    plots.log_axis(ax, PERPLEXITIES, upright=True)
    ax.set(title=title, ylim=(7, 40))


def by_target(
    table: pd.DataFrame, names: Mapping[tuple[str, str], str], arms: Sequence[str], ax: "Axes"
) -> None:
    """log₂ speed-ups over scratch (account A, hard goal), by target and size; open ones are bounds.

    ``names`` maps target and size to what is written below, in order.
    """
    words = [*names.values()]
    for shift, arm in zip((-0.2, 0.0, 0.2), arms, strict=True):
        rows = speed_ups(table, "hard", "A", arm)
        rows = rows.assign(
            place=[names[pair] for pair in zip(rows.target, rows["size"], strict=True)]
        )
        found, (text, shade, _) = over_seeds(rows, "place", "speed"), ARMS[arm]
        bound = bounded(rows, "place")[found.index]
        ax.plot([], [], MARKS[arm], color=shade, ms=5, label=text)
        for fill, part in ((shade, found[~bound]), ("white", found[bound])):
            look = ("", shade, MARKS[arm])
            plots.dots(ax, part, look, words, shift=shift, upright=True, mfc=fill, ms=5, capsize=2)
    ax.axhline(0, color=plots.BLACK, lw=1)
    ax.set_xticks(range(len(words)), words, rotation=40, ha="right", fontsize=10)
    ax.set_ylabel("log₂ speed-up")


def accounts(table: pd.DataFrame, ax: "Axes") -> None:
    """log₂ speed-ups over scratch by account, an arm below the other, as `read.arms.accounts`."""
    style: dict[str, Any] = {"by": "account", "looks": COUNTED, "ms": 4, "capsize": 2}
    plots.intervals(ax, table, value="speed", at="arm", **style)
    ax.axvline(0, color=plots.BLACK, lw=1)
    ax.set(xlabel="log₂ speed-up over scratch")


def ends(table: pd.DataFrame, ax: "Axes") -> None:
    """Final loss of every start above that of the nearest source, at equal cost.

    Starts that were not measured in all seeds are left out.
    """
    order = table.groupby("arm")["loss"].mean().sort_values().index.drop("nearest source")
    wide = table.pivot(index=["start", "seed"], columns="arm", values="loss")
    above = wide.sub(wide["nearest source"], axis=0)
    above = above.where(above.notna().groupby("start").transform("all")).reset_index()
    rows = above.melt(["start", "seed"], [*order], value_name="above").dropna()
    style: dict[str, Any] = {"by": "start", "looks": STARTS, "names": [*order]}
    style |= {"gap": -0.3, "ms": 5, "capsize": 2}
    plots.intervals(ax, rows, value="above", at="arm", **style)
    ax.axvline(0, color=plots.BLACK, lw=1, ls=":")
    ax.set(xlabel="nats above the nearest source")
