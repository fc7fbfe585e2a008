"""Checks: what a claim says of numbers that were measured, with intervals, p-value and power.

A check carries what was measured, one value per seed, or per seed and task. From that alone come
its estimate, two intervals beside each other (over seeds; resampled over seeds and tasks), its
p-value, and the smallest difference that so many seeds could have shown.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from mergelib.records.statistics import pitman_morgan, resampled_means, resampling

Role = Literal["primary", "secondary", "control"]
Limit = Literal["", "least", "most", "none"]

SEED = ("seed",)  # what tells rows apart that are means over tasks

UNITS = {"accuracy": "points", "loss": "nats"}
LEVEL = 0.95
POWER = 0.8
DRAWS = 5000


@dataclass(frozen=True)
class Interval:
    """A 95 % interval, and the one-sided p-values of what it is compared with.

    Attributes:
        low: lower end.
        high: upper end.
        below: p-value of the hypothesis that the quantity is not above the bound.
        above: of the one that it is not below it.
    """

    low: float
    high: float
    below: float
    above: float


@dataclass(frozen=True, eq=False)
class Check:
    """A quantity that a claim says lies above a bound, or within two.

    Attributes:
        what: the comparison in words.
        values: shape ``(seeds,)`` or ``(seeds, tasks)``, their mean is the quantity; for a
            comparison of spreads, and for a correlation, shape ``(seeds, 2)``.
        kind: ``"mean"``, ``"spread"`` (log of the ratio of the columns' standard deviations), or
            ``"correlation"`` (Spearman's, of the columns).
        role: only primary checks decide about a claim.
        bound: the quantity shall be above it; it is 0 where two sides are compared.
        tolerance: where given, the quantity shall lie within so much of the bound, on both sides.
        paper: what the paper reports for the same quantity.
        unit: of the quantity.
        limit: where the values are no more than bounds of the quantity, which is ``"least"`` as
            large, so that the check cannot fail, or ``"most"``, so that it cannot hold; of
            ``"none"`` neither can be said.
    """

    what: str
    values: np.ndarray
    kind: Literal["mean", "spread", "correlation"] = "mean"
    role: Role = "primary"
    bound: float = 0.0
    tolerance: float | None = None
    paper: float | None = None
    unit: str = "points"
    limit: Limit = ""
    bounds: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=float)
        if len(values) < 2 or not np.isfinite(values).all():
            raise ValueError(f"{self.what}: an interval needs at least 2 seeds, none left out")
        object.__setattr__(self, "values", values)
        edge = self.tolerance
        ends = (self.bound,) if edge is None else (self.bound - edge, self.bound + edge)
        object.__setattr__(self, "bounds", ends)

    @cached_property
    def value(self) -> float:
        """The quantity: a mean, a log ratio of standard deviations, or a rank correlation."""
        if self.kind == "mean":
            return float(self.values.mean())
        first, second = self.values.T
        if self.kind == "spread":
            return pitman_morgan(first, second)[0]
        return _spearman(self.values)

    @cached_property
    def over_seeds(self) -> list[Interval]:
        """Student's interval over seeds (or Pitman-Morgan's, or Fisher's z), for each bound."""
        if self.kind == "spread":
            return [_spread(self.values, bound) for bound in self.bounds]
        if self.kind == "mean":
            seeds = self.values.reshape(len(self.values), -1).mean(1)
            error, freedom, centre = float(stats.sem(seeds)), len(seeds) - 1, self.value
            return [_student(centre, error, freedom, bound) for bound in self.bounds]
        seeds = len(self.values)  # Bonett and Wright (2000), on the scale of Fisher's z
        error = math.sqrt((1 + self.value**2 / 2) / (seeds - 3))
        centre = math.atanh(min(max(self.value, 1e-9 - 1), 1 - 1e-9))
        parts = [_student(centre, error, seeds - 1, math.atanh(bound)) for bound in self.bounds]
        return [
            Interval(math.tanh(part.low), math.tanh(part.high), part.below, part.above)
            for part in parts
        ]

    @cached_property
    def resampled(self) -> list[Interval]:
        """Percentile interval over seeds, and over tasks where there are any, for each bound."""
        if self.kind == "mean":
            draws = resampled_means(self.values, draws=DRAWS)
        else:
            shares, _ = resampling(len(self.values), 1, DRAWS)
            statistic = _log_ratios if self.kind == "spread" else _rank_correlations
            draws = statistic(self.values, shares)
        low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        found = []
        for bound in self.bounds:
            below, above = (
                (float(count) + 1) / (len(draws) + 1)
                for count in ((draws <= bound).sum(), (draws >= bound).sum())
            )
            found.append(Interval(float(low), float(high), below, above))
        return found

    @cached_property
    def interval(self) -> tuple[float, float]:
        """What decides: at each end, the interval that reaches further."""
        both = (self.over_seeds[0], self.resampled[0])
        return min(part.low for part in both), max(part.high for part in both)

    @cached_property
    def chances(self) -> tuple[float, float]:
        """Two-sided p-values, of the larger interval: that the claim is wrong, that it is right.

        A small first one speaks for the claim, a small second one against it.
        """
        both = list(zip(self.over_seeds, self.resampled, strict=True))
        below = [max(one.below, other.below) for one, other in both]
        above = [max(one.above, other.above) for one, other in both]
        if self.limit in ("most", "none"):
            below = [1.0] * len(both)
        if self.limit in ("least", "none"):
            above = [1.0] * len(both)
        if self.tolerance is None:
            return min(1.0, 2 * below[0]), min(1.0, 2 * above[0])
        inside = max(below[0], above[1])  # two one-sided tests: above the lower, below the upper
        outside = min(above[0], below[1])
        return min(1.0, 2 * inside), min(1.0, 2 * outside)

    @cached_property
    def detectable(self) -> float:
        """The distance from the bound that so many seeds show in four cases out of five."""
        freedom = max(1, len(self.values) - (2 if self.kind == "spread" else 1))
        ratio = stats.t.ppf(POWER, freedom) / stats.t.ppf((1 + LEVEL) / 2, freedom)
        low, high = self.interval
        return float((high - low) / 2 * (1 + ratio))


def _student(centre: float, error: float, freedom: int, bound: float) -> Interval:
    half = error * float(stats.t.ppf((1 + LEVEL) / 2, freedom))
    distance = centre - bound
    if error < 1e-12 * max(1.0, abs(centre)):  # every seed gives the same value
        below, above = float(distance <= 0), float(distance >= 0)
    else:
        below, above = (float(stats.t.sf(sign * distance / error, freedom)) for sign in (1, -1))
    return Interval(centre - half, centre + half, below, above)


def _spread(pairs: np.ndarray, bound: float) -> Interval:
    first, second = pairs.T
    _, low, high, _ = pitman_morgan(first, second)
    ratio, _, _, p = pitman_morgan(first / math.exp(bound), second)
    smaller, larger = p / 2, 1 - p / 2
    return Interval(low, high, *((smaller, larger) if ratio > 0 else (larger, smaller)))


def _spearman(pairs: np.ndarray) -> float:
    return float(stats.spearmanr(pairs[:, 0], pairs[:, 1]).statistic)


def _log_ratios(pairs: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Log ratios of standard deviations of weighted rows, one per row of ``shares``."""
    centred = pairs - pairs.mean(0)
    variances = shares @ centred**2 - (shares @ centred) ** 2
    logs = np.log(np.maximum(variances, 1e-24)) / 2
    return np.asarray(logs[:, 0] - logs[:, 1])


def _rank_correlations(pairs: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Spearman's correlations of weighted rows; what is drawn twice ties with itself."""
    ranks = []
    for column in pairs.T:
        smaller = (column < column[:, None]) + 0.5 * (column == column[:, None])
        rank = shares @ smaller.T
        ranks.append(rank - (shares * rank).sum(1, keepdims=True))
    first, second = ranks
    products = (shares * first * second).sum(1)
    sizes = (shares * first**2).sum(1) * (shares * second**2).sum(1)
    return np.asarray(products / np.sqrt(np.maximum(sizes, 1e-24)))


def pick(
    table: pd.DataFrame,
    column: str = "accuracy",
    *,
    keys: tuple[str, ...] = ("seed", "task"),
    **chosen: Any,
) -> pd.Series:
    """One column of the rows where other columns match, indexed by seed and task.

    Args:
        table: of a result; accuracies in 0..1.
        column: what to read; accuracies come in per cent.
        keys: what tells its rows.
        **chosen: columns to the value that they shall have.

    Raises:
        ValueError: if a column is not there, no row matches, or the keys do not tell rows apart.
    """
    missing = sorted({column, *keys, *chosen} - {*table.columns})
    if missing:
        known = ", ".join(map(str, table.columns))
        raise ValueError(f"no column {', '.join(missing)}; there are: {known}")
    wanted = np.ones(len(table), dtype=bool)
    for name, value in chosen.items():
        wanted &= np.asarray(table[name] == value, dtype=bool)
    rows = table.loc[wanted, [*keys, column]]
    values = rows.set_index(list(keys))[column].astype(float)
    if rows.empty or values.index.has_duplicates:
        told = " and ".join(keys)
        raise ValueError(f"{len(rows)} rows with {chosen}: expected one for each {told}")
    return 100 * values if "accuracy" in column else values


def above(what: str, better: pd.Series, worse: pd.Series | float, **options: Any) -> Check:
    """The check that one quantity is above another, seed by seed and task by task."""
    return Check(what, matrix(better - worse), **options)


def matrix(column: pd.Series) -> np.ndarray:
    """A column indexed by seed, or by seed and task, as a table with one row per seed."""
    if column.index.nlevels == 1:
        return column.sort_index().to_numpy(dtype=float)
    return column.unstack().sort_index().to_numpy(dtype=float)
