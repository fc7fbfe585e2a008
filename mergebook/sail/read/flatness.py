"""Which curves over γ are flat, so that their lowest point says nothing."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mergebook.lab.statistics import interval


def flat(curves: pd.DataFrame, keys: Sequence[str], column: str = "judge") -> "pd.Series[bool]":
    """Whether a curve's range is below what seeds differ by, in each cell."""
    columns = ["seed", "gamma", column]
    rows = curves.groupby(list(keys))[columns]
    found: pd.Series[bool] = rows.apply(
        lambda part: _is_flat(part.pivot(index="seed", columns="gamma", values=column).to_numpy())
    )
    return found


def _is_flat(losses: np.ndarray) -> bool:
    """Of the losses of one cell, ``(seeds, weights)``."""
    others = losses.sum(axis=0) - losses
    seeds = np.arange(len(losses))
    ranges = losses[seeds, others.argmax(axis=1)] - losses[seeds, others.argmin(axis=1)]
    middle, half = interval(ranges.tolist())
    return middle - half <= 0
