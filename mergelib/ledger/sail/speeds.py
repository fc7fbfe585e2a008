"""Checks of speed-ups, which are bounds where one side seldom reaches the goal."""

from collections.abc import Mapping

import pandas as pd

from mergelib.ledger.checks import SEED, Check, Limit, Role, above, pick
from mergelib.sail.retraining import ENOUGH

VALUES = ("speed", "reached", "rival_reached")
# Whether enough of one's own runs get there, and of the rival's.
LIMITS: dict[tuple[bool, bool], tuple[Limit, str]] = {
    (True, True): ("", ""),
    (True, False): ("least", " (a lower bound)"),
    (False, True): ("most", " (an upper bound)"),
    (False, False): ("none", " (no factor: seldom reached)"),
}


def faster(what: str, rows: pd.DataFrame, cell: Mapping[str, str], role: Role) -> Check:
    """The check that a speed-up is above 1, by what was reached: as such, or as a bound.

    A run that never reaches the goal counts as if it had at its end. Where that is so of more than
    a fifth of one's own runs the speed-up is at most what is measured, where of the rival's, at
    least. Where of both, nothing follows, and a primary check becomes a secondary one.

    Args:
        what: the comparison in words.
        rows: one for each seed, with `VALUES`; ``reached`` and ``rival_reached`` are shares, 0..1.
        cell: columns to the value that they shall have.
        role: of the check.
    """
    speed, own, rival = (pick(rows, name, keys=SEED, **cell) for name in VALUES)
    limit, words = LIMITS[bool(own.mean() >= ENOUGH), bool(rival.mean() >= ENOUGH)]
    if limit == "none" and role == "primary":
        role = "secondary"
    return above(what + words, speed, 0.0, role=role, unit="log₂ ratio", limit=limit)
