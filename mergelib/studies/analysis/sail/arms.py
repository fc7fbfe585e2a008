"""What chapters and the ledger read out of ``arms``: starts of larger networks compared."""

import pandas as pd
import torch

from mergelib.records.results import load_table
from mergelib.sail.retraining import Account, Costs, speed_up, steps_below
from mergelib.studies.papers.sail.larger.arms import ARMS, EVERY, GOALS

RESULTS = {"GPT": "tinyshakespeare-arms"}
BASELINES = ("nearest source", "Net2Net", "stack", "LiGO", "uniform", "greedy soup")

_CELL = ["modality", "seed", "start", "size"]
_ONE_SOURCE = [name for name, arm in ARMS.items() if arm.weights in ("", "nearest")]


def curves() -> pd.DataFrame:
    """All losses on the way, with costs and what was spent, ``flops``, by account B.

    What needs no second source may have been measured with a shared start alone; it stands here for
    own starts, too.

    Returns:
        A row per ``modality``, seed, start, size, arm and step.
    """
    parts = []
    for modality, name in RESULTS.items():
        keys = ["seed", "start", "size", "arm"]
        rows = load_table(name, "curves").merge(load_table(name, "costs"), on=keys)
        owned = rows.loc[rows["start"] == "own", "size"].unique()
        alone = rows[rows["arm"].isin(_ONE_SOURCE) & rows["size"].isin(owned)]
        both = pd.concat([rows, alone.assign(start="own")], ignore_index=True)
        parts.append(both.drop_duplicates([*keys, "step"]).assign(modality=modality))
    table: pd.DataFrame = pd.concat(parts, ignore_index=True)
    table["flops"] = table["added_flops"] + table["step"] * table["step_flops"]
    return table


def starts() -> pd.DataFrame:
    """Every arm by its steps to goals and by what it comes to at scratch's cost.

    Returns:
        A row per ``modality``, seed, start, size and ``arm``, with steps to each goal by its name
        (the last one where it was never reached), ``step_flops``, ``added_flops``,
        ``source_flops``, and ``loss`` (nats) and ``accuracy`` (0..1) at the last reading at which
        it had spent no more than scratch in all its steps, by account B.
    """
    rows = []
    for names, cell in curves().groupby(_CELL):
        where = dict(zip(_CELL, names, strict=True))
        budget = cell.loc[cell["arm"] == "scratch", "flops"].max()
        goals = GOALS[str(where["modality"])][str(where["size"])]
        for arm, curve in cell.sort_values("step").groupby("arm"):
            steps, losses = curve["step"].tolist(), torch.tensor(curve["judge"].to_numpy())
            end = curve[curve["flops"] <= budget].iloc[-1]
            costs = {name: float(end[f"{name}_flops"]) for name in ("step", "added", "source")}
            rows.append(
                {**where, "arm": arm, "loss": end["judge"], "accuracy": end["accuracy"]}
                | {f"{name}_flops": flops for name, flops in costs.items()}
                | {goal: int(steps_below(steps, losses, nats)) for goal, nats in goals.items()}
            )
    return pd.DataFrame(rows)


def speed_ups(
    table: pd.DataFrame, goal: str, account: Account, arm: str, rival: str = "scratch"
) -> pd.DataFrame:
    """log₂ speed-up of an arm over another.

    Args:
        table: as from `starts`.
        goal: ``"easy"``, ``"hard"`` or ``"late"``. Who never reaches it counts as if at the end.
        account: what counts as cost.
        arm: a name.
        rival: a name.

    Returns:
        Rows of ``modality``, ``seed``, ``start``, ``size`` and ``speed``.
    """
    own, other = (table[table["arm"] == name] for name in (arm, rival))
    pairs = own.merge(other, on=_CELL, suffixes=("", "_rival"))
    rows = []
    for row in pairs.to_dict("records"):
        costs, rivals = (
            Costs(*(row[f"{name}_flops{end}"] for name in ("step", "added", "source")))
            for end in ("", "_rival")
        )
        steps = [torch.tensor(row[name]) for name in (f"{goal}_rival", goal)]
        speed = speed_up(steps[0], rivals, steps[1], costs, account, least=EVERY)
        rows.append({name: row[name] for name in _CELL} | {"speed": float(speed)})
    return pd.DataFrame(rows, columns=[*_CELL, "speed"])
