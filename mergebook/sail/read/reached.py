"""Who reaches a goal, and when: what makes a speed-up a bound."""

from typing import Any

import pandas as pd

from mergebook.sail.costs import ENOUGH

SIDES = ("reached", "rival_reached", "early", "rival_early")


def reached(own: Any, rival: Any, first: int) -> dict[str, Any]:
    """Return whether each side reaches the goal, and whether no later than the first reading."""
    flags = (~pd.isna(own), ~pd.isna(rival), own <= first, rival <= first)
    return dict(zip(SIDES, flags, strict=True))


def wanting(fractions: pd.DataFrame) -> pd.DataFrame:
    """Return whether too few runs get to the goal, or too many are there at the first reading."""
    early = list(SIDES[2:])
    return fractions.assign(**(1 - fractions[early])) < ENOUGH


def bounded(rows: pd.DataFrame, by: str) -> "pd.Series[bool]":
    """Where any of `SIDES` is `wanting`."""
    return wanting(rows.groupby(by)[[*SIDES]].mean()).any(axis=1)
