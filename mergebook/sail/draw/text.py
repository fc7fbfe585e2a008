"""The figures of the chapter on SAIL in text: maps of blocks, and curves over γ."""

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import Tensor

from mergebook.lab.statistics import interval, over_seeds
from mergebook.sail.read.text import BATCH, EXAMPLES, paper_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHADES = ("#0072b2", "#e69f00", "#009e73")
STARTS = {"shared": ("#0072b2", "o"), "own": ("#d55e00", "s")}
MATCHED = {"re-basin": ("#009e73", "^")}
MIXED = {"texts": "two texts", "thirds": "thirds of one"}
RIVALS = {"nearest source": "#009e73", "uniform": "#e69f00", "best": "#8c8c8c"}
STEPS = ("#8c8c8c", "#56b4e9", "#0072b2", "#d55e00")
FORMULAS = {"gamma": ("Eq. 11", "#0072b2"), "printed": ("as printed", "#d55e00")}
TOKENS = {"characters": "o", "byte pairs": "s"}
REPORTED = -0.1244  # γ* of section 4.4


def map_blocks(places: Tensor, parts: Mapping[str, Tensor], ax: "Axes") -> None:
    """Blocks on a plane, a shade for each part."""
    for (name, rows), shade in zip(parts.items(), SHADES, strict=False):
        ax.plot(*places[rows].T, ".", color=shade, ms=5, label=name)
    ax.set(xticks=[], yticks=[])


def separations(table: pd.DataFrame, ax: "Axes") -> None:
    """AUC of parts, and of random ones beside them, with intervals over seeds."""
    names = [*table["parts"].unique()]
    looks = {"these parts": ("#d55e00", "o"), "random parts": ("#8c8c8c", "s")}
    for label, (shade, mark) in looks.items():
        dealt = table["split"] == "random"
        rows = over_seeds(table[dealt if mark == "s" else ~dealt], "parts", "auc")
        bars: dict[str, Any] = {"color": shade, "fmt": mark, "ms": 6, "capsize": 2}
        middle, half = rows.loc[names, "mean"], rows.loc[names, "half_width"]
        ax.errorbar(middle, range(len(names)), xerr=half, label=label, **bars)
    ax.axvline(0.5, color="black", lw=1, ls=":")
    ax.set_yticks(range(len(names)), names)
    ax.set(xlabel="AUC", xlim=(0.4, 1.05), ylim=(len(names) - 0.5, -0.5))


def weights_of_kernels(table: pd.DataFrame, ax: "Axes") -> None:
    """γ_1 by bandwidth, a colour for each formula, means over seeds; a line is the paper's γ*."""
    factors = sorted(table["factor"].unique())
    for (column, (formula, shade)), (tokens, mark) in product(FORMULAS.items(), TOKENS.items()):
        own = table[table["tokens"] == tokens]
        means = own.groupby(["text", "factor"])[column].mean().reset_index()
        places = means["factor"].map(factors.index) + (0.12 if mark == "s" else -0.12)
        label = f"{formula}, {tokens}"
        ax.plot(means[column], places, mark, color=shade, ms=6, alpha=0.8, label=label)
    ax.axvline(REPORTED, color="black", lw=1.2, ls="--")
    names = [*(f"{factor:g} × median" for factor in factors[:-1]), "nearly linear"]
    ax.set_yticks(range(len(factors)), names)
    ax.set(xlabel="γ, weight of θ₁", xlim=(-1.1, 2.1), ylim=(len(factors) - 0.5, -0.5))


def rates(ax: "Axes", own: float) -> None:
    """The paper's learning rates over the share of a training, and ours; logarithmic."""
    shares = np.linspace(0, 1, 401)
    lone = {f"{name} alone": EXAMPLES[name] for name in ("HellaSwag", "SciQ")}
    cases = {"all six sets": sum(EXAMPLES.values()), **lone}
    for (words, examples), shade in zip(cases.items(), SHADES, strict=True):
        steps = examples // BATCH
        values = [paper_rate(round(share * steps), steps) for share in shares]
        ax.plot(shares, values, color=shade, label=f"paper, {words} ({steps:,} steps)")
    ax.axhline(own, color="black", ls="--", label="ours")
    ax.set(xlabel="share of the training", ylabel="rate", yscale="log", ylim=(1e-6, 1e-2))


