"""The figures of chapter 50: what a network keeps when it is grown, and when copies part."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from mergebook.lab.statistics import over_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAMILIES = {"MLP": ("#0072b2", "o"), "ResNet": ("#d55e00", "s"), "GPT": ("#009e73", "^")}
STARTS = {
    "copies": ("#000000", "o"),
    "copies with noise": ("#e69f00", "s"),
    "mean padding": ("#0072b2", "^"),
    "zero padding": ("#d55e00", "D"),
}
LOWEST = -1.0
MODES = {  # a start of width, learned or not
    ("svd_random", "grown"): ("random factors", "#8c8c8c", "x"),
    ("", "grown"): ("as grown", "#e69f00", "s"),
    ("", "alone"): ("learned", "#0072b2", "o"),
}


def kept(table: pd.DataFrame, ax: "Axes") -> None:
    """The share kept by every scheme, a mark for each family; below `LOWEST` it is drawn there."""
    schemes = list(dict.fromkeys(table["scheme"]))
    for shift, (family, (shade, mark)) in zip((-0.2, 0, 0.2), FAMILIES.items(), strict=True):
        rows = table[table["family"] == family]
        places = [schemes.index(scheme) + shift for scheme in rows["scheme"]]
        ax.plot(places, rows["kept"].clip(LOWEST), mark, color=shade, label=family)
    ax.axhline(1, color="#8c8c8c", lw=1, ls=":")
    ax.axhline(0, color="#8c8c8c", lw=1, ls=":")
    ax.set_xticks(range(len(schemes)), [scheme.replace("_", "\n") for scheme in schemes])
    # A shared axis keeps the room that another panel needs.
    top = max(1.5, ax.get_ylim()[1], 1.08 * float(table["kept"].max()))
    ax.set(xlim=(-0.5, len(schemes) - 0.5), ylim=(LOWEST - 0.1, top))


def parting(table: pd.DataFrame, axes: "Sequence[Axes]") -> None:
    """Rank of the stream and gain over the source against steps, with 95 % intervals over seeds."""
    words = {"rank": "rank of the stream", "gain": "gain over the source, nats"}
    for ax, (column, text) in zip(axes, words.items(), strict=True):
        for start, (shade, mark) in STARTS.items():
            found = over_seeds(table[table["start"] == start], "step", column)
            middle, half = found["mean"], found["half_width"]
            ax.plot(middle.index, middle, f"{mark}-", color=shade, ms=4, label=start)
            ax.fill_between(middle.index, middle - half, middle + half, color=shade, alpha=0.15)
        ax.set(xlabel="steps of training", ylabel=text)
    axes[0].set_ylim(0, None)


def learning(starts: pd.DataFrame, trained: pd.DataFrame, axes: "Sequence[Axes]") -> None:
    """Shares kept before and after learning, and what learning gains, with 95 % intervals."""
    keys = ["family", "grown", "width", "depth"]
    gains = over_seeds(trained, keys, "gain")
    for place, key in enumerate(gains.index):
        _, _, width, depth = key
        for shift, ((other, mode), (text, shade, mark)) in zip(
            (0.2, 0, -0.2), MODES.items(), strict=True
        ):
            wanted = dict(
                zip([*keys, "mode"], (*key[:2], other or width, depth, mode), strict=True)
            )
            rows = starts[(starts[list(wanted)] == pd.Series(wanted)).all(axis=1)]
            if rows.empty or (other and "svd" not in width):
                continue
            middle, half = over_seeds(rows, keys, "kept").iloc[0]
            label = text if place == 1 else None  # the first that begins by singular vectors
            low, x, high = (max(end, LOWEST) for end in (middle - half, middle, middle + half))
            bar = [[x - low], [high - x]]
            axes[0].errorbar(x, place + shift, xerr=bar, fmt=mark, color=shade, ms=5, label=label)
        middle, half = gains.loc[key]
        axes[1].errorbar(middle, place, xerr=half, fmt="o", color="#0072b2", ms=5)
    names = [
        f"{family}, {grown}: {' + '.join(filter(None, (width, depth)))}"
        for family, grown, width, depth in gains.index
    ]
    for ax, line in zip(axes, (1.0, 0.0), strict=True):
        ax.axvline(line, color="#8c8c8c", lw=1, ls=":")
        ax.set_yticks(range(len(names)), names)
        ax.set_ylim(len(names) - 0.5, -0.5)
    axes[0].set(xlabel="share kept", xlim=(LOWEST - 0.1, None))
    axes[1].set(xlabel="nats below as much training")


def encoders(table: pd.DataFrame, axes: "Sequence[Axes]") -> None:
    """Accuracy of grown encoders, and how alike their similarities are, with 95 % intervals."""
    for ax, column in zip(axes, ("accuracy", "correlation"), strict=True):
        rows = over_seeds(table, "way", column)
        places = range(len(rows))
        ax.errorbar(rows["mean"], places, xerr=rows["half_width"], fmt="o", color="#0072b2", ms=5)
        ax.axvline(rows["mean"]["source"], color="#8c8c8c", lw=1, ls=":")
        ax.set_yticks(places, rows.index)
        ax.set_ylim(len(rows) - 0.5, -0.5)
    axes[0].set(xlabel="accuracy, mean over tasks", xlim=(0, 1))
    axes[1].set(xlabel="correlation of all cosines")
