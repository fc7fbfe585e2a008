"""A merge's generalisation error beside its bound, from the study `merge_stability`."""

import numpy as np
import pandas as pd

from mergebook.lab.statistics import over_seeds


def bounded(merged: pd.DataFrame) -> pd.DataFrame:
    """E_G of a merge and what bounds make of S, V, L and ∇f at the same merge.

    Args:
        merged: the table of that name from the study `merge_stability`.

    Returns:
        One row per number of steps, means over seeds, in nats: ``error``, E_G on fresh examples
        above that of the pretrained model on the same examples, whose expectation is 0, with its
        95 % ``half_width``; ``root`` √(S·V); ``bound`` √(S·V) + L/2 · S; and ``lemma_1``,
        √S ‖∇f‖ + L/2 · S, the least value over γ of the paper's Lemma 1.
    """
    gap = merged["fresh_loss"] - merged["loss"]
    start = merged[merged["steps"] == 0].assign(gap=gap).set_index("seed")["gap"]
    moved, curved = merged["stability"], merged["smoothness"] / 2 * merged["stability"]
    root = np.sqrt(moved * merged["second_moment"])
    table = merged.assign(
        error=gap - merged["seed"].map(start),
        root=root,
        bound=root + curved,
        lemma_1=np.sqrt(moved * merged["squared"]) + curved,
    )
    table = table[table["steps"] > 0]
    found = over_seeds(table, "steps", "error").rename(columns={"mean": "error"})
    return found.join(table.groupby("steps")[["root", "bound", "lemma_1"]].mean())
