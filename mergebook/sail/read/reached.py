"""Who reaches a goal, when, and how much faster; and what makes a speed-up a bound."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch

from mergebook.sail.costs import ENOUGH, Account, Costs, speed_up, steps_to

KEYS = ("modality", "target", "seed", "source", "reading", "start", "size")  # of runs
SIDES = ("reached", "rival_reached", "early", "rival_early")
FLOPS = ["step_flops", "added_flops", "source_flops"]


def steps_of(curve: pd.DataFrame, goals: Mapping[str, float]) -> dict[str, float]:
    """Steps of a run to each goal (nats; NaN if never), of its ``first_step`` and its ``last``."""
    rows = curve.sort_values("step")
    steps, losses = rows["step"].tolist(), torch.tensor(rows["judge"].to_numpy())
    found = {name: float(steps_to(steps, losses, nats)) for name, nats in goals.items()}
    return {"first_step": steps[:2][-1], "last": steps[-1], **found}


def speed_ups(
    table: pd.DataFrame, goal: str, account: Account, own: str, rival: str = "scratch"
) -> pd.DataFrame:
    """log₂ ``speed`` of one arm over another, and `SIDES`; a run counts as at its ``last`` step."""
    names = table["arm" if "arm" in table else "method"]
    keys = [name for name in KEYS if name in table]
    varying = [name for name in keys if table[name].nunique(dropna=False) > 1] or keys
    table = table[[*keys, goal, "first_step", "last", *FLOPS]]
    pairs = table[names == own].merge(table[names == rival], on=varying, suffixes=("", "_rival"))

    def side(end: str) -> tuple[torch.Tensor, Any]:
        steps = pairs[goal + end].fillna(pairs["last" + end])
        costs: Any = [torch.tensor(pairs[name + end].to_numpy(float)) for name in FLOPS]
        return torch.tensor(steps.to_numpy(float)), Costs(*costs)

    least = torch.tensor(pairs["first_step"].to_numpy(float))
    speed = speed_up(*side("_rival"), *side(""), account, least=least).numpy()
    ends = (pairs[goal], pairs[f"{goal}_rival"])
    flags = [*(end.notna() for end in ends), *(end <= pairs["first_step"] for end in ends)]
    return pairs[keys].assign(speed=speed, **dict(zip(SIDES, flags, strict=True)))


def wanting(fractions: pd.DataFrame) -> pd.DataFrame:
    """Return whether too few runs get to the goal, or too many are there at the first reading."""
    early = list(SIDES[2:])
    return fractions.assign(**(1 - fractions[early])) < ENOUGH


def bounded(rows: pd.DataFrame, by: str) -> "pd.Series[bool]":
    """Where any of `SIDES` is `wanting`."""
    return wanting(rows.groupby(by)[[*SIDES]].mean()).any(axis=1)
