"""Intervals, tests and paired comparisons over repeated seeds."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

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


def plus_minus(mean: float, half_width: float, digits: int) -> str:
    """An interval to read, with so many digits after the point."""
    return f"{mean:.{digits}f} ± {half_width:.{digits}f}"


def written(columns: Mapping[str, pd.DataFrame], digits: int = 1) -> pd.DataFrame:
    """A table to read: "mean ± half width" as text, one column per frame.

    Args:
        columns: name to a frame as of `over_seeds` or `paired`, all of the same rows.
        digits: after the point.
    """
    return pd.DataFrame(
        {
            name: pd.Series(
                [plus_minus(mean, half, digits) for mean, half in frame.to_numpy()],
                index=frame.index,
            )
            for name, frame in columns.items()
        }
    )


def paired_bootstrap(
    table: pd.DataFrame,
    better: str,
    worse: str,
    value: str = "accuracy",
    *,
    draws: int = 10_000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Difference in mean accuracy of two methods, resampled over seeds and tasks together.

    Both methods saw the same seeds and tasks, so the differences are taken first, and rows (seeds)
    and columns (tasks) are then drawn with replacement, independently of each other.

    Args:
        table: columns ``method``, ``seed``, ``task`` and ``value``.
        better: the method expected to be ahead.
        worse: the one it is compared with.
        value: what is compared.
        draws: bootstrap samples.
        seed: of the resampling.

    Returns:
        The mean difference and the ends of its 95 % percentile interval.

    Raises:
        ValueError: if the two were not measured on the same seeds and tasks.
    """
    wide = table.pivot(index=["seed", "task"], columns="method", values=value)
    difference = (wide[better] - wide[worse]).unstack("task")
    if difference.isna().any(axis=None):
        raise ValueError(f"{better} and {worse} were not measured on the same seeds and tasks")
    values = difference.to_numpy()
    low, high = np.quantile(resampled_means(values, draws=draws, seed=seed), [0.025, 0.975])
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
    ends = [paired_bootstrap(table, *pair, value)[1:] for pair in pairs.values()]
    return rows.assign(low=[low for low, _ in ends], high=[high for _, high in ends])


def written_both(rows: pd.DataFrame, digits: int = 1) -> pd.DataFrame:
    """`both_intervals` as text in two columns, to read."""
    texts = {
        "difference, over seeds": [
            plus_minus(mean, half, digits) for mean, half in rows[["mean", "half_width"]].to_numpy()
        ],
        "over seeds and tasks": [
            f"[{low:.{digits}f}, {high:.{digits}f}]"
            for low, high in rows[["low", "high"]].to_numpy()
        ],
    }
    return pd.DataFrame(texts, index=rows.index)


@lru_cache(maxsize=64)
def resampling(
    rows: int, columns: int, draws: int = 10_000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """How often each row, and each column, is drawn, as shares that sum to one in every draw.

    Returns:
        Shapes ``(draws, rows)`` and ``(draws, columns)``; not to be written to.
    """
    generator = np.random.default_rng(seed)
    shares = []
    for count in (rows, columns):
        drawn = generator.integers(count, size=(draws, count))
        flat = drawn + count * np.arange(draws)[:, None]
        counts = np.bincount(flat.ravel(), minlength=draws * count)
        shares.append(counts.reshape(draws, count) / count)
    return shares[0], shares[1]


def resampled_means(values: np.ndarray, *, draws: int = 10_000, seed: int = 0) -> np.ndarray:
    """Means of a table whose rows and columns are drawn with replacement, independently.

    This is the bootstrap for crossed factors (Owen, 2007, "The pigeonhole bootstrap"), whose
    variance is on the safe side.

    Args:
        values: one row per seed; one column per task, or shape ``(seeds,)``.
        draws: how many.
        seed: of the resampling.

    Returns:
        Shape ``(draws,)``.
    """
    table = values.reshape(len(values), -1)
    rows, columns = resampling(*table.shape, draws, seed)
    return np.asarray(((rows @ table) * columns).sum(1))


def pitman_morgan(
    first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray, level: float = 0.95
) -> tuple[float, float, float, float]:
    """Compares the spread of two paired samples: the log of the ratio of standard deviations.

    The variances are equal just where sum and difference of the pairs are uncorrelated (Pitman and
    Morgan, 1939); the interval holds the ratios that this test does not reject.

    Args:
        first: of each repetition.
        second: of the same ones.
        level: of confidence.

    Returns:
        The natural logarithm of the ratio of the first standard deviation to the second, the ends
        of its interval, and the two-sided p-value.

    Raises:
        ValueError: for fewer than three pairs, or values without spread.
    """
    x, y = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        raise ValueError(f"{len(x)} pairs, or no spread: their variances cannot be compared")
    freedom = len(x) - 2
    ratio = float(np.log(x.std(ddof=1) / y.std(ddof=1)))
    correlation = np.corrcoef(x, y)[0, 1]
    quantile = stats.t.ppf((1 + level) / 2, freedom)
    half = float(np.arccosh(1 + 2 * (1 - correlation**2) * quantile**2 / freedom)) / 2
    p = float(stats.pearsonr(x + y, x - y).pvalue)
    return ratio, ratio - half, ratio + half, p


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: below 0.05 where a family of tests at 5 % rejects.

    The smallest of m is multiplied by m, the next by m − 1, and so on; none falls below the one
    before it.
    """
    adjusted = np.ones(len(p_values))
    largest = 0.0
    for rank, i in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return [float(p) for p in adjusted]
