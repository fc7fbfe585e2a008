"""What the chapters on FW-Merging show: differences with two intervals, shares, pools of experts.

Every difference has two 95 % intervals. The one is Student's over seeds, for these tasks; the other
is a bootstrap over seeds and tasks, for tasks like these. Tables are rows of ``seed``, ``method``,
``task`` and what is compared, as `mergelib.studies.frank_wolfe` writes them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mergelib.plots import label
from mergelib.records.results import load_table
from mergelib.records.statistics import interval, over_seeds, paired, paired_bootstrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Pairs = Mapping[str, tuple[str, str]]

FREE = ("pretrained", "average", "task_arithmetic", "cart")
UNLABELLED = ("fisher", "regmean", "adamerging", "concrete", "surgery", "surgery+cart")
SHADES = {
    "no data": "#8c8c8c",
    "unlabelled": "#0072b2",
    "labelled": "#d55e00",
    "experts": "#000000",
}
LONG = ("concrete, long", "task_arithmetic, masked")  # of the long run of Concrete
NAMES = {"surgery+cart": "Surgery + CART", "labels": "λ on CART, all labels"}
PARTS = {"cart": "CART", "adamerging": "AdaMerging", "frank_wolfe": "FW", "surgery": "Surgery"}

# How a pool's methods are drawn: name, colour, marker and line.
POOLED = {
    "frank_wolfe, labels": ("FW, labels", "#d55e00", "o-"),
    "frank_wolfe": ("FW, entropy", "#d55e00", "o--"),
    "adamerging": ("AdaMerging", "#009e73", "s-"),
    "cart": ("CART", "#a06a00", "^-"),
    "ties": ("TIES", "#e69f00", "v-"),
    "task_arithmetic": ("task arithmetic", "#0072b2", "D-"),
    "average": ("average", "#56b4e9", "x-"),
}
SUITES = {"vision20": "photographs and scans", "glyphs20": "rendered signs"}

# Differences of `vision8-procedures` that the chapter speaks of: name to the two methods.
RIVALS: dict[str, tuple[str, str]] = {
    "Fisher − average": ("fisher", "average"),
    "RegMean − average": ("regmean", "average"),
    "FW − average": ("frank_wolfe soft, by layer", "average"),
    "CART − FW": ("cart", "frank_wolfe soft, by layer"),
    "AdaMerging − task arithm.": ("adamerging", "task_arithmetic"),
    "FW from AdaMerging − AdaMerging": (
        "frank_wolfe soft, by layer, from adamerging",
        "adamerging",
    ),
    "FW from CART − CART": ("frank_wolfe soft, by layer, from cart", "cart"),
    "λ on CART − CART": ("labels", "cart"),
    "λ on CART − FW from CART": ("labels", "frank_wolfe soft, by layer, from cart"),
    "Surgery on CART − CART": ("surgery+cart", "cart"),
    "Concrete − task arithm.": LONG,
}
KINDS: dict[str, tuple[str, str]] = {
    "hard: by layer − by task": ("frank_wolfe hard, by layer", "frank_wolfe hard, by task"),
    "soft: by layer − by task": ("frank_wolfe soft, by layer", "frank_wolfe soft, by task"),
    "by task: soft − hard": ("frank_wolfe soft, by task", "frank_wolfe hard, by task"),
    "by layer: soft − hard": ("frank_wolfe soft, by layer", "frank_wolfe hard, by layer"),
    "paper's pairing: soft − hard": (
        "frank_wolfe soft, by task",
        "frank_wolfe hard, by layer, from adamerging",
    ),
    "unconstrained − task arithm.": (
        "frank_wolfe soft, by task, unconstrained",
        "task_arithmetic",
    ),
}


def short(method: str) -> str:
    """A procedure's name as figures write it, e.g. "FW soft, by layer, from CART"."""
    if method in NAMES:
        return NAMES[method]
    base, *rest = method.split(", ")
    name = ", ".join([label(base), *rest])
    for plain, written in PARTS.items():
        name = name.replace(plain.replace("_", " "), written)
    return name


def group(method: str) -> str:
    """What data a procedure looks at, a key of `SHADES`."""
    if method == "individual":
        return "experts"
    return "no data" if method in FREE else "unlabelled" if method in UNLABELLED else "labelled"


