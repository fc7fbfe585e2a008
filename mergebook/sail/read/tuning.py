"""Goals and tuned rates of larger networks, read from the results of ``starts_tuning``."""

from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from statistics import median

import pandas as pd
import torch

from mergebook.lab.results import load_table
from mergebook.sail.costs import GOALS, goals_of
from mergebook.sail.measure.rates import Rates

TEXT = "tinyshakespeare-starts_tuning"
PICTURES = ("vision8-starts_tuning", "vision14-starts_tuning", "vision14-starts_tuning-byol")
RESULTS = (TEXT, *PICTURES)
# Steps of the runs with these goals.
BUDGETS = {"GPT": 1000, "ResNet": 160, "ResNet, halves": 160, "ResNet, halves, BYOL": 1600}
LATE = {"late": 0.5}  # of the steps of the nearest source, which no source has at its start
CHOSEN_AT = (300, 600)  # steps after which random weights are compared: where the goals are
RANDOM = ("scratch, tuned", "random, same scale")
_RATES = list(Rates._fields)


def tuned() -> pd.DataFrame:
    """All curves on tuning seeds; texts have the modality ``GPT`` and no target."""
    rows = pd.concat([load_table(name, "curves") for name in RESULTS], ignore_index=True)
    rows = rows.reindex(columns=[*dict.fromkeys([*rows, "modality", "target"])])
    missing = {"modality": "GPT", "target": ""}
    return rows.astype(dict.fromkeys(missing, object)).fillna(missing)


def grid(curves: pd.DataFrame, size: str, arm: str) -> pd.Series:
    """Mean ``choose`` loss of a GPT's arm by the fields of its `Rates`."""
    own = curves[(curves["modality"] == "GPT") & (curves["size"] == size) & (curves["arm"] == arm)]
    steps = CHOSEN_AT if arm in RANDOM else (own["step"].max(),)
    return own[own["step"].isin(steps)].groupby(_RATES)["choose"].mean()


def best_rates(curves: pd.DataFrame, size: str, arm: str) -> Rates:
    """The rates of a GPT's arm with the least loss in its `grid`."""
    losses = grid(curves, size, arm).reset_index()
    return Rates(*(float(losses[name][losses["choose"].argmin()]) for name in _RATES))


@cache
def goals() -> dict[tuple[str, str, str], dict[str, float]]:
    """Goals in nats by modality, size and target: medians over tuning seeds, see `goals_of`."""
    curves = tuned()
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for cell, part in curves.groupby(["modality", "size", "target"]):
        modality, size, target = map(str, cell)
        scratch = RANDOM[0] if modality == "GPT" else "scratch"
        own: dict[str, float] = {}
        for arm, fractions in {scratch: GOALS, "nearest source": LATE}.items():
            rows = part[part["arm"] == arm]
            if modality == "GPT":
                rows = rows[rows[_RATES].eq([*best_rates(curves, size, arm)]).all(axis=1)]
            budget = BUDGETS[modality] if arm == scratch else rows["step"].max()
            own |= goals_on(rows, budget, fractions)
        found[modality, size, target] = own
    return found


def goals_on(
    curves: pd.DataFrame,  # a run per seed
    budget: int,
    fractions: Mapping[str, float] = GOALS,
) -> dict[str, float]:
    """Goals by `goals_of` in ``judge``: medians over seeds."""
    losses: dict[str, list[float]] = defaultdict(list)
    for _, run in curves.sort_values("step").groupby("seed"):
        values = torch.tensor(run["judge"].to_numpy())
        for name, loss in goals_of(run["step"].tolist(), values, budget, fractions).items():
            losses[name].append(float(loss))
    return {name: median(own) for name, own in losses.items()}


def goals_for(modality: str, size: str, target: str = "") -> dict[str, float]:
    """Losses that arms must reach, in nats, by their names."""
    return goals().get((modality, size, target), {})
