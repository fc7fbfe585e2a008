"""Comparisons of the best γ of a curve, which decide nothing where the curve is flat."""

from typing import Any

import pandas as pd

from mergebook.ledger import Comparison, comparison


def of_best(says: str, *, flat: bool, **options: Any) -> Comparison:
    """A comparison of what is read off each seed's best γ.

    Where the curve is `flat` (see `mergebook.sail.read.flatness`), the best γ is chance and the
    check stays open.
    """
    return comparison(says + " (a flat curve)" * flat, limit="none" if flat else "", **options)


def near_ends(says: str, near: pd.DataFrame, grid: pd.Series, **options: Any) -> Comparison:
    """The best γ is ``near`` 0 or 1 in more seeds than γ's of the sweep's ``grid`` are."""
    options |= {"kind": "fraction", "bound": float(grid.mean()), "unit": "of seeds"}
    return of_best(f"{says}: best γ near 0 or 1", result=near.copy, value="near", **options)
