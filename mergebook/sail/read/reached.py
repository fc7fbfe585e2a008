"""Who reaches a goal, when, and how much faster; and what makes a speed-up a bound."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from mergebook.sail.costs import ENOUGH, Account, Costs, speed_up, steps_to

SIDES = ("reached", "rival_reached", "early", "rival_early")
FLOPS = ["step_flops", "added_flops", "source_flops"]


def steps_of(curve: pd.DataFrame, goals: Mapping[str, float]) -> dict[str, float]:
    """Steps of one run to each goal (nats), NaN where it is never reached, and its ``last``."""
    rows = curve.sort_values("step")
    steps, losses = rows["step"].tolist(), torch.tensor(rows["judge"].to_numpy())
    found = {name: float(steps_to(steps, losses, nats)) for name, nats in goals.items()}
    return {"last": steps[-1], **found}


def speed_ups(
    own: pd.DataFrame,
    rival: pd.DataFrame,
    keys: Sequence[str],
    goal: str,
    account: Account,
    every: int,
) -> pd.DataFrame:
    """log₂ speed-up of one side over another, of the cells that both have.

    A run that never reaches the goal counts as if at its ``last`` step; both sides have steps to
    the goal in a column of its name, and `FLOPS`.

    Returns:
        Rows of the keys, ``speed`` and `SIDES`.
    """
    pairs = own.merge(rival, on=list(keys), suffixes=("", "_rival"))

    def side(end: str) -> tuple[torch.Tensor, Any]:
        steps = pairs[goal + end].fillna(pairs["last" + end])
        costs: Any = [torch.tensor(pairs[name + end].to_numpy(float)) for name in FLOPS]
        return torch.tensor(steps.to_numpy(float)), Costs(*costs)

    speed = speed_up(*side("_rival"), *side(""), account, least=every).numpy()
    flags = reached(pairs[goal], pairs[f"{goal}_rival"], every)
    return pairs[list(keys)].assign(speed=speed, **flags)


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