def differences(
    table: pd.DataFrame, pairs: Pairs, value: str = "accuracy", scale: float = 100.0
) -> pd.DataFrame:
    """Mean differences of pairs of methods, each with both of its intervals.

    Args:
        table: rows of ``seed``, ``method``, ``task`` and ``value``.
        pairs: name of a difference to the method it is of, and the one taken from it.
        value: what is compared.
        scale: of the differences, by default from shares to points.

    Returns:
        Columns ``mean``, ``low`` and ``high`` over seeds, ``wide_low`` and ``wide_high`` over seeds
        and tasks; one row per pair.

    Raises:
        ValueError: methods that were not measured on the same seeds and tasks.
    """
    renamed = table.assign(accuracy=table[value])
    rows = {}
    for name, (better, worse) in pairs.items():
        mean, half = paired(renamed, {name: (better, worse)}).iloc[0]
        _, low, high = paired_bootstrap(renamed, better, worse)
        rows[name] = [scale * each for each in (mean, mean - half, mean + half, low, high)]
    columns = ["mean", "low", "high", "wide_low", "wide_high"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def written_intervals(table: pd.DataFrame, digits: int = 1) -> pd.DataFrame:
    """A table of `differences` to read: the difference and its two intervals as text."""

    def text(low: str, high: str) -> list[str]:
        return [
            f"[{a:.{digits}f}, {b:.{digits}f}]"
            for a, b in zip(table[low], table[high], strict=True)
        ]

    return pd.DataFrame(
        {
            "difference": [f"{mean:.{digits}f}" for mean in table["mean"]],
            "over seeds": text("low", "high"),
            "seeds and tasks": text("wide_low", "wide_high"),
        },
        index=table.index,
    )


def forest(table: pd.DataFrame, ax: "Axes", xlabel: str = "difference, points") -> None:
    """Draw `differences`: thick over seeds, thin over seeds and tasks, the wide ends written."""
    rows = np.arange(len(table))[::-1]
    ax.axvline(0, color="black", lw=1)
    ax.hlines(rows, table["wide_low"], table["wide_high"], color="#0072b2", lw=1.5)
    ax.hlines(rows, table["low"], table["high"], color="#0072b2", lw=6, alpha=0.55)
    ax.plot(table["mean"], rows, "o", color="black", ms=6)
    edge = table["wide_high"].max()
    for row, (_, each) in zip(rows, table.iterrows(), strict=True):
        ends = f"{each['mean']:.2f} [{each['wide_low']:.2f}, {each['wide_high']:.2f}]"
        ax.text(1.02, row, ends, transform=ax.get_yaxis_transform(), va="center", fontsize=10)
    ax.set(yticks=rows, yticklabels=list(table.index), xlabel=xlabel, xlim=(None, edge * 1.05))
    ax.grid(axis="y", visible=False)


def procedures_table() -> pd.DataFrame:
    """The test rows of ``vision8-procedures``, and three of other studies on the same experts.

    These are ``labels``, one coefficient per expert and matrix on CART, learned by cross-entropy on
    the whole training split at the better of two rates (``vision8-coefficients``); and
    ``concrete, long``, 2,000 steps on test inputs, with the ``task_arithmetic, masked`` that it
    starts from (``vision8-concrete``).
    """
    learned = load_table("vision8-coefficients").query("method == 'cross_entropy'")
    best = learned.groupby("rate")["accuracy"].mean().idxmax()
    labels = learned[learned["rate"] == best].assign(method="labels")
    names = dict(zip(("concrete", "task_arithmetic"), LONG, strict=True))
    masked = load_table("vision8-concrete").replace({"method": names})
    return pd.concat([load_table("vision8-procedures"), labels, masked], ignore_index=True)


def procedure_dots(table: pd.DataFrame, seconds: "pd.Series[float]", ax: "Axes") -> None:
    """One row per procedure, from the lowest mean accuracy up, with its interval over seeds.

    Args:
        table: rows of ``seed``, ``method``, ``task`` and ``accuracy``.
        seconds: of the methods whose cost is to be written, by name.
        ax: where to draw.
    """
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
    """Accuracy in per cent against labelled examples a task; lines for what needs none, or all.

    Args:
        table: the test rows of ``vision8-calibration``.
        ax: where to draw.
    """
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
    """The loss and the gap of Frank-Wolfe's four kinds over their steps, means over the seeds.

    Args:
        history: rows of ``seed``, ``method``, ``step``, ``loss`` and ``gap``.
        axes: two, for loss and gap. A walk that stopped early stays where it is.
    """
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


def block_shares(coefficients: pd.DataFrame) -> pd.DataFrame:
    """Coefficients of a walk, averaged over the tensors of every block: one column per block.

    Args:
        coefficients: one column per tensor, whose name begins with its block's, as "blocks.0." or
            "head.".
    """
    names = [str(name).split(".") for name in coefficients]
    blocks = [".".join(parts[: 2 if parts[0] == "blocks" else 1]) for parts in names]
    return coefficients.T.groupby(blocks, sort=False).mean().T


def start_shares(history: pd.DataFrame) -> pd.DataFrame:
    """What is left of the start after every walk: the product of what its steps left.

    By whole models that is the start's coefficient; by layer a step's part is a mean over tensors,
    and so the product is near the mean coefficient, not equal to it.

    Args:
        history: rows of ``seed``, ``method`` and ``moved``, one minus what a step leaves.

    Returns:
        One row per method, one column per seed.
    """
    left = history.assign(left=1 - history["moved"])
    return left.groupby(["method", "seed"], sort=False)["left"].prod().unstack("seed")


def pools(study: str) -> pd.DataFrame:
    """Mean accuracy in per cent of ``irrelevant`` or ``relevant`` pools, one column per seed.

    Rows are of suite, method and ``count``, the experts that joined or are there.
    """
    parts = {suite: load_table(f"{suite}-{study}") for suite in SUITES}
    table = pd.concat(parts, names=["suite"]).reset_index("suite")
    means = 100 * table.groupby(["suite", "method", "count", "seed"])["accuracy"].mean()
    return means.unstack("seed")


def pool_ends(study: str) -> pd.DataFrame:
    """Accuracy with the smallest and the largest pool, as text: one row per method."""
    wide = pools(study).mean(axis=1)
    ends = [wide.groupby(["suite", "method"]).nth(place).droplevel("count") for place in (0, -1)]
    text = pd.Series(
        [f"{few:.1f} → {many:.1f}" for few, many in zip(*ends, strict=True)], index=ends[0].index
    )
    table = text.unstack("suite")[list(SUITES)]
    order = [method for method in POOLED if method in table.index]
    names = {method: text for method, (text, _, _) in POOLED.items()}
    return table.loc[order].rename(index=names, columns=SUITES).rename_axis(None, axis=1)


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


def pool_differences(study: str, better: str, worse: Sequence[str]) -> pd.DataFrame:
    """`differences` of a method from others in the largest pool: rows of suite and other method."""
    parts = {}
    for suite in SUITES:
        table = load_table(f"{suite}-{study}")
        largest = table[table["count"] == table["count"].max()]
        names = {f"− {POOLED[other][0]}": (better, other) for other in worse}
        parts[suite] = differences(largest, names)
    return pd.concat(parts)


def entropy_gains() -> pd.DataFrame:
    """Frank-Wolfe by entropy on the pool of four, less the pretrained model: points.

    Returns:
        Rows of suite and seed, one column for each of the four targets in order; NaN for those of
        the other suite.
    """
    gained = {}
    for suite in SUITES:
        before = load_table(f"{suite}-baselines").query("method == 'pretrained'")
        after = load_table(f"{suite}-irrelevant").query("method == 'frank_wolfe' and count == 0")
        values = [each.set_index(["seed", "task"])["accuracy"] for each in (after, before)]
        gained[suite] = (100 * (values[0] - values[1]).dropna()).unstack("task")
    return pd.concat(gained, names=["suite"])


def text_bits() -> pd.DataFrame:
    """Bits a character of ``text4``: procedures, and data-free methods at their best settings.

    Methods of ``text4-baselines``, searched on validation data, are named "…, tuned".
    """
    tuned = load_table("text4-baselines").query("method not in ['individual', 'pretrained']")
    tuned = tuned.assign(method=tuned["method"] + ", tuned")
    columns = ["seed", "task", "method", "loss"]
    table = pd.concat([load_table("text4-language")[columns], tuned[columns]], ignore_index=True)
    return table.assign(bits=table["loss"] / math.log(2))


def best_tuned(table: pd.DataFrame) -> str:
    """The tuned data-free method of `text_bits` that needs the fewest bits."""
    means = over_seeds(table, "method", "bits")["mean"]
    return str(means[[name for name in means.index if name.endswith(", tuned")]].idxmin())
