"""What the chapters on SAIL compute; modules by chapter."""

from collections.abc import Callable, Mapping

import pandas as pd


def stacked(parts: Mapping[str, pd.DataFrame], name: str) -> pd.DataFrame:
    """Tables one below the other, told apart by a further column of this name."""
    named = [part.assign(**{name: key}) for key, part in parts.items()]
    return pd.concat(named, ignore_index=True)


def by_seed(table: pd.DataFrame, statistic: Callable[[pd.DataFrame], float]) -> pd.Series:
    """A number from the rows of each seed."""
    numbers = {seed: statistic(rows) for seed, rows in table.groupby("seed")}
    return pd.Series(numbers).rename_axis("seed")
