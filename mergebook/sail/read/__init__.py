"""What the chapters on SAIL compute; modules by chapter."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from mergebook.lab.results import load_table
from mergebook.lab.statistics import interval


def stacked(parts: Mapping[str, pd.DataFrame], name: str) -> pd.DataFrame:
    """Tables one below the other, told apart by a further column of this name."""
    named = [part.assign(**{name: key}) for key, part in parts.items()]
    return pd.concat(named, ignore_index=True)


def tables(results: Mapping[str, str], part: str, name: str) -> pd.DataFrame:
    """The same table of several results, `stacked`."""
    return stacked({key: load_table(result, part) for key, result in results.items()}, name)


def by_seed(table: pd.DataFrame, statistic: Callable[[pd.DataFrame], float]) -> pd.Series:
    """A number from the rows of each seed."""
    numbers = {seed: statistic(rows) for seed, rows in table.groupby("seed")}
    return pd.Series(numbers).rename_axis("seed")


def flat(curves: pd.DataFrame, keys: Sequence[str], column: str = "judge") -> "pd.Series[bool]":
    """Whether a curve over γ is flat, its range below what seeds differ by, in each cell."""

    def is_flat(part: pd.DataFrame) -> bool:
        losses = part.pivot(index="seed", columns="gamma", values=column).to_numpy()
        others, seeds = losses.sum(axis=0) - losses, np.arange(len(losses))
        ranges = losses[seeds, others.argmax(axis=1)] - losses[seeds, others.argmin(axis=1)]
        middle, half = interval(ranges.tolist())
        return middle - half <= 0

    return curves.groupby(list(keys))[["seed", "gamma", column]].apply(is_flat)
