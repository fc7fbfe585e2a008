"""Checks: what a claim says about measured numbers, with an interval, a p-value and power."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from mergebook.lab.statistics import Estimate, crossed, log_ratio_of_spreads

Role = Literal["primary", "secondary", "control"]
Kind = Literal["mean", "spread", "correlation", "fraction", "fact"]
Limit = Literal["", "least", "most", "none"]
Rows = Mapping[str, Any]  # columns to the value that they must have, or to a tuple of values

SEED = ("seed",)  # what identifies rows that are means over tasks

UNITS = {"accuracy": "points", "loss": "nats"}
SPREAD = "log ratio of spreads"
LEVEL = 0.95
POWER = 0.8
FEWEST = {"correlation": 4, "spread": 3, "fact": 1}  # rows; 2 for all other kinds


@dataclass(frozen=True, eq=False)
class Check:
    """A quantity that a claim says lies above a bound, or between two.

    Kinds: "mean"; "spread", the log ratio of two columns' mean absolute deviations; "correlation",
    Spearman's of two columns; "fraction", of ones among zeros and ones, by a binomial test; and
    "fact", no sample: all must be beyond the bound. Equal values that do not decide are a fact.
    """

    what: str  # in words
    values: np.ndarray  # ``(seeds,)`` or ``(seeds, columns)``; ``(units, 2)`` where two compare
    kind: Kind = "mean"
    role: Role = "primary"  # only primary checks decide about a claim
    bound: float = 0.0  # the quantity must be above it; 0 where two sides are compared
    tolerance: float | None = None  # the quantity must lie at most this far from the bound
    paper: float | None = None  # what the paper reports for the same quantity
    unit: str = "points"
    # Where values only bound the quantity, it is at "least" as large (the check cannot fail) or at
    # "most" (it cannot hold); "none" if nothing can be said.
    limit: Limit = ""
    # "tasks" are a random sample that the interval generalises over (layers and targets, too);
    # "designed" ones are fixed points that are averaged within each seed.
    columns: Literal["tasks", "designed"] = "tasks"
    network: str = ""  # one of several that are pooled
    about: Rows = field(default_factory=dict)  # makes its id; columns that chapters select by
    bounds: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        values = np.atleast_1d(np.asarray(self.values, dtype=float))
        fewest = FEWEST.get(self.kind, 2)
        if len(values) < fewest or not np.isfinite(values).all():
            raise ValueError(f"{self.what}: a {self.kind} needs {fewest} or more rows, all finite")
        same = np.ptp(values) < 1e-12 * max(1.0, float(np.abs(values).max()))
        if self.kind == "mean" and same and self.role != "primary":
            object.__setattr__(self, "kind", "fact")
        elif self.kind == "mean" and same:
            raise ValueError(
                f"{self.what}: all {values.size} values are {values.flat[0]:g}, so they have no "
                "interval; state it as kind='fact', or count it as kind='fraction'"
            )
        if self.kind == "fraction" and not np.isin(values, (0, 1)).all():
            raise ValueError(f"{self.what}: a fraction needs values of 0 and 1")
        object.__setattr__(self, "values", values)
        edge = self.tolerance
        ends = (self.bound,) if edge is None else (self.bound - edge, self.bound + edge)
        object.__setattr__(self, "bounds", ends)

    @property
    def value(self) -> float:
        """The quantity: a mean, a fraction, a log ratio of spreads or a rank correlation."""
        return math.tanh(self.estimate.value) if self.kind == "correlation" else self.estimate.value

    @cached_property
    def estimate(self) -> Estimate:
        """The quantity with standard error and degrees of freedom; a correlation as Fisher's z."""
        if self.kind == "spread":
            return log_ratio_of_spreads(*self.values.T)
        if self.kind == "correlation":  # Bonett and Wright (2000)
            units = len(self.values)
            rank = float(stats.spearmanr(*self.values.T).statistic)
            error = math.sqrt((1 + rank**2 / 2) / (units - 3))
            return Estimate(math.atanh(np.clip(rank, 1e-9 - 1, 1 - 1e-9)), error, units - 1)
        if self.kind in ("fraction", "fact"):
            return Estimate(float(self.values.mean()), 0.0, math.inf)
        values = self.values.reshape(len(self.values), -1)
        return crossed(values if self.columns == "tasks" else values.mean(1, keepdims=True))

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Both ends of the confidence interval with this level; infinite beyond a `limit`."""
        low, high = self._ends(level)
        return (
            -math.inf if self.limit in ("most", "none") else low,
            math.inf if self.limit in ("least", "none") else high,
        )

    def _ends(self, level: float = LEVEL) -> tuple[float, float]:
        """Both ends as if the values were the quantity itself."""
        if self.kind == "fraction":  # Clopper and Pearson
            found = stats.binomtest(int(self.values.sum()), len(self.values))
            low, high = found.proportion_ci(level, method="exact")
            return float(low), float(high)
        if self.kind == "fact":
            return float(self.values.min()), float(self.values.max())
        low, high = self.estimate.interval(level)
        return (math.tanh(low), math.tanh(high)) if self.kind == "correlation" else (low, high)

    def _one_sided(self, bound: float) -> tuple[float, float]:
        """P-values of "not above the bound" and of "not below it"."""
        if self.kind == "fact":
            low, high = self._ends()
            return float(low <= bound), float(high >= bound)
        if self.kind == "fraction":
            count, total = int(self.values.sum()), len(self.values)
            of_more = stats.binom.sf(count - 1, total, bound)
            return float(of_more), float(stats.binom.cdf(count, total, bound))
        if self.kind == "correlation":
            bound = math.atanh(bound)
        return self.estimate.one_sided(bound)

    @cached_property
    def chances(self) -> tuple[float, float]:
        """Two-sided p-values that the claim is wrong (small ones speak for it), and right."""
        below, above = map(list, zip(*map(self._one_sided, self.bounds), strict=True))
        if self.limit in ("most", "none"):
            below = [1.0] * len(below)
        if self.limit in ("least", "none"):
            above = [1.0] * len(above)
        if self.tolerance is None:
            return min(1.0, 2 * below[0]), min(1.0, 2 * above[0])
        inside = max(below[0], above[1])  # two one-sided tests: above the lower, below the upper
        outside = min(above[0], below[1])
        return min(1.0, 2 * inside), min(1.0, 2 * outside)

    @cached_property
    def detectable(self) -> float:
        """The distance from the bound that data like these show in four cases out of five."""
        freedom = self.estimate.freedom
        ratio = stats.t.ppf(POWER, freedom) / stats.t.ppf((1 + LEVEL) / 2, freedom)
        low, high = self._ends()
        return math.nan if self.kind == "fact" else float((high - low) / 2 * (1 + ratio))


def chosen(table: pd.DataFrame, rows: Rows) -> np.ndarray:
    """Which rows of a table have these values; ValueError if it lacks a column."""
    _need(table, rows)
    mask = np.ones(len(table), dtype=bool)
    for name, value in rows.items():
        own = table[name]
        mask &= np.asarray(own.isin(value) if isinstance(value, tuple) else own.array == value)
    return mask


def indexed(
    table: pd.DataFrame, rows: np.ndarray, column: str, keys: Sequence[str], which: Any = ""
) -> pd.Series:
    """One column of some rows by their keys, accuracies in per cent; ValueError names bad rows."""
    _need(table, [*keys, column])
    arrays = [table[name].array[rows] for name in keys]
    index: pd.Index = pd.MultiIndex.from_arrays(arrays, names=[*keys])
    index = index if len(keys) > 1 else index.get_level_values(0)
    values = pd.Series(table[column].to_numpy()[rows].astype(float), index, name=column)
    if values.empty or index.has_duplicates:
        each = " and ".join(keys)
        raise ValueError(f"{len(index)} rows with {which}: expected one for each {each}")
    return 100 * values if "accuracy" in str(column) else values


def pick(
    table: pd.DataFrame,
    column: str = "accuracy",
    *,
    keys: tuple[str, ...] = ("seed", "task"),
    **rows: Any,
) -> pd.Series:
    """`indexed` of the rows that are `chosen`."""
    return indexed(table, chosen(table, rows), column, keys, rows)


def _need(table: pd.DataFrame, columns: Iterable[str]) -> None:
    missing = sorted(map(str, {*columns} - {*table.columns}))
    if missing:
        known = ", ".join(map(str, table.columns))
        raise ValueError(f"no column {', '.join(missing)}; there are: {known}")


def matrix(column: pd.Series) -> np.ndarray:
    """A column indexed by seed, or by seed and task, as a table with one row per seed."""
    table: pd.Series | pd.DataFrame = column if column.index.nlevels == 1 else column.unstack()
    return table.sort_index().to_numpy(dtype=float)
