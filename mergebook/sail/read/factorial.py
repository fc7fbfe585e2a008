"""What chapter 57 and the ledger read out of ``factorial``: is it merging, or a warm start?"""

from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch

from mergebook.lab.results import load_table
from mergebook.sail.costs import ENOUGH, Account, Costs, smoothed, speed_up, steps_to
from mergebook.sail.measure.arms import EVERY, KINDS, SCRATCH, Cell
from mergebook.sail.read import stacked
from mergebook.sail.read.reached import FLOPS

RESULTS = {  # by modality
    "GPT": "tinyshakespeare-factorial",
    "ResNet": "vision8-factorial",
    "ResNet, halves": "vision14-factorial",
}
SCALES = "tinyshakespeare-arms-scale"  # random weights of GPTs, of which one is the rival
USUAL, ALIKE = "scratch, usual scale", "random, same scale"  # in the place of maps, as `SCRATCH`
RANDOM = {"scratch, tuned": SCRATCH, ALIKE: ALIKE}  # arms of `SCALES`
LONGEST = 900  # steps of scratch in the factorial of GPTs
GOALS = 40  # losses that are aimed at
ONE = "one source"  # among the starts of `effects`

_CELL = list(Cell._fields)
_KEYS = ["modality", "seed", *_CELL]
_Curve = tuple[np.ndarray, np.ndarray]


def curves() -> pd.DataFrame:
    """Losses (``judge``, nats) and FLOPs, a row per ``modality``, seed, cell and ``step``."""
    parts = {}
    for modality, name in RESULTS.items():
        rows, costs = load_table(name, "curves"), load_table(name, "costs")
        parts[modality] = rows.merge(costs, on=["seed", *_CELL])
    parts["GPT"] = parts["GPT"].replace({"maps": {SCRATCH: USUAL}})
    keys = ["seed", "size", "start", "arm"]
    random = load_table(SCALES, "curves").merge(load_table(SCALES, "costs"), on=keys)
    random = random[(random["size"] == "twice") & (random["step"] <= LONGEST)]
    random = random[(random["start"] == "shared") & random["arm"].isin([*RANDOM])]
    maps = random["arm"].map(RANDOM)
    random = random.assign(modality="GPT", sources=0, start="", maps=maps)  # no sources
    table = pd.concat([stacked(parts, "modality"), random], ignore_index=True)
    alone = table[(table["sources"] == 1) & (table["maps"] == "LiGO alone")]
    both = pd.concat([table, alone.assign(maps="LiGO joint")], ignore_index=True)
    return both[[*_KEYS, "step", "judge", *FLOPS]]


def ends() -> pd.DataFrame:
    """Losses at the cost of scratch in as many steps, by account; NaN if the start costs more."""
    table = curves()
    last = table[table["sources"] > 0].groupby("modality")["step"].max()
    rows = []
    for _, part in table.groupby(_KEYS, sort=False):
        (steps, losses), costs = _read(part)
        row = part[_KEYS].iloc[0].to_dict()
        budget = costs.step * last[row["modality"]]
        for account in get_args(Account):
            spent = costs.of(torch.from_numpy(steps), account).numpy()
            row[account] = np.interp(budget, spent, losses, left=np.nan)
        rows.append(row)
    return pd.DataFrame(rows)


