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


def wanting(shares: pd.DataFrame) -> pd.DataFrame:
    """Whether too many runs fail to get there, or begin there.

    Args:
        shares: of runs, 0..1, a column for each of `SIDES`.
    """
    begun = list(SIDES[2:])
    return shares.assign(**(1 - shares[begun])) < ENOUGH


def bounded(rows: pd.DataFrame, by: str) -> "pd.Series[bool]":
    """Where any of `SIDES` is `wanting`.

    Args:
        rows: speed-ups, with `SIDES`.
        by: the column that tells cells apart.
    """
    return wanting(rows.groupby(by)[[*SIDES]].mean()).any(axis=1)
