"""The figures of the chapter on SAIL in text: maps of blocks, and curves over γ."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor

from mergelib.records.statistics import interval, over_seeds
from mergelib.studies.papers.sail.clusters import PARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHADES = ("#0072b2", "#e69f00", "#009e73")
STARTS = {"shared": ("#0072b2", "o"), "own": ("#d55e00", "s")}
RIVALS = {"nearest source": "#009e73", "uniform": "#e69f00", "best": "#8c8c8c"}
STEPS = ("#000000", "#56b4e9", "#d55e00")


def map_blocks(places: Tensor, thirds: Sequence[Tensor], ax: "Axes") -> None:
    """Blocks on a plane, a shade for each third.

    Args:
        places: ``(n, 2)``.
        thirds: rows of D_1, D_2 and D_t.
        ax: where to draw.
    """
    for name, rows, shade in zip(PARTS, thirds, SHADES, strict=True):
        ax.plot(*places[rows].T, ".", color=shade, ms=5, label=name)
    ax.set(xticks=[], yticks=[])


def sweep(curves: pd.DataFrame, ax: "Axes") -> None:
    """Loss against γ, a curve for each number of steps, with intervals over seeds.

    Args:
        curves: of one start, rows of ``gamma``, ``step`` and ``judge``.
        ax: where to draw.
    """
    for (step, part), shade in zip(curves.groupby("step"), STEPS, strict=True):
        groups = part.groupby("gamma")["judge"].agg(list)
        bars = [interval(values) for values in groups]
        means, halves = zip(*bars, strict=True)
        ax.errorbar(
            groups.index, means, halves, color=shade, marker="o", ms=3, lw=1.2, label=f"{step}"
        )
    ax.set(xlabel="γ, weight of θ₁")


def weights_of_mixtures(weights: pd.DataFrame, ax: "Axes") -> None:
    """The best γ against a target's share of the first source, with intervals over seeds.

    Args:
        weights: as from `mergelib.studies.analysis.sail.sweeps.weights`.
        ax: where to draw; a dotted line is the theorem.
    """
    own = weights[weights["kind"] == "best"]
    for start, (shade, mark) in STARTS.items():
        rows = over_seeds(own[own["start"] == start], "share", "gamma")
        bars: dict[str, Any] = {"color": shade, "fmt": f"{mark}-", "ms": 4, "lw": 1.2, "capsize": 2}
        ax.errorbar(rows.index, rows["mean"], rows["half_width"], label=start, **bars)
    ax.plot([0, 1], [0, 1], ":", color="black", label="theorem")
    ax.set(xlabel="share of θ₁'s text", ylabel="γ, weight of θ₁")


def losses_of_mixtures(losses: pd.DataFrame, ax: "Axes") -> None:
    """What other starts have above the theorem's, against the share, with intervals over seeds.

    Args:
        losses: of one start, as from `mergelib.studies.analysis.sail.sweeps.mixed`.
        ax: where to draw.
    """
    wide = losses.pivot(index=["seed", "share"], columns="method", values="loss")
    for method, shade in RIVALS.items():
        above = (wide[method] - wide["theorem"]).rename("loss").reset_index()
        rows = over_seeds(above, "share", "loss")
        bars: dict[str, Any] = {"color": shade, "fmt": "o-", "ms": 4, "lw": 1.2, "capsize": 2}
        ax.errorbar(rows.index, rows["mean"], rows["half_width"], label=method, **bars)
    ax.axhline(0, color="black", lw=1, ls=":")
    ax.set(xlabel="share of θ₁'s text")


def overlaps(table: pd.DataFrame, ax: "Axes") -> None:
    """Asymmetry against the overlap of sources, a line for each with the target, with intervals.

    Args:
        table: of one start and step, as from `mergelib.studies.analysis.sail.sweeps.asymmetries`.
        ax: where to draw.
    """
    looks = {0.0: ("#0072b2", "o"), 0.5: ("#d55e00", "s"), 1.0: ("#000000", "D")}
    for beta, part in table.groupby("beta"):
        shade, mark = looks[float(str(beta))]
        rows = over_seeds(part, "alpha", "asymmetry")
        bars: dict[str, Any] = {"color": shade, "fmt": f"{mark}-", "ms": 4, "lw": 1.2, "capsize": 2}
        ax.errorbar(rows.index, rows["mean"], rows["half_width"], label=f"{beta:g}", **bars)
    ax.set(xlabel="α, overlap of sources")


def crossing(curves: pd.DataFrame, ax: "Axes") -> None:
    """Loss on another text against γ, a curve for each start, with intervals over seeds.

    Args:
        curves: of one source and target, rows of ``start``, ``gamma`` and ``judge``.
        ax: where to draw.
    """
    for start, (shade, mark) in STARTS.items():
        rows = over_seeds(curves[curves["start"] == start], "gamma", "judge")
        bars: dict[str, Any] = {"color": shade, "fmt": f"{mark}-", "ms": 4, "lw": 1.2, "capsize": 2}
        ax.errorbar(rows.index, rows["mean"], rows["half_width"], label=start, **bars)
    ax.set(xlabel="γ, weight of θ₁")


def ends(table: pd.DataFrame, ax: "Axes") -> None:
    """Final loss of every start above that of the nearest source, at equal cost, with intervals.

    Args:
        table: of one size, as from `mergelib.studies.analysis.sail.arms.starts`, without scratch.
        ax: where to draw.
    """
    order = table.groupby("arm")["loss"].mean().sort_values().index.drop("nearest source")
    for shift, (start, (shade, mark)) in zip((0.15, -0.15), STARTS.items(), strict=True):
        wide = table[table["start"] == start].pivot(index="seed", columns="arm", values="loss")
        above = wide.sub(wide["nearest source"], axis=0)
        for place, arm in enumerate(order):
            if arm in above:
                middle, half = interval(above[arm].tolist())
                bars: dict[str, Any] = {"color": shade, "fmt": mark, "ms": 5, "capsize": 2}
                label = start if arm == order[-1] else None
                ax.errorbar(middle, place + shift, xerr=half, label=label, **bars)
    ax.axvline(0, color="black", lw=1, ls=":")
    ax.set_yticks(range(len(order)), order)
    ax.set(xlabel="nats above the nearest source", ylim=(len(order) - 0.5, -0.5))