def saved() -> pd.DataFrame:
    """Steps saved against scratch, and factors, for losses from scratch's first reading to its end.

    Per modality, seed, cell and ``goal`` (nats): ``saved``, and log₂ of scratch's FLOPs over one's
    own by account, NaN where one never gets there; ``begun``: at the goal by the first reading;
    ``often``: both get there in enough seeds (`ENOUGH`), and in this one.
    """
    table = curves()
    rows = []
    for _, part in table.groupby("modality", sort=False):
        scratch = part[part["maps"] == SCRATCH]
        top = scratch.loc[scratch["step"] == EVERY, "judge"].mean()
        goals = np.linspace(top, scratch.groupby("seed")["judge"].min().mean(), GOALS)
        for cell, own, costs, rival, rivals in _beside_scratch(part):
            slow, quick = _steps(rival, goals), _steps(own, goals)
            columns = {"goal": goals, "saved": slow - quick, "begun": quick <= EVERY}
            sides = torch.from_numpy(slow), rivals, torch.from_numpy(quick), costs
            for account in get_args(Account):
                columns[account] = speed_up(*sides, account, least=EVERY).numpy()
            rows.append(pd.DataFrame(cell | columns))
    found = pd.concat(rows, ignore_index=True)
    there, keys = found["saved"].notna(), ["modality", *_CELL, "goal"]
    often = there.groupby([found[key] for key in keys]).transform("mean") >= ENOUGH
    return found.assign(often=there & often)


def _beside_scratch(
    table: pd.DataFrame,
) -> Iterator[tuple[dict[str, Any], _Curve, Costs, _Curve, Costs]]:
    """Every run but scratch: its cell, curve and costs, and scratch's on the same seed."""
    for _, runs in table.groupby(["modality", "seed"], sort=False):
        rival = _read(runs[runs["maps"] == SCRATCH])
        for _, run in runs[runs["maps"] != SCRATCH].groupby(_CELL, sort=False):
            cell: dict[Any, Any] = run[_KEYS].iloc[0].to_dict()
            yield cell, *_read(run), *rival


def leads() -> pd.DataFrame:
    """``lead``: scratch's steps to the start's loss; ``saved``: at the lowest loss of both."""
    rows = []
    for cell, own, _, rival, _ in _beside_scratch(curves()):
        lowest = max(smoothed(torch.tensor(losses)).min() for _, losses in (rival, own))
        aims = np.array([own[1][0], float(lowest) + 1e-12])  # with room for rounding
        (lead, slow), (_, quick) = _steps(rival, aims), _steps(own, aims)
        rows.append(cell | {"lead": lead, "saved": slow - quick})
    return pd.DataFrame(rows)


def _steps(curve: _Curve, goals: np.ndarray) -> np.ndarray:
    losses = torch.tensor(curve[1])[:, None].expand(-1, len(goals))
    return np.asarray(steps_to(curve[0].tolist(), losses, torch.as_tensor(goals)))


def _read(run: pd.DataFrame) -> tuple[_Curve, Costs]:
    run = run.sort_values("step")
    steps, losses = (run[name].to_numpy(dtype=float) for name in ("step", "judge"))
    return (steps, losses), Costs(*(float(run[name].iloc[0]) for name in FLOPS))


def effects(account: str = "B") -> pd.DataFrame:
    """What each factor does to the loss at equal cost (nats), with the others averaged over.

    Of ``merging``, two sources less one; of ``maps``, less mean padding; of ``start``, own less
    shared, and matched less own. Only maps that all have at this cost count.
    """
    table = ends()
    table = table[table["sources"] > 0]
    table = table.assign(start=table["start"].where(table["sources"] == 2, ONE))
    wide = table.pivot(index=["modality", "seed", "maps"], columns="start", values=account)
    wide = wide[wide.notna().all(axis=1).groupby(["modality", "maps"]).transform("all")]
    by_start = wide.groupby(["modality", "seed"]).mean()
    by_maps = wide[[ONE, *KINDS]].mean(axis=1).unstack("maps")
    found = {("merging", start): by_start[start] - by_start[ONE] for start in KINDS}
    found |= {
        ("maps", str(maps)): by_maps[maps] - by_maps["mean"] for maps in by_maps if maps != "mean"
    }
    found["start", "own less shared"] = by_start["own"] - by_start["shared"]
    found["start", "re-basin less own"] = by_start["re-basin"] - by_start["own"]
    rows = pd.concat(found, names=["factor", "effect"]).rename("loss").dropna()
    return rows.reset_index()
