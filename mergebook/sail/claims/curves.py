"""Checks of the best γ of a curve, which decide nothing where the curve is flat."""

from typing import Any

import pandas as pd

from mergebook.ledger.checks import Check, above


def of_best(
    what: str, better: pd.Series, worse: pd.Series | float, *, flat: bool, **options: Any
) -> Check:
    """Return the check, as `above` makes it, of a quantity that is read off each seed's best γ.

    Where the curve is `flat`, the best γ is chance and the check stays open.

    Args:
        what: the comparison in words.
        better: the quantity that the claim says is larger, by seed.
        worse: the quantity that it is compared with.
        flat: whether seeds agree on no γ, see `mergebook.sail.read.flatness.flat`.
        **options: of `mergebook.ledger.checks.Check`.
    """
    if flat:
        what += " (a flat curve)"
        options |= {"limit": "none"}
    return above(what, better, worse, **options)


def near_ends(what: str, near: pd.Series, grid: pd.Series, *, flat: bool, **options: Any) -> Check:
    """Return the check that the best γ is near 0 or 1 in more seeds than by chance.

    Args:
        what: the curve in words.
        near: by seed, whether its best γ is near 0 or 1.
        grid: whether each γ of the sweep is; their fraction is the bound.
        flat: as for `of_best`.
        **options: of `mergebook.ledger.checks.Check`.
    """
    options |= {"kind": "fraction", "bound": float(grid.mean()), "unit": "of seeds"}
    return of_best(f"{what}: best γ near 0 or 1", near.astype(float), 0.0, flat=flat, **options)
