"""The figures of chapter 56: rows of pictures, and curves over steps."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor

from mergebook.lab.statistics import over_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARMS = {
    "SiT": ("#000000", "-"),
    "REPA": ("#0072b2", "-"),
    "REPA + J": ("#d55e00", "-"),
    "REPA, grown": ("#009e73", "--"),
}


def rows_of(pictures: Mapping[str, Tensor], ax: "Axes", titles: Sequence[str] = ()) -> None:
    """Pictures side by side, a row for each name."""
    whole = torch.cat([torch.cat([*rows], 2) for rows in pictures.values()], 1)
    ax.imshow((whole.permute(1, 2, 0).clamp(-1, 1) + 1) / 2)
    ax.set_yticks([16 + 32 * place for place in range(len(pictures))], [*pictures])
    ax.set_xticks([16 + 32 * place for place in range(len(titles))], titles)
    ax.tick_params(length=0, labeltop=bool(titles), labelbottom=False)
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)


def over_steps(table: pd.DataFrame, column: str, ax: "Axes") -> None:
    """A quantity against steps, a line for each arm."""
    for arm, (shade, line) in ARMS.items():
        rows = table[table["arm"] == arm]
        ax.plot(rows["step"], rows[column], line, color=shade, label=arm)
    ax.set_xlabel("steps of training")


def nearer(table: pd.DataFrame, ax: "Axes") -> None:
    """How much nearer to real pictures than REPA's the other arms' are, with 95 % intervals."""
    ax.axhline(0, color=ARMS["REPA"][0], lw=1.5)
    others = [arm for arm in ARMS if arm in set(table["arm"]) - {"REPA"}]
    for place, arm in enumerate(others):
        rows = over_seeds(table[table["arm"] == arm], "read", "nearer")
        spots = [place + 0.12 * (turn - 1) for turn in range(len(rows))]
        ax.errorbar(
            spots, rows["mean"], rows["half_width"], fmt="o-", ms=5, color=ARMS[arm][0], capsize=3
        )
    ax.set_xticks(range(len(others)), others)
    ax.set_xlim(-0.4, len(others) - 0.6)


def collapse(table: pd.DataFrame, axes: Sequence["Axes"]) -> None:
    """Loss and spread of alignment alone, for f_P frozen and trained."""
    shades = {"frozen": "#0072b2", "trained": "#d55e00"}
    for ax, column in zip(axes, ("loss", "spread"), strict=True):
        for kind, rows in table.groupby("f_P"):
            ax.plot(rows["step"], rows[column], color=shades[str(kind)], label=f"f_P {kind}")
        ax.set(xlabel="steps of alignment", ylim=(0, None))
