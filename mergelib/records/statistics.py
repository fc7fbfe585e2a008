"""Intervals and paired comparisons over repeated seeds."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Mean and half width of its Student-t confidence interval over independent repetitions.

    Raises:
        ValueError: for fewer than two values, which carry no spread.
    """
    if len(values) < 2:
        raise ValueError(f"an interval needs at least 2 repetitions, got {len(values)}")
    error = stats.sem(values)
    return float(np.mean(values)), float(error * stats.t.ppf((1 + level) / 2, len(values) - 1))


def over_seeds(table: pd.DataFrame, by: str | list[str], value: str = "accuracy") -> pd.DataFrame:
    """The `interval` over seeds of a column's mean in every seed.

    Args:
        table: columns ``seed``, ``by`` and ``value``; rows of other columns, as the task, are
            averaged.
        by: what tells the groups.
        value: what is averaged.

    Returns:
        Columns ``mean`` and ``half_width``, indexed by group in order of appearance.
    """
    keys = [by] if isinstance(by, str) else by
    per_seed = table.groupby([*keys, "seed"], sort=False)[value].mean()
    groups = per_seed.groupby(by, sort=False).agg(list)
    columns = ["mean", "half_width"]
    return pd.DataFrame(
        [interval(values) for values in groups], index=groups.index, columns=columns
    )


def paired(
    table: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], value: str = "accuracy"
) -> pd.DataFrame:
    """The `interval` over seeds of differences between two methods that saw the same seeds.

    Args:
        table: columns ``method``, ``seed`` and ``value``, as for `over_seeds`.
        pairs: name of the difference to the method it is of, and the one taken from it.
        value: what is compared.

    Returns:
        Columns ``mean`` and ``half_width``, one row per pair.
    """
    means = table.groupby(["method", "seed"])[value].mean()
    rows = {name: interval((means[a] - means[b]).tolist()) for name, (a, b) in pairs.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "half_width"])


def written(columns: Mapping[str, pd.DataFrame], digits: int = 1) -> pd.DataFrame:
    """A table to read: "mean ± half width" as text, one column per frame.

    Args:
        columns: name to a frame as of `over_seeds` or `paired`, all of the same rows.
        digits: after the point.
    """
    return pd.DataFrame(
        {
            name: pd.Series(
                [f"{mean:.{digits}f} ± {half:.{digits}f}" for mean, half in frame.to_numpy()],
                index=frame.index,
            )
            for name, frame in columns.items()
        }
    )


def paired_bootstrap(
    table: pd.DataFrame, better: str, worse: str, *, draws: int = 10_000, seed: int = 0
) -> tuple[float, float, float]:
    """Difference in mean accuracy of two methods, resampled over seeds and tasks together.

    Both methods saw the same seeds and tasks, so the differences are taken first, and rows (seeds)
    and columns (tasks) are then drawn with replacement, independently of each other.

    Args:
        table: columns ``method``, ``seed``, ``task``, ``accuracy``.
        better: the method expected to be ahead.
        worse: the one it is compared with.
        draws: bootstrap samples.
        seed: of the resampling.

    Returns:
        The mean difference and the ends of its 95 % percentile interval.

    Raises:
        ValueError: if the two were not measured on the same seeds and tasks.
    """
    wide = table.pivot(index=["seed", "task"], columns="method", values="accuracy")
    difference = (wide[better] - wide[worse]).unstack("task")
    if difference.isna().any(axis=None):
        raise ValueError(f"{better} and {worse} were not measured on the same seeds and tasks")
    values = difference.to_numpy()
    generator = np.random.default_rng(seed)
    rows = generator.integers(values.shape[0], size=(draws, values.shape[0]))
    columns = generator.integers(values.shape[1], size=(draws, values.shape[1]))
    means = values[rows[:, :, None], columns[:, None, :]].mean((1, 2))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(values.mean()), float(low), float(high)


def both_intervals(
    table: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], value: str = "accuracy"
) -> pd.DataFrame:
    """Paired differences of two methods with both intervals of 95 %, in the unit of ``value``.

    Args:
        table: columns ``method``, ``seed``, ``task`` and ``value``, on the same seeds and tasks.
        pairs: name of the difference to the method it is of, and the one taken from it.
        value: what is compared.

    Returns:
        One row per pair: ``mean``; ``half_width`` of Student's interval over seeds; ``low`` and
        ``high``, the ends of `paired_bootstrap`'s interval over seeds and tasks.
    """
    rows = paired(table, pairs, value)
    columns = ["method", "seed", "task"]
    plain = table[[*columns, value]].rename(columns={value: "accuracy"})
    ends = [paired_bootstrap(plain, better, worse)[1:] for better, worse in pairs.values()]
    return rows.assign(low=[low for low, _ in ends], high=[high for _, high in ends])


def written_both(rows: pd.DataFrame, digits: int = 1) -> pd.DataFrame:
    """`both_intervals` as text in two columns, to read."""
    texts = {
        "difference, over seeds": [
            f"{mean:.{digits}f} ± {half:.{digits}f}"
            for mean, half in rows[["mean", "half_width"]].to_numpy()
        ],
        "over seeds and tasks": [
            f"[{low:.{digits}f}, {high:.{digits}f}]"
            for low, high in rows[["low", "high"]].to_numpy()
        ],
    }
    return pd.DataFrame(texts, index=rows.index)
