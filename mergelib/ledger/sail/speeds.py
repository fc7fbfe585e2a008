"""Checks of speed-ups, which are bounds where a side seldom reaches the goal or begins there."""

from collections.abc import Mapping

import pandas as pd

from mergelib.ledger.checks import SEED, Check, Limit, Role, above, pick
from mergelib.studies.analysis.sail.reached import SIDES, wanting

VALUES = ("speed", *SIDES)
OPPOSITE: dict[Limit, Limit] = {"": "", "least": "most", "most": "least", "none": "none"}
WORDS: dict[Limit, str] = {
    "": "",
    "least": " (a lower bound)",
    "most": " (an upper bound)",
    "none": " (no factor)",
}


def faster(what: str, rows: pd.DataFrame, cell: Mapping[str, str], role: Role) -> Check:
    """The check that a speed-up is above 1, by what was reached: as such, or as a bound.

    A run that never reaches the goal counts as if it had at its end, and one that is there before
    any step as if it had taken as many as lie between two readings. Where that is so of more than a
    fifth of one side's runs, what is measured is a bound: at least, where the rival is slower than
    is seen or one's own start faster; else at most. Where it is both, nothing follows. This, and
    what compares losses of starts rather than speeds, is no primary check, but a secondary one.

    Args:
        what: the comparison in words.
        rows: one for each seed, with `VALUES`; all but ``speed`` are shares, 0..1.
        cell: columns to the value that they shall have.
        role: of the check.
    """
    speed, limit, begun = _told(rows, cell)
    if role == "primary" and (limit == "none" or begun):
        role = "secondary"
    words = _words(limit, begun=begun)
    return above(what + words, speed, 0.0, role=role, unit="log₂ ratio", limit=limit)


def more(what: str, rows: pd.DataFrame, cell: Mapping[str, str], other: Mapping[str, str]) -> Check:
    """The check that one speed-up is above another, by what was reached as for `faster`.

    Args:
        what: the comparison in words.
        rows: one for each seed and cell, with `VALUES`.
        cell: columns to the value that they shall have.
        other: likewise, of what it is compared with.
    """
    (speed, limit, begun), (rival, reverse, also) = (_told(rows, place) for place in (cell, other))
    both = _joint(limit, OPPOSITE[reverse])
    words = _words(both, begun=begun or also)
    return above(what + words, speed, rival, unit="log₂ ratio", limit=both)


def _words(limit: Limit, *, begun: bool) -> str:
    return WORDS[limit].replace(")", ": one side begins there)") if begun else WORDS[limit]


def _told(rows: pd.DataFrame, cell: Mapping[str, str]) -> tuple["pd.Series[float]", Limit, bool]:
    """Speed-ups by seed, what they are a bound of, and whether too many runs of a side begin there.

    Where they do, they compare losses of starts rather than speeds.
    """
    speed, *sides = (pick(rows, name, keys=SEED, **cell) for name in VALUES)
    shares = pd.DataFrame({name: [side.mean()] for name, side in zip(SIDES, sides, strict=True)})
    seldom, rival_seldom, begun, rival_begun = wanting(shares).iloc[0]
    least: Limit = "least" if rival_seldom or begun else ""
    most: Limit = "most" if seldom or rival_begun else ""
    return speed, _joint(least, most), bool(begun or rival_begun)


def _joint(one: Limit, two: Limit) -> Limit:
    """What is a bound in both ways."""
    return one or two if one == two or not (one and two) else "none"
