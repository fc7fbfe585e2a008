"""The figures of chapter 50: what a network keeps when it is grown, and when copies part."""

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAMILIES = {"MLP": ("#0072b2", "o"), "ResNet": ("#d55e00", "s"), "GPT": ("#009e73", "^")}
STARTS = {
    "copies": ("#000000", "o"),
    "copies with noise": ("#e69f00", "s"),
    "mean padding": ("#0072b2", "^"),
}
LOWEST = -1.0


def kept(table: pd.DataFrame, ax: "Axes") -> None:
    """The share kept by every scheme, a mark for each family; below `LOWEST` it is drawn there.

    Args:
        table: rows of ``family``, ``scheme`` and ``kept``.
        ax: where to draw.
    """
    schemes = list(dict.fromkeys(table["scheme"]))
    for shift, (family, (shade, mark)) in zip((-0.2, 0, 0.2), FAMILIES.items(), strict=True):
        rows = table[table["family"] == family]
        places = [schemes.index(scheme) + shift for scheme in rows["scheme"]]
        ax.plot(places, rows["kept"].clip(LOWEST), mark, color=shade, label=family)
    ax.axhline(1, color="#8c8c8c", lw=1, ls=":")
    ax.axhline(0, color="#8c8c8c", lw=1, ls=":")
    ax.set_xticks(range(len(schemes)), [scheme.replace("_", "\n") for scheme in schemes])
    ax.set(xlim=(-0.5, len(schemes) - 0.5), ylim=(LOWEST - 0.1, 1.5))


def ranks(table: pd.DataFrame, ax: "Axes") -> None:
    """The rank of the stream over steps, a line for each start.

    Args:
        table: rows of ``start``, ``step`` and ``rank``.
        ax: where to draw.
    """
    for start, (shade, mark) in STARTS.items():
        rows = table[table["start"] == start]
        ax.plot(rows["step"], rows["rank"], f"{mark}-", color=shade, label=start)
    ax.set(xlabel="steps of training", ylabel="rank of the stream", ylim=(0, None))
    ax.legend()
