"""Who reaches a goal, and when: what makes a speed-up a bound."""

from typing import Any

import pandas as pd

from mergelib.sail.retraining import ENOUGH

SIDES = ("reached", "rival_reached", "begun", "rival_begun")


def reached(own: Any, rival: Any, last: Any, rival_last: Any) -> dict[str, Any]:
    """Whether each side comes to the goal, and whether it is there before any step.

    Args:
        own: steps to the goal, a number or a column.
        rival: the rival's.
        last: steps in all, which those who never get there have as well.
        rival_last: the rival's.

    Returns:
        `SIDES`, each a boolean or a column of them.
    """
    flags = (own < last, rival < rival_last, own == 0, rival == 0)
    return dict(zip(SIDES, flags, strict=True))


def bounded(rows: pd.DataFrame, by: str) -> "pd.Series[bool]":
    """Where too many runs of a side never reach the goal, or begin there.

    Args:
        rows: speed-ups, with `SIDES`.
        by: the column that tells cells apart.
    """
    shares = rows.groupby(by)[[*SIDES]].mean()
    begun = [name for name in SIDES if name.endswith("begun")]
    shares[begun] = 1 - shares[begun]
    return shares.min(axis=1) < ENOUGH
