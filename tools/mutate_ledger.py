"""Spoil the results that a claim is tested on, and see whether its verdict notices.

For every claim of the ledger, results are shifted in its favour, which must make it hold; shifted
against it, which must make it fail; and, as its favour has made it hold, exchanged between methods
and shuffled among them, after which it must not. A renamed column must raise an error, and a result
that is not there must read "not tested". Prints a table of claims by ways to spoil.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd

from mergelib.ledger import Claim, cart, cogram, frank_wolfe
from mergelib.ledger.verdicts import FAILS, HOLDS, UNTESTED, judge, outcomes, verdict
from mergelib.records.results import MissingResult, load_table

CLAIMS = (*cart.CLAIMS, *frank_wolfe.CLAIMS, *cogram.CLAIMS)
WAYS = ("as measured", "for", "against", "exchanged", "shuffled", "renamed", "missing")
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Contrast:
    """What a claim compares: some kinds of rows, in the order that it gives to their outcomes.

    Attributes:
        result: the end of a result's name after its suite, or the name of a function.
        columns: that tell the kinds of rows apart.
        order: the kinds, from the one that the claim says has the lowest outcome to the highest.
        outcome: columns that are compared.
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

    def kinds(self, table: pd.DataFrame) -> pd.Series:
        """The place of each row's kind in the order; −1 for others."""
        columns = list(self.columns)
        order = pd.DataFrame(list(self.order), columns=columns).astype(object)
        places = order.assign(kind=range(len(order)))
        found = table[columns].astype(object).merge(places, how="left", on=columns)
        return found["kind"].fillna(-1).astype(int).set_axis(table.index)

    def shifted(self, table: pd.DataFrame, sign: int) -> pd.DataFrame:
        last = len(self.order) - 1
        rising = list(self.levels or range(len(self.order)))
        falling = list(self.against or [last - place for place in range(len(self.order))])
        levels = np.array([*(rising if sign > 0 else falling), 0.0])
        shift = self.step * levels[self.kinds(table).to_numpy()]
        if self.times:
            shift = shift * table[self.times].to_numpy()
        return table.assign(**{name: table[name] + shift for name in self.outcome})

    def exchanged(self, table: pd.DataFrame, _: np.random.Generator) -> pd.DataFrame:
        kinds = self.kinds(table)
        rows = kinds[kinds >= 0]
        swapped = [self.order[len(self.order) - 1 - place] for place in rows]
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
        for name in self.outcome:
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


def _methods(*names: str) -> list[Key]:
    return [(name,) for name in names]


_CART, _LOW = "cart", "low_rank_task_arithmetic"
_RANKS = ("method", "scale", "rank_ratio")
_RATIOS = (0.75, 0.5, 0.32, 0.24, 0.16, 0.12, 0.04, 0.02, 0.01, 0.08)
_SOFT, _HARD = frank_wolfe.SOFT, frank_wolfe.HARD
_MERGED = f"{_HARD}, from adamerging"
_POOLS = ("method", "count")
_PLAIN = ("frank_wolfe", "average", "task_arithmetic", "ties", "adamerging")
_FUSED = ("method", "prototypes", "levels", "iterations")
_PAIRS = partial(Contrast, "fusion", _FUSED, blocks=("seed", "data", "start"))
_LAYER: Key = ("cogram", "geometric", "layer", 1.0)
_FINE: Key = ("cogram", "geometric", cogram.FINEST, 1.0)
_FISHER: Key = ("fisher", "", "", "")
_TUNED = ("accuracy", "accuracy_a", "accuracy_b")

