"""Comparisons as data: two kinds of rows of a result, of which a claim says that one is better.

The check of a comparison, and the ways to spoil what it compares, follow from the record.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd

from mergebook.ledger.checks import UNITS, Check, Kind, Limit, Role, Rows, chosen, indexed, matrix

# As `load_table`, from the names of a result and of a table; or a function's table, if given that.
Load = Callable[..., pd.DataFrame]
# A result, a result and its table, or a function that makes a table.
Source = str | tuple[str, str] | Callable[[], pd.DataFrame]
Side = Rows | str | int | bool
Measure = Callable[[pd.DataFrame], Mapping[str, Any]]

WAYS = ("for", "against", "in turn", "exchanged")
FAR = 20.0  # how far to shift rows, in multiples of the largest value


@dataclass(frozen=True)
class Comparison:
    """A statement that one kind of rows of a table has better values than another."""

    says: str  # in words
    better: Side = field(default_factory=dict)  # columns and their values, or a value of `by`
    worse: Side | float = 0.0  # the other rows, or a number that the better ones are compared with
    _: KW_ONLY
    about: Rows  # what tells it from the claim's other comparisons: see `Check`
    result: Source
    by: str = "method"  # the column that tells both sides apart where it is only one
    where: Rows = field(default_factory=dict)  # what all these rows have in common
    value: str | tuple[Any, Any] = "accuracy"  # a column, in 0..1 if so; or one for each side
    falling: bool = False  # whether low values are good
    keys: tuple[str, ...] = ("seed", "task")  # columns that identify a side's rows
    by_seed: bool = False  # whether a side's values are averaged within each seed
    scale: Callable[[pd.Series], pd.Series] | None = None  # of both sides, for example `numpy.log`
    # From both sides, the larger one first, to the quantity.
    change: Callable[[pd.Series, pd.Series], pd.Series] = operator.sub
    # The fields of the `Check` from all rows of `where`; both sides then only say what to spoil.
    measure: Measure | None = None
    # As in `Check`, but that without a unit it is that of the value.
    kind: Kind = "mean"
    role: Role = "primary"
    bound: float = 0.0
    tolerance: float | None = None
    paper: float | None = None
    unit: str | None = None
    limit: Limit = ""
    columns: Any = "tasks"
    network: str = ""

    @property
    def sides(self) -> tuple[Rows, Rows | None]:
        """The rows of both sides as columns and values; None where the worse one is a number."""
        given = (self.better, None if isinstance(self.worse, float) else self.worse)
        better, worse = (
            side if side is None or isinstance(side, Mapping) else {self.by: side} for side in given
        )
        return better or {}, worse

    def names(self) -> dict[str, Any]:
        """What the comparison is about, and by name what is better than what."""
        names = dict(self.about)
        for side, rows in zip(("better", "worse"), self.sides, strict=True):
            if rows:
                names.setdefault(side, ", ".join(map(str, rows.values())))
        return names

    def check(self, load: Load) -> Check:
        """The comparison on a result."""
        return self.of(self.table(load))

    def table(self, load: Load) -> pd.DataFrame:
        """All rows of its source."""
        return load(*self.result) if isinstance(self.result, tuple) else load(self.result)

    def of(self, table: pd.DataFrame) -> Check:
        """The comparison on a table like that of its source."""
        return Check(**self.fields(table))

    def fields(self, table: pd.DataFrame) -> dict[str, Any]:
        """The fields of that check."""
        known = {each.name for each in fields(Check) if each.init}
        options = {name: getattr(self, name) for name in known if hasattr(self, name)}
        options["unit"] = UNITS.get(str(self.value), "") if self.unit is None else self.unit
        options |= {"what": self.says, "about": self.names()}
        if self.measure is None:
            return options | {"values": self._values(table)}
        return options | dict(self.measure(table[chosen(table, self.where)]))

    def _values(self, table: pd.DataFrame) -> np.ndarray:
        sides: list[Any] = [self.worse] * 2
        for i, (rows, column) in enumerate(zip(self._rows(table), self._columns, strict=True)):
            if i and isinstance(self.worse, float):
                continue
            side = indexed(table, rows, column, self.keys, self.says)
            side = side.groupby("seed").mean() if self.by_seed else side
            sides[i] = side if self.scale is None else self.scale(side)
        if self.kind in ("spread", "correlation"):
            return np.stack([side.sort_index().to_numpy() for side in sides], 1)
        if self.kind == "fraction":
            return matrix(sides[0].reset_index(drop=True))
        return matrix(self.change(*(sides[::-1] if self.falling else sides)))

    @property
    def _columns(self) -> tuple[Any, Any]:
        return (self.value, self.value) if isinstance(self.value, str) else self.value

    def _rows(self, table: pd.DataFrame) -> list[np.ndarray]:
        """Which rows are of either side; of none where the worse side is a number."""
        none = np.zeros(len(table), dtype=bool)
        return [
            none if rows is None else chosen(table, {**self.where, **rows}) for rows in self.sides
        ]

    @property
    def ways(self) -> tuple[str, ...]:
        """The `WAYS` that there are to spoil it: single values have names to exchange."""
        better, worse = self.sides
        values = [*better.values(), *(worse or {}).values()]
        named = bool(worse) and not any(isinstance(value, tuple) for value in values)
        missing = {"exchanged"} if self.tolerance is not None or not named else set()
        missing |= {"in turn"} if self.kind in ("spread", "fraction") else set()
        return tuple(way for way in WAYS if way not in missing)

    def _equal(self, table: pd.DataFrame, better: np.ndarray, worse: np.ndarray) -> np.ndarray:
        """Values of the better side that differ from the other one by about the bound."""
        noise = 1e-3 * float(self.tolerance or 0) * np.cos(np.arange(better.sum()))
        if isinstance(self.worse, float):
            return self.worse + self.bound + noise
        keys, (_, column) = list(self.keys), self._columns
        other = table.loc[worse, [*keys, column]]
        values = table.loc[better, keys].merge(other, on=keys, how="left")[column].to_numpy()
        return np.asarray(values) + self.bound + noise / (100 if "accuracy" in str(column) else 1)

    def spoiled(self, table: pd.DataFrame, way: str) -> pd.DataFrame:
        """The table with what is compared changed in one of the `WAYS`.

        Values are shifted ``"for"`` the comparison or ``"against"`` it; ``"in turn"``, for it in
        every other seed and against it in the rest; and ``"exchanged"``, for it, with the names of
        both sides exchanged. Spreads are widened, pairs made to agree, and counted values set.
        """
        first, second = self._columns
        better, worse = self._rows(table)
        units = table[self.keys[0]] if self.keys[0] in table else pd.Series(range(len(table)))
        turns = 1.0 - 2.0 * (pd.factorize(units, sort=True)[0] % 2)
        sign = {"against": -np.ones(len(table)), "in turn": turns}.get(way, np.ones(len(table)))
        out = table.astype(dict.fromkeys((first, second), float))
        if self.kind == "correlation":
            out[first] = np.where(better, sign * out[second], out[first])
        elif self.kind == "fraction":
            out[first] = np.where(better, sign > 0, out[first])
        elif self.kind == "spread":
            for side, wider in ((better, sign > 0), (worse, sign < 0)):
                off = out[first] - out.loc[side, first].mean()
                out[first] += np.where(side & wider, FAR * off, 0.0)
        else:
            for name in {first, second}:
                out[name] = out[name].fillna(out[name].max())
            largest = out.loc[better | worse, [first, second]].abs().to_numpy().max()
            step = FAR * (largest + abs(self.bound) + 1)
            up = -sign if self.falling else sign
            if self.tolerance is not None and self.measure is None:
                out.loc[better, first] = self._equal(out, better, worse)
                out[first] += np.where(better & (sign < 0), step, 0.0)
            elif isinstance(self.worse, float):
                out[first] += np.where(better, up * step, 0.0)
            else:  # only ever upwards, so that logarithms and ratios exist
                out[first] += np.where(better & (up > 0), step, 0.0)
                out[second] += np.where(worse & (up < 0), step, 0.0)
        if way == "exchanged":
            for mask, rows in ((better, self.sides[1]), (worse, self.sides[0])):
                out = out.assign(**{n: out[n].mask(mask, v) for n, v in (rows or {}).items()})
        return out


def comparison(*sides: Any, **options: Any) -> Comparison:
    """A `Comparison` from options that were put together in parts."""
    return Comparison(*sides, **options)
