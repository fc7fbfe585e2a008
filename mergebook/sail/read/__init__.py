"""What the chapters on SAIL compute; modules by chapter."""

from collections.abc import Callable, Mapping

import pandas as pd

from mergebook.lab.results import load_table


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