CONTRASTS: dict[str, tuple[Contrast, ...]] = {
    "C1": (
        Contrast(
            "baselines",
            ("method",),
            _methods("average", "task_arithmetic", "ties", "consensus", _CART),
        ),
    ),
    "C2": (
        Contrast(
            "ranks",
            _RANKS,
            [
                (_LOW, 0.3, 0.0),
                *((_CART, 1.0, ratio) for ratio in (0.0, 0.01, 0.32)),
                *((_LOW, 0.3, ratio) for ratio in (0.08, 1.0)),
                (_CART, 1.0, 0.08),
            ],
        ),
    ),
    "C3": (
        Contrast(
            "interference",
            ("centred",),
            [(True,), (False,)],
            ("interference_all",),
            10,
            "curves",
            blocks=("seed", "layer", "rank_ratio"),
        ),
    ),
    "C4": tuple(
        Contrast(
            "interference",
            ("centred", "rank_ratio"),
            [(True, 0.08), (True, far)],
            (name,),
            step,
            "curves",
            blocks=("seed", "layer"),
        )
        for name, far, step in (("interference_all", 1.0, 20.0), ("reconstruction", 0.0, 0.6))
    ),
    "C5": (Contrast("ranks", _RANKS, [(_CART, 1.0, ratio) for ratio in _RATIOS]),),
    "C6": (
        Contrast(
            "adaptation",
            ("method",),
            _methods("task_arithmetic", "adamerging+task_arithmetic", _CART, f"adamerging+{_CART}"),
        ),
    ),
    "C7": (
        Contrast(
            "task_counts",
            ("method",),
            _methods("average", "task_arithmetic", "ties", _CART),
            ("normalised",),
            times="count",
            blocks=("seed", "count", "subset"),
        ),
    ),
    "C8": (
        Contrast(
            "compression",
            ("method", "setting"),
            [("individual", ""), ("cart_indexing", "rank_ratio=0.08")],
        ),
    ),
    "C9": (
        Contrast(
            "ranks",
            _RANKS,
            [(_CART, 1.0, 0.08), (_CART, 1.0, 0.32), (_CART, 1.0, 0.0), (_LOW, 0.3, 1.0)],
            ("loss",),
        ),
    ),
    "C10": (
        Contrast(
            "baselines",
            ("method",),
            _methods(_CART, "average", "task_arithmetic", "ties"),
            ("loss",),
        ),
    ),
    "F1": (Contrast("procedures", ("method",), _methods("adamerging", _MERGED, _SOFT)),),
    "F2": (
        Contrast(
            "irrelevant",
            _POOLS,
            [
                *((name, 16) for name in _PLAIN[1:]),
                ("frank_wolfe", 16),
                ("frank_wolfe", 0),
                *((name, 0) for name in _PLAIN[1:]),
            ],
            levels=(0, 0, 0, 0, 1, 1, 2, 2, 2, 2),
            against=(2, 2, 2, 2, 0, 3, 0, 0, 0, 0),
        ),
    ),
    "F3": (
        Contrast("relevant", _POOLS, [("frank_wolfe", 2), ("adamerging", 20), ("frank_wolfe", 20)]),
    ),
    "F4": (
        Contrast(
            "procedures",
            ("method",),
            [
                (_SOFT,),
                (_MERGED,),
                (f"{_HARD}, from cart",),
                ("frank_wolfe soft, by layer, from cart",),
            ],
            ("moved",),
            part="history",
            levels=(0, 1, 0, 0),
            against=(-1, -1, 0, 0),
            blocks=("seed", "step"),
        ),
    ),
    "F5": (
        Times("printed_walks", ("step",), [(60,), (30,)], ("gap",), 10, blocks=("seed",)),
        Times(
            "procedures",
            ("method", "step"),
            [(_SOFT, step) for step in (5, 4, 3, 2, 1, 0)],
            ("gap",),
            10,
            "history",
            levels=(0, 0, 0, 0, 0, 1),
            against=(1, 1, 1, 1, 1, 0),
            blocks=("seed", "method"),
        ),
    ),
    "F6": (
        Contrast(
            "language",
            ("method",),
            _methods(_SOFT, "average", "task_arithmetic", "fisher", "regmean"),
            ("loss",),
        ),
        Contrast(
            "calibration", ("method", "examples"), [("multitask", 0), ("frank_wolfe soft", 100)]
        ),
    ),
    "F7": (
        Contrast(
            "memory",
            ("experts",),
            [(20,), (4,)],
            ("peak_bytes",),
            1e9,
            "peaks",
            blocks=("variant", "repeat"),
        ),
    ),
    "F8": (
        Contrast(
            "procedures",
            ("method",),
            _methods("frank_wolfe hard, by task", _HARD, "frank_wolfe soft, by layer", _SOFT),
        ),
    ),
    "G1": (_PAIRS([_FISHER, _LAYER]),),
    "G2": (
        _PAIRS([_FINE, _LAYER], step=100.0),
        Spread("fusion", _FUSED, [_LAYER, _FINE], blocks=("seed", "data", "start")),
    ),
    "G3": (_PAIRS([_LAYER, (*_LAYER[:3], 3.0)]),),
    "G4": (
        Contrast(
            "tuning",
            ("method", "training"),
            [("a", "none"), ("cogram", "kickoff")],
            _TUNED,
            blocks=("seed", "data", "start"),
        ),
        Contrast(
            "tuning",
            ("method", "training"),
            [("b", "none"), ("cogram", "kickoff")],
            _TUNED,
            blocks=("seed", "data", "start"),
        ),
    ),
    "G5": (Follow("fusion", _FUSED, [_FISHER, _LAYER], blocks=("seed", "data", "start")),),
}


