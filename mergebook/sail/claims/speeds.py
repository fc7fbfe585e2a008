"""Checks of speed-ups, which are bounds where a side rarely gets there, or is there at once."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mergebook.ledger.checks import SEED, Check, Limit, Role, matrix, pick
from mergebook.sail.read.reached import SIDES, wanting

TARGETS = ("seed", "target")
VALUES = ("speed", *SIDES)
WORDS: dict[Limit, str] = {
    "": "",
    "least": " (a lower bound)",
    "most": " (an upper bound)",
    "none": " (no factor)",
}
UNIT = "log₂ ratio"


def faster(
    what: str,
    rows: pd.DataFrame,
    cell: Mapping[str, str],
    role: Role,
    *,
    keys: tuple[str, ...] = SEED,
    network: str = "",
) -> Check:
    """The check that a speed-up is above 1; where steps are not known, the values are bounds.

    A run that never reaches the goal counts as if it had at its end, and one that is there at the
    first reading or before as if at that reading. Where that is so of more than a fifth of one
    side's runs, what is measured is a bound: at least, where the rival is slower than is seen or
    the own start faster; else at most. Where it is both, nothing follows. What was reached changes
    no role. If all values are the same, as where no step is known, their sign is tested instead.

    Args:
        what: the comparison in words.
        rows: one for each of the keys, with `VALUES`; all but ``speed`` are fractions, 0..1.
        cell: columns to the value that they must have.
        role: of the check.
        keys: what identifies rows: `SEED`, or `TARGETS` where targets are a sample of tasks.
        network: see `Check`.
    """
    speed, limit, early = _known(rows, cell, keys)
    what += _words(limit, early=early)
    values = matrix(speed)
    options: dict[str, Any] = {"role": role, "limit": limit}
    if np.ptp(values) < 1e-9:
        signs = (values.reshape(len(values), -1).mean(1) > 0).astype(float)
        what += ": faster in more than half of the seeds"
        return Check(what, signs, "fraction", bound=0.5, unit="fraction", **options)
    return Check(what, values, unit=UNIT, network=network, **options)


def _words(limit: Limit, *, early: bool) -> str:
    first = ": one side is there at the first reading)"
    return WORDS[limit].replace(")", first) if early else WORDS[limit]


def _known(
    rows: pd.DataFrame, cell: Mapping[str, str], keys: tuple[str, ...]
) -> tuple["pd.Series[float]", Limit, bool]:
    """Speed-ups, what they are a bound of, and whether too many runs of a side are early."""
    speed, *sides = (pick(rows, name, keys=keys, **cell) for name in VALUES)
    shares = pd.DataFrame({name: [side.mean()] for name, side in zip(SIDES, sides, strict=True)})
    rarely, rival_rarely, early, rival_early = wanting(shares).iloc[0]
    least: Limit = "least" if rival_rarely or early else ""
    most: Limit = "most" if rarely or rival_early else ""
    return speed, _joint(least, most), bool(early or rival_early)


def _joint(one: Limit, two: Limit) -> Limit:
    """What is a bound in both ways."""
    return one or two if one == two or not (one and two) else "none"
