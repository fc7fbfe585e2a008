"""Ways to spoil a table of results: shift, exchange and shuffle what a claim compares."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Contrast:
    """What a claim compares: some kinds of rows, in the order that it gives to their outcomes.

    Attributes:
        result: the end of a result's name after its suite, or the name of a function.
        columns: that tell the kinds of rows apart.
        order: the kinds, from the one that the claim says has the lowest outcome to the highest.
        outcome: columns that are compared.
        falling: further ones, where low is good.
        step: how far to shift each kind above the one before.
        part: the result's table.
        levels: how far to shift each kind in favour, where not by its place in the order.
        against: likewise against the claim; else in reverse order.
        times: a column that the shift is multiplied by.
        blocks: columns within which to shuffle.
    """

    result: str
    columns: tuple[str, ...]
    order: Sequence[Key]
    outcome: tuple[str, ...] = ("accuracy",)
    step: float = 1.0
    part: str = "test"
    levels: Sequence[float] | None = None
    against: Sequence[float] | None = None
    times: str | None = None
    blocks: tuple[str, ...] = ("seed", "task")
    falling: tuple[str, ...] = ()

    def kinds(self, table: pd.DataFrame) -> pd.Series:
        """The place of each row's kind in the order; −1 for others."""
        columns = list(self.columns)
        order = pd.DataFrame(list(self.order), columns=columns).astype(object)
        places = order.assign(_place=range(len(order)))
        found = table[columns].astype(object).merge(places, how="left", on=columns)
        return found["_place"].fillna(-1).astype(int).set_axis(table.index)

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        last = len(self.order) - 1
        rising = list(self.levels or range(len(self.order)))
        falling = list(self.against or [last - place for place in range(len(self.order))])
        levels = np.array([*(rising if sign > 0 else falling), 0.0])
        shift = self.step * levels[self.kinds(table).to_numpy()]
        if self.times:
            shift = shift * table[self.times].to_numpy()
        table = table.assign(**{name: table[name] + shift for name in self.outcome})
        return table.assign(**{name: table[name] - shift for name in self.falling})

    def exchanged(self, table: pd.DataFrame, _: np.random.Generator) -> pd.DataFrame:
        kinds = self.kinds(table)
        rows = kinds[kinds >= 0]
        there = sorted(set(rows))  # kinds that this table has
        opposite = dict(zip(there, reversed(there), strict=True))
        swapped = [self.order[opposite[place]] for place in rows]
        table = table.copy()
        for i, column in enumerate(self.columns):
            table.loc[rows.index, column] = pd.Series([key[i] for key in swapped], index=rows.index)
        return table

    def shuffled(self, table: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
        rows = table[self.kinds(table) >= 0]
        own = [name for name in self.blocks if name in table and name not in self.columns]
        chance = pd.Series(generator.random(len(rows)), index=rows.index)
        drawn = rows.assign(chance=chance).sort_values([*own, "chance"]).index
        placed = rows.assign(place=range(len(rows))).sort_values([*own, "place"]).index
        table = table.copy()
        for name in (*self.outcome, *self.falling):
            table.loc[placed, name] = rows.loc[drawn, name].to_numpy()
        return table


@dataclass(frozen=True)
class Spread(Contrast):
    """A contrast of standard deviations over seeds: kinds from the least to the most varying."""

    groups: tuple[str, ...] = ("data", "start")

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        kinds = self.kinds(table)
        order = range(len(self.order)) if sign > 0 else range(len(self.order))[::-1]
        table = table.copy()
        for place, level in zip(range(len(self.order)), order, strict=True):
            rows = table[kinds == place]
            for name in self.outcome:
                means = rows.groupby(list(self.groups))[name].transform("mean")
                table.loc[rows.index, name] = means + (rows[name] - means) * 20.0**level
        return table

    def exchanged(self, table: pd.DataFrame, _: np.random.Generator) -> pd.DataFrame:
        return table  # a contrast of means on the same kinds exchanges them already


@dataclass(frozen=True)
class Follow(Contrast):
    """CoGraM set to ten times the sub-networks' strength, or to a small share of its opposite."""

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        alone = table[table["method"].isin(["a", "b"])]
        strength = alone.groupby(["data", "start", "seed"])["accuracy"].mean()
        rows = table[self.kinds(table) == 1]
        own = strength.loc[list(rows[["data", "start", "seed"]].itertuples(index=False, name=None))]
        table = table.copy()
        table.loc[rows.index, "accuracy"] = (10 if sign > 0 else -0.01) * own.to_numpy()
        return table


@dataclass(frozen=True)
class Times(Contrast):
    """A contrast over the steps of a walk; exchanging them lets it run backwards."""

    groups: tuple[str, ...] = field(default=("seed", "method"))

    def exchanged(self, table: pd.DataFrame, _: np.random.Generator) -> pd.DataFrame:
        own = [name for name in self.groups if name in table]
        table = table.sort_values([*own, "step"]).copy()
        for _key, rows in table.groupby(own):
            table.loc[rows.index, self.outcome[0]] = rows[self.outcome[0]].to_numpy()[::-1]
        return table