@cache
def _stored(name: Any, *part: str) -> pd.DataFrame:
    table: pd.DataFrame = name() if callable(name) else load_table(name, *part)
    gaps = [column for column in table if column in _FUSED and table[column].isna().any()]
    kept = {
        column: table[column].astype(object).where(table[column].notna(), "") for column in gaps
    }
    return table.assign(**kept)


def _touched(key: str, name: Any, part: Sequence[str]) -> Iterator[Contrast]:
    """The contrasts of a claim in that table."""
    if not callable(name) and name.startswith(("digits", "glyphs")):
        return  # no primary check reads these
    for contrast in CONTRASTS[key]:
        known = name.__name__ if callable(name) else name.split("-")[1]
        if contrast.result == known and (callable(name) or contrast.part == (part or ("test",))[0]):
            yield contrast


@cache
def _favoured(key: str, name: Any, *part: str) -> pd.DataFrame:
    table = _stored(name, *part)
    for contrast in _touched(key, name, part):
        table = contrast.shifted(table, 1)
    return table


def spoiled(key: str, way: str, seed: int = 0) -> Callable[..., pd.DataFrame]:
    """A loader that gives a claim's results, spoiled in one of the `WAYS`."""

    def load(name: Any, *part: str) -> pd.DataFrame:
        if way == "missing":
            raise MissingResult(f"no result {name!r}")
        table = _stored(name, *part)
        generator = np.random.default_rng(seed)
        contrasts = list(_touched(key, name, part))
        for contrast in contrasts:
            if way == "renamed":
                return table.rename(columns={contrast.outcome[0]: "renamed"})
            if way == "against":
                table = contrast.shifted(table, -1)
        if way in ("for", "exchanged", "shuffled"):
            table = _favoured(key, name, *part)
        for contrast in contrasts if way in ("exchanged", "shuffled") else ():
            table = getattr(contrast, way)(table, generator)
        return table

    return load


def found(claim: Claim, way: str) -> str:
    """The verdict on a claim by its primary checks, or ``"error"``."""
    load = spoiled(claim.key, way)
    if way == "missing":
        return str(judge([claim], load)[0]["verdict"].item())
    try:
        checks = [check for check in claim.test(load) if check.role == "primary"]
    except (ValueError, KeyError):
        return "error"
    return verdict([shown for shown, _ in outcomes(checks)])


def noticed(way: str, result: str) -> bool:
    """Whether that is the verdict that spoiled results must get."""
    wanted = {"for": HOLDS, "against": FAILS, "renamed": "error", "missing": UNTESTED}
    if way in ("exchanged", "shuffled"):
        return result not in (HOLDS, "error")
    return way not in wanted or result == wanted[way]


def table() -> pd.DataFrame:
    """Verdicts, one row per claim and one column per way to spoil its results."""
    rows = {claim.key: [found(claim, way) for way in WAYS] for claim in CLAIMS}
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(WAYS))


if __name__ == "__main__":
    verdicts = table()
    print(verdicts.to_markdown())
    cells = [noticed(way, result) for way in WAYS[1:] for result in verdicts[way]]
    print(f"{sum(cells)} of {len(cells)} cells noticed")
