"""Spoil the results that a claim is tested on, and see whether its verdict notices.

For every claim of the ledger, results are shifted in its favour, which must make it hold; shifted
against it, which must make it fail; and, as its favour has made it hold, exchanged between methods
and shuffled among them, after which it must not. A renamed column must raise an error, and a result
that is not there must read "not tested". Prints a table of claims by ways to spoil.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import bound_contrasts
import numpy as np
import pandas as pd
import remedies_contrasts
import sail_contrasts
import stability_contrasts
from contrasts import Contrast, Follow, Key, Spread, Times

from mergebook.cart.claims import texts as cart
from mergebook.cart.read import with_rest
from mergebook.cogram import claims as cogram
from mergebook.frank_wolfe import claims as frank_wolfe
from mergebook.frank_wolfe.claims import checks as walks
from mergebook.lab.results import MissingResult, load_table
from mergebook.ledger import Claim
from mergebook.ledger.verdicts import (
    FAILS,
    HOLDS,
    PROVED,
    REFUTED,
    UNTESTED,
    judge,
    outcomes,
    verdict,
)
from mergebook.sail import claims as sail
from mergebook.sail.measure.spirals import EPOCHS
from mergebook.stability import claims as stability

CLAIMS = (*cart.CLAIMS, *frank_wolfe.CLAIMS, *cogram.CLAIMS, *stability.CLAIMS, *sail.CLAIMS)
WAYS = ("as measured", "for", "against", "exchanged", "shuffled", "renamed", "missing")


def _methods(*names: str) -> list[Key]:
    return [(name,) for name in names]


_CART, _LOW = "cart", "low_rank_task_arithmetic"
_RANKS = ("method", "scale", "rank_ratio")
_RATIOS = {
    "ranks": (0.75, 0.5, 0.32, 0.24, 0.16, 0.12, 0.04, 0.02, 0.01, 0.08),
    "surface": (0.32, 0.16, 0.04, 0.02, 0.01, 0.08),
}
_SOFT, _HARD = walks.SOFT, walks.HARD
_FREE, _MERGED = walks.FREE, walks.MERGED
_POOLS = ("method", "count")
_PLAIN = ("frank_wolfe", "average", "task_arithmetic", "ties", "adamerging")
_FUSED = ("method", "prototypes", "levels", "iterations")
_PAIRS = partial(Contrast, "fusion", _FUSED, blocks=("seed", "data", "start"))
_LAYER: Key = ("cogram", "geometric", "layer", 1.0)
_WEIGHTS: Key = ("cogram", "geometric", "all weights", 1.0)
_IN_TURN: Key = ("cogram", "geometric", "all weights, in turn", 1.0)
_FISHER: Key = ("fisher", "", "", "")
_MASKED = partial(Contrast, "variance", ("operator", "density"), blocks=("seed", "scale", "task"))
_MASKS: list[Key] = [
    *((kind, d) for d in (0.05, 0.2) for kind in ("trim", "drop", "trim, elect")),
    ("elect", 1.0),
    ("none", 1.0),
]
_TUNED = ("accuracy", "accuracy_a", "accuracy_b")

CONTRASTS: dict[str, tuple[Contrast, ...]] = {
    "C1": (
        Contrast(
            "baselines",
            ("method",),
            _methods("average", "task_arithmetic", "ties", "consensus", _CART),
        ),
        Contrast("ties", ("method",), _methods("ties", _CART)),
    ),
    "C2": tuple(
        Contrast(
            study,
            _RANKS,
            [
                *lowest,
                *((_CART, 1.0, ratio) for ratio in (0.01, 0.32)),
                *((_LOW, 0.3, ratio) for ratio in (0.08, 1.0)),
                (_CART, 1.0, 0.08),
            ],
        )
        for study, *lowest in (
            ("ranks", (_LOW, 0.3, 0.0), (_CART, 1.0, 0.0)),
            ("surface", (_CART, 0.0, 1.0)),  # the average
        )
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
        for name, far, step in (("interference_all", 1.0, 20.0), ("reconstruction", 0.01, 0.6))
    ),
    "C5": tuple(
        Contrast(study, _RANKS, [(_CART, 1.0, ratio) for ratio in ratios])
        for study, ratios in _RATIOS.items()
    ),
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
            ("method", "setting", "rest"),
            [
                ("individual", "", ""),
                *(("cart_indexing", "rank_ratio=0.08", rest) for rest in ("average", "own")),
            ],
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
        Contrast("baselines", ("method",), _methods("average", "task_arithmetic", "ties", _CART)),
        Contrast("ties", ("method",), _methods("ties", _CART)),
    ),
    "F1": (Contrast("procedures", ("method",), _methods("adamerging", _MERGED, _FREE)),),
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
            "printed_mixtures",
            ("quantity",),
            [("smallest",), ("experts",)],
            ("value",),
            levels=(0, 0),
            against=(-1, -1),
            blocks=("seed",),
        ),
    ),
    "F5": (Times("printed_walks", ("step",), [(60,), (30,)], ("gap",), 10, blocks=("seed",)),),
    "F6": (Contrast("procedures", ("method",), _methods(*walks.MERGES, _MERGED)),),
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
        _PAIRS([_WEIGHTS, _IN_TURN, _LAYER], step=100.0),
        Spread("fusion", _FUSED, [_LAYER, _WEIGHTS, _IN_TURN], blocks=("seed", "data", "start")),
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
    "T6": (
        _MASKED(_MASKS, ("relative",), part="variance"),
        _MASKED(_MASKS, ("loss",), against=range(-20, len(_MASKS) - 20)),
    ),
    "T12": (_MASKED([("trim, elect", 0.2), ("drop", 0.2), ("none", 1.0)], ("loss",)),),
    "G5": (Follow("fusion", _FUSED, [_FISHER, _LAYER], blocks=("seed", "data", "start")),),
    **stability_contrasts.CONTRASTS,
    **bound_contrasts.CONTRASTS,
    **remedies_contrasts.CONTRASTS,
    **sail_contrasts.CONTRASTS,
}

ASIDE = ("digits", "glyphs")  # no primary check reads these,
RENDERED = ("S7", "T6", "T10", "T12", *remedies_contrasts.CONTRASTS)  # but those of these claims


@cache
def _stored(name: Any, *part: str) -> pd.DataFrame:
    table: pd.DataFrame = name() if callable(name) else load_table(name, *part)
    if not callable(name) and name.endswith("-compression"):
        table = with_rest(table)
    for column in {"easy", "hard", "late"} & {*table}:  # a run that never got there: its last step
        table = table.fillna({column: table.get("last", EPOCHS)})
    gaps = [column for column in table if column in _FUSED and table[column].isna().any()]
    kept = {
        column: table[column].astype(object).where(table[column].notna(), "") for column in gaps
    }
    return table.assign(**kept)


def _touched(key: str, name: Any, part: Sequence[str]) -> Iterator[Contrast]:
    """The contrasts of a claim in that table."""
    if not callable(name) and name.startswith(ASIDE) and key not in RENDERED:
        return
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
        asked = replace(claim, test=lambda _: claim.test(load))  # also where a table is computed
        return str(judge([asked])[0]["verdict"].item())
    try:
        checks = [check for check in claim.test(load) if check.role == "primary"]
    except (ValueError, KeyError):
        return "error"
    return verdict([result.shown for result in outcomes(checks)])


def noticed(way: str, result: str) -> bool:
    """Whether that is the verdict that spoiled results must get."""
    right = (HOLDS, PROVED)
    wanted: dict[str, tuple[str, ...]] = {"for": right, "against": (FAILS, REFUTED)}
    wanted |= {"renamed": ("error",), "missing": (UNTESTED,)}
    if way in ("exchanged", "shuffled"):
        return result not in (*right, "error")
    return way not in wanted or result in wanted[way]


def table() -> pd.DataFrame:
    """Verdicts, one row per claim and one column per way to spoil its results."""
    rows = {claim.key: [found(claim, way) for way in WAYS] for claim in CLAIMS}
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(WAYS))


if __name__ == "__main__":
    verdicts = table()
    print(verdicts.to_markdown())
    cells = [noticed(way, result) for way in WAYS[1:] for result in verdicts[way]]
    print(f"{sum(cells)} of {len(cells)} cells noticed")
