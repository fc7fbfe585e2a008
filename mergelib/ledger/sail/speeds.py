"""Checks of speed-ups, which are bounds where one side seldom reaches the goal."""

from collections.abc import Mapping

import pandas as pd

from mergelib.ledger.checks import SEED, Check, Limit, Role, above, pick
from mergelib.sail.retraining import ENOUGH

VALUES = ("speed", "reached", "rival_reached", "begun")
LIMITS: dict[tuple[bool, bool], Limit] = {  # enough of one's own runs get there; of the rival's
    (True, True): "",
    (True, False): "least",
    (False, True): "most",
    (False, False): "none",
}
OPPOSITE: dict[Limit, Limit] = {"": "", "least": "most", "most": "least", "none": "none"}
WORDS: dict[Limit, str] = {
    "": "",
    "least": " (a lower bound)",
    "most": " (an upper bound)",
    "none": " (no factor: seldom reached)",
}
BEGUN = " (no factor: one side begins there)"


def faster(what: str, rows: pd.DataFrame, cell: Mapping[str, str], role: Role) -> Check:
    """The check that a speed-up is above 1, by what was reached: as such, or as a bound.

    A run that never reaches the goal counts as if it had at its end. Where that is so of more than
    a fifth of one's own runs the speed-up is at most what is measured, where of the rival's, at
    least. Where of both, nothing follows, and a primary check becomes a secondary one. So it does
    where more than a fifth of the runs of one side are there before any step: that compares starts.

    Args:
        what: the comparison in words.
        rows: one for each seed, with `VALUES`; all but ``speed`` are shares, 0..1.
        cell: columns to the value that they shall have.
        role: of the check.
    """
    speed, limit, words = _told(rows, cell)
    if limit == "none" and role == "primary":
        role = "secondary"
    return above(what + words, speed, 0.0, role=role, unit="log₂ ratio", limit=limit)


def more(what: str, rows: pd.DataFrame, cell: Mapping[str, str], other: Mapping[str, str]) -> Check:
    """The check that one speed-up is above another, by what was reached as for `faster`.

    Args:
        what: the comparison in words.
        rows: one for each seed and cell, with `VALUES`.
        cell: columns to the value that they shall have.
        other: likewise, of what it is compared with.
    """
    (speed, limit, words), (rival, reverse, further) = (
        _told(rows, place) for place in (cell, other)
    )
    limits = {limit, OPPOSITE[reverse]} - {""}
    both: Limit = "" if not limits else limits.pop() if len(limits) == 1 else "none"
    told = BEGUN if BEGUN in (words, further) else WORDS[both]
    return above(what + told, speed, rival, unit="log₂ ratio", limit=both)


def seldom(rows: pd.DataFrame, by: str) -> int:
    """How many cells, told apart by a column, there are in which a side seldom reaches the goal."""
    reached = rows.groupby(by)[["reached", "rival_reached"]].mean().min(axis=1)
    return int((reached < ENOUGH).sum())


def _told(rows: pd.DataFrame, cell: Mapping[str, str]) -> tuple["pd.Series[float]", Limit, str]:
    """Speed-ups by seed, what they are a bound of, and this in words."""
    speed, own, rival, begun = (pick(rows, name, keys=SEED, **cell) for name in VALUES)
    if (1 - begun).mean() < ENOUGH:
        return speed, "none", BEGUN
    limit = LIMITS[bool(own.mean() >= ENOUGH), bool(rival.mean() >= ENOUGH)]
    return speed, limit, WORDS[limit]
