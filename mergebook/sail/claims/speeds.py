"""Comparisons of speed, which are bounds where a side rarely gets there, or is there at once."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from mergebook.ledger import Comparison, comparison
from mergebook.ledger.checks import SEED, Limit, Role, matrix, pick
from mergebook.sail.costs import Account
from mergebook.sail.read import reached
from mergebook.sail.read.reached import SIDES, wanting

# Retraining alone decides, as in the paper's curves.
ROLES: dict[Account, Role] = {"A": "primary", "B": "secondary", "C": "secondary"}
TARGETS = ("seed", "target")
VALUES = ("speed", *SIDES)
WORDS: dict[Limit, str] = {"": "", "none": " (no factor)"}
WORDS |= {"least": " (a lower bound)", "most": " (an upper bound)"}


def faster(
    says: str,
    own: str,
    rival: str,
    goal: str,
    account: Account,
    *,
    about: Mapping[str, str],
    speed_ups: Callable[..., pd.DataFrame] = reached.speed_ups,
    keys: tuple[str, ...] = SEED,
    **options: Any,
) -> Comparison:
    """A comparison of the steps of two starts to a goal, by `measured` speed-ups."""
    says = f"{says}, {goal} goal, account {account}"
    ups = partial(speed_ups, goal=goal, account=account, own=own, rival=rival)
    options |= {"value": goal, "falling": True, "unit": "log₂ ratio", "keys": keys}
    options |= {"about": {**about, "goal": goal, "account": account}}
    return comparison(says, own, rival, measure=partial(measured, says, ups, keys), **options)


def measured(
    says: str, speed_ups: Callable[..., pd.DataFrame], keys: tuple[str, ...], rows: pd.DataFrame
) -> Mapping[str, Any]:
    """Speed-ups above 1; where steps are not known, the values are bounds.

    A run that never reaches the goal counts as if at its end, one that is there by the first
    reading as if at that. Where that is more than a fifth of one side's runs, the value is a bound:
    at least, if the rival is slower than is seen or the own start faster; else at most; of both
    sides, nothing. If all values are the same, their sign is tested.
    """
    speeds = speed_ups(rows)
    shares = speeds[[*SIDES]].astype(float).mean().to_frame().T
    rarely, rival_rarely, early, rival_early = wanting(shares).iloc[0]
    least: Limit = "least" if rival_rarely or early else ""
    most: Limit = "most" if rarely or rival_early else ""
    limit: Limit = "none" if least and most else least or most
    words = WORDS[limit]
    if early or rival_early:
        words = words.replace(")", ": one side is there at the first reading)")
    values = matrix(pick(speeds, "speed", keys=keys))
    if np.ptp(values) >= 1e-9:
        return {"what": says + words, "values": values, "limit": limit}
    signs = (values.reshape(len(values), -1).mean(1) > 0).astype(float)
    what = f"{says}{words}: faster in more than half of the seeds"
    counted = {"what": what, "values": signs, "limit": limit, "kind": "fraction", "bound": 0.5}
    return counted | {"unit": "fraction", "network": ""}
