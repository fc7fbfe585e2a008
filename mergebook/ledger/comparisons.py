"""Comparisons as data, from which checks follow, and the ways in which tests spoil them."""

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
        return self.of(self.table(load))

    def table(self, load: Load) -> pd.DataFrame:
        return load(*self.result) if isinstance(self.result, tuple) else load(self.result)

    def of(self, table: pd.DataFrame) -> Check:
        """The comparison on a table like that of its source."""
        return Check(**self.fields(table))

    def fields(self, table: pd.DataFrame) -> dict[str, Any]:
        known = {each.name for each in fields(Check) if each.init}
        options = {name: getattr(self, name) for name in known if hasattr(self, name)}
        options["unit"] = UNITS.get(str(self.value), "") if self.unit is None else self.unit
        options |= {"what": self.says, "about": self.names()}
        if self.measure is None:
            return options | {"values": self._values(table)}
        return options | dict(self.measure(table[chosen(table, self.where)]))

    def _values(self, table: pd.DataFrame) -> np.ndarray:
        sides: list[Any] = [self.worse] * 2
        for i, (rows, column) in enumerate(zip(self.rows(table), self.value_columns, strict=True)):
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
    def value_columns(self) -> tuple[Any, Any]:
        return (self.value, self.value) if isinstance(self.value, str) else self.value

    def rows(self, table: pd.DataFrame) -> list[np.ndarray]:
        """Which rows are of either side; of none where the worse side is a number."""
        none = np.zeros(len(table), dtype=bool)
        return [
            none if rows is None else chosen(table, {**self.where, **rows}) for rows in self.sides
        ]


comparison: Callable[..., Comparison] = Comparison  # from options that were put together in parts
