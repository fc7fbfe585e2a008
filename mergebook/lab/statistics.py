"""Intervals, tests and paired comparisons over repeated seeds."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import chdtrc, stdtr, stdtrit  # scipy.stats imports for a second


class Estimate(NamedTuple):
    """An estimate with its standard error and the degrees of freedom of Student's t."""

    value: float
    error: float
    freedom: float

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Both ends of the confidence interval with this level."""
        half = self.error * float(stdtrit(self.freedom, (1 + level) / 2))
        return self.value - half, self.value + half

    def one_sided(self, bound: float) -> tuple[float, float]:
        """P-values of the hypotheses "not above the bound" and "not below it"."""
        distance = (self.value - bound) / self.error
        return float(stdtr(self.freedom, -distance)), float(stdtr(self.freedom, distance))


def crossed(values: np.ndarray) -> Estimate:
    """The mean of a balanced table ``(S, T)`` whose rows and columns are both random samples.

    With mean squares R, C and E of rows, columns and residuals, the variance is (R + C - E) / (S
    T), with Satterthwaite's degrees of freedom. Where R or C is below E, its mean square is left
    out, as in REML; where both are, all three are pooled. With T = 1 it is Student's interval.
    """
    rows, columns = values.shape
    if rows < 2 or not np.isfinite(values).all():
        raise ValueError(
            f"an interval needs a complete table of 2 or more rows, got {values.shape}"
        )
    mean = float(values.mean())
    by_row, by_column = values.mean(1), values.mean(0)
    if columns == 1 or not np.ptp(values):  # nothing varies: an interval of width zero
        return Estimate(mean, float(by_row.std(ddof=1) / np.sqrt(rows)), rows - 1)
    residual = values - by_row[:, None] - by_column + mean
    freedoms = np.array([rows - 1, columns - 1, (rows - 1) * (columns - 1)])
    squares = [columns * ((by_row - mean) ** 2).sum(), rows * ((by_column - mean) ** 2).sum()]
    row, column, rest = np.array([*squares, (residual**2).sum()]) / freedoms
    if row < rest and column < rest:
        variance = float(np.average([row, column, rest], weights=freedoms))
        freedom = float(freedoms.sum())
    elif row < rest or column < rest:
        variance, freedom = (column, columns - 1) if row < rest else (row, rows - 1)
    else:
        variance = row + column - rest
        freedom = variance**2 / float((np.array([row, column, rest]) ** 2 / freedoms).sum())
    return Estimate(mean, float(np.sqrt(variance / values.size)), float(freedom))


def log_ratio_of_spreads(first: np.ndarray, second: np.ndarray) -> Estimate:
    """Log ratio of two paired samples' mean absolute deviations from their medians.

    By the delta method: it rejects 3 to 9 % of true hypotheses, Pitman and Morgan's up to 28 %.
    """
    deviations = [np.abs(np.asarray(side) - np.median(side)) for side in (first, second)]
    means = [float(each.mean()) for each in deviations]
    if len(deviations[0]) < 3 or min(means) == 0:
        raise ValueError(f"{len(deviations[0])} pairs, or a sample without spread, have no ratio")
    influence = deviations[0] / means[0] - deviations[1] / means[1]
    error = influence.std(ddof=1) / np.sqrt(len(influence))
    return Estimate(float(np.log(means[0] / means[1])), float(error), len(first) - 1)


class Pooled(NamedTuple):
    """One effect in several networks, from a random-effects meta-analysis."""

    estimate: Estimate  # mean effect over networks
    between: float  # standard deviation of the effect between networks
    heterogeneity: float  # Cochran's Q
    p: float  # its p-value, of "all networks have the same effect"
    low: float  # ends of the 95 % prediction interval for one more network
    high: float


def pool(estimates: Sequence[Estimate]) -> Pooled:
    """Random effects by DerSimonian and Laird, with the interval of Hartung, Knapp and Sidik."""
    if len(estimates) < 2:
        raise ValueError("a pooled effect needs 2 or more networks")
    values, errors = np.array([(each.value, each.error) for each in estimates]).T
    freedom = len(values) - 1
    weights = errors**-2
    spread = float((weights * (values - np.average(values, weights=weights)) ** 2).sum())
    scale = weights.sum() - (weights**2).sum() / weights.sum()
    between = max(0.0, (spread - freedom) / float(scale))
    weights = 1 / (errors**2 + between)
    mean = float(np.average(values, weights=weights))
    inflation = max(1.0, float((weights * (values - mean) ** 2).sum()) / freedom)
    estimate = Estimate(mean, float(np.sqrt(inflation / weights.sum())), freedom)
    other = Estimate(mean, float(np.hypot(estimate.error, np.sqrt(between))), freedom)
    p = float(chdtrc(freedom, spread))
    return Pooled(estimate, float(np.sqrt(between)), spread, p, *other.interval())


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Mean and half width of its Student-t confidence interval over independent repetitions."""
    if len(values) < 2:
        raise ValueError(f"an interval needs at least 2 repetitions, got {len(values)}")
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(error * stdtrit(len(values) - 1, (1 + level) / 2))


