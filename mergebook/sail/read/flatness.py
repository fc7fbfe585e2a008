"""Which curves over γ are flat, so that their lowest point says nothing."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mergebook.lab.statistics import interval


def flat(curves: pd.DataFrame, keys: Sequence[str], column: str = "judge") -> "pd.Series[bool]":
    """Whether a curve's range is below what seeds differ by, in each cell."""

    def is_flat(part: pd.DataFrame) -> bool:
        losses = part.pivot(index="seed", columns="gamma", values=column).to_numpy()
        others, seeds = losses.sum(axis=0) - losses, np.arange(len(losses))
        ranges = losses[seeds, others.argmax(axis=1)] - losses[seeds, others.argmin(axis=1)]
        middle, half = interval(ranges.tolist())
        return middle - half <= 0

    found: pd.Series[bool] = curves.groupby(list(keys))[["seed", "gamma", column]].apply(is_flat)
    return found
