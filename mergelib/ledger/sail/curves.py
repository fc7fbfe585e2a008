"""Checks of the best γ of a curve, which decide nothing where the curve is flat."""

from typing import Any

import pandas as pd

from mergelib.ledger.checks import Check, above


def of_best(
    what: str, better: pd.Series, worse: pd.Series | float, *, flat: bool, **options: Any
) -> Check:
    """The check, as `above`, of what is read off the best γ of each seed.

    Where the curve is `flat`, the best γ is chance: the check is secondary and stays open.

    Args:
        what: the comparison in words.
        better: what shall be larger, by seed.
        worse: what it is compared with.
        flat: whether seeds agree on no γ, see `mergelib.studies.analysis.sail.flatness.flat`.
        **options: of `mergelib.ledger.checks.Check`.
    """
    if flat:
        what += " (a flat curve)"
        options |= {"role": "secondary", "limit": "none"}
    return above(what, better, worse, **options)