def sweep(curves: pd.DataFrame, ax: "Axes") -> None:
    """Loss against γ, a curve for each number of steps, with intervals over seeds."""
    for (step, part), shade in zip(curves.groupby("step"), STEPS, strict=True):
        groups = part.groupby("gamma")["judge"].agg(list)
        bars = [interval(values) for values in groups]
        means, halves = zip(*bars, strict=True)
        ax.errorbar(
            groups.index, means, halves, color=shade, marker="o", ms=3, lw=1.2, label=f"{step}"
        )
    ax.set(xlabel="γ, weight of θ₁")


def weights_of_mixtures(weights: pd.DataFrame, ax: "Axes") -> None:
    """The best γ against a target's share of the first source, with intervals over seeds."""
    own = weights[weights["kind"] == "best"]
    for start, (shade, mark) in {**STARTS, **MATCHED}.items():
        if start not in set(own["start"]):
            continue
        rows = over_seeds(own[own["start"] == start], "share", "gamma")
        bars: dict[str, Any] = {"color": shade, "fmt": f"{mark}-", "ms": 4, "lw": 1.2, "capsize": 2}
        ax.errorbar(rows.index, rows["mean"], rows["half_width"], label=start, **bars)
    ax.plot([0, 1], [0, 1], ":", color="black", label="theorem")
    ax.set(xlabel="share of θ₁'s text", ylabel="γ, weight of θ₁")


def losses_of_mixtures(losses: pd.DataFrame, ax: "Axes") -> None:
    """What other starts have above the theorem's, against the share, with intervals over seeds."""
    wide = losses.pivot(index=["seed", "share"], columns="method", values="loss")
    for method, shade in RIVALS.items():
        above = (wide[method] - wide["theorem"]).rename("loss").reset_index()
        rows = over_seeds(above, "share", "loss")
        bars: dict[str, Any] = {"color": shade, "fmt": "o-", "ms": 4, "lw": 1.2, "capsize": 2}
        ax.errorbar(rows.index, rows["mean"], rows["half_width"], label=method, **bars)
    ax.axhline(0, color="black", lw=1, ls=":")
    ax.set(xlabel="share of θ₁'s text")


def overlaps(table: pd.DataFrame, ax: "Axes") -> None:
    """Asymmetry against the overlap of sources, a line for each with the target, with intervals."""
    looks = {0.0: ("#0072b2", "o"), 0.5: ("#d55e00", "s"), 1.0: ("#000000", "D")}
    for beta, part in table.groupby("beta"):
        shade, mark = looks[float(str(beta))]
        rows = over_seeds(part, "alpha", "asymmetry")
        bars: dict[str, Any] = {"color": shade, "fmt": f"{mark}-", "ms": 4, "lw": 1.2, "capsize": 2}
        ax.errorbar(rows.index, rows["mean"], rows["half_width"], label=f"{beta:g}", **bars)
    ax.set(xlabel="α, overlap of sources")


def crossing(curves: pd.DataFrame, ax: "Axes") -> None:
    """Loss on another text against γ, a curve for each start, with intervals over seeds."""
    for start, (shade, mark) in STARTS.items():
        rows = over_seeds(curves[curves["start"] == start], "gamma", "judge")
        bars: dict[str, Any] = {"color": shade, "fmt": f"{mark}-", "ms": 4, "lw": 1.2, "capsize": 2}
        ax.errorbar(rows.index, rows["mean"], rows["half_width"], label=start, **bars)
    ax.set(xlabel="γ, weight of θ₁")


def ends(table: pd.DataFrame, ax: "Axes") -> None:
    """Final loss of every start above that of the nearest source, at equal cost, with intervals."""
    order = table.groupby("arm")["loss"].mean().sort_values().index.drop("nearest source")
    for shift, (start, (shade, mark)) in zip((0.15, -0.15), STARTS.items(), strict=True):
        wide = table[table["start"] == start].pivot(index="seed", columns="arm", values="loss")
        above = wide.sub(wide["nearest source"], axis=0)
        places = {arm: place for place, arm in enumerate(order) if arm in above}
        measured = [arm for arm in places if above[arm].notna().all()]
        found = [interval(above[arm].tolist()) for arm in measured]
        bars: dict[str, Any] = {"color": shade, "fmt": mark, "ms": 5, "capsize": 2}
        at = [places[arm] + shift for arm in measured]
        middles, halves = zip(*found, strict=True)
        ax.errorbar(middles, at, xerr=halves, label=start, **bars)
    ax.axvline(0, color="black", lw=1, ls=":")
    ax.set_yticks(range(len(order)), order)
    ax.set(xlabel="nats above the nearest source", ylim=(len(order) - 0.5, -0.5))