def over_seeds(table: pd.DataFrame, by: str | list[str], value: str = "accuracy") -> pd.DataFrame:
    """The `interval` over seeds, ``mean`` and ``half_width``, of a column's means, by groups."""
    keys = [by] if isinstance(by, str) else by
    per_seed = table.groupby([*keys, "seed"], sort=False)[value].mean()
    groups = per_seed.groupby(by, sort=False).agg(list)
    return pd.DataFrame(map(interval, groups), index=groups.index, columns=["mean", "half_width"])


def paired(
    table: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], value: str = "accuracy"
) -> pd.DataFrame:
    """The `interval` over seeds of one method less another, a row for each named pair of both."""
    means = table.groupby(["method", "seed"])[value].mean()
    rows = {name: interval((means[a] - means[b]).tolist()) for name, (a, b) in pairs.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "half_width"])


def plus_minus(mean: float, half_width: float, digits: int) -> str:
    """Format as 'mean ± half width' with the given number of decimals."""
    return f"{mean:.{digits}f} ± {half_width:.{digits}f}"


def written(columns: Mapping[str, pd.DataFrame], digits: int = 1) -> pd.DataFrame:
    """A table to read: "mean ± half width" of frames of `over_seeds` or `paired`, a column each."""
    texts = {}
    for name, frame in columns.items():
        rows = [plus_minus(mean, half, digits) for mean, half in frame.to_numpy()]
        texts[name] = pd.Series(rows, index=frame.index)
    return pd.DataFrame(texts)


def both_intervals(
    table: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], value: str = "accuracy"
) -> pd.DataFrame:
    """`paired` differences of methods with two 95 % intervals, in the unit of ``value``.

    ``half_width`` is Student's across seeds, for these tasks; ``low`` and ``high`` are `crossed`.
    """
    rows = paired(table, pairs, value)
    wide = table.pivot(index=["seed", "task"], columns="method", values=value)
    ends = []
    for better, worse in pairs.values():
        difference = (wide[better] - wide[worse]).unstack("task")
        if difference.isna().any(axis=None):
            raise ValueError(f"{better} and {worse} were not measured on the same seeds and tasks")
        ends.append(crossed(difference.to_numpy()).interval())
    return rows.assign(low=[low for low, _ in ends], high=[high for _, high in ends])


def holm_factors(p_values: Sequence[float]) -> list[float]:
    """Holm's factors: a test rejects at 5 % where its factor times its p-value is below 0.05."""
    factors = np.ones(len(p_values))
    largest = 0.0
    for rank, i in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, (len(p_values) - rank) * p_values[i])
        factors[i] = largest / p_values[i] if p_values[i] > 0 else len(p_values) - rank
    return [float(factor) for factor in factors]
