"""What chapter 40 reads from networks, by seed: constants, and laws of stability."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from mergebook.stability.theory import bounds
from mergebook.stability.theory.estimators import pl_constant
from mergebook.stability.theory.steps import Training

LAWS = ("printed", "repaired")


def theorem_3(record: Mapping[str, Any], *, batch: int = 32, examples: int = 1500) -> list[float]:
    """Theorem 3 with γ* over the pretrained model's excess error, for a least loss of 0."""
    ratios = []
    tables = [pd.DataFrame(record[name]) for name in ("curvature", "gradients", "points")]
    for seed in tables[0]["seed"].unique():
        curvature, gradients, points = (table[table["seed"] == seed] for table in tables)
        smooth = float(curvature["smoothness"].max())
        start = gradients[gradients["point"] == "pretrained"]
        plan = Training.alike(len(start), 1, bounds.PAPERS_DOMAIN / smooth, batch, examples)
        values = points.set_index("point")[["loss", "squared"]].loc["pretrained"]
        pl = pl_constant(torch.tensor([values["loss"]]), torch.tensor([values["squared"]]), smooth)
        parts, *_ = bounds.theorem_3(_losses(smooth, start), plan, values["loss"], pl, gamma=None)
        ratios.append(sum(parts.values()) / values["loss"])
    return ratios


def _losses(smooth: float, tasks: pd.DataFrame) -> bounds.Losses:
    """σ and ζ of each task from the estimated squares, which may be negative."""
    squares = (torch.tensor(tasks[name].to_numpy()) for name in ("noise", "heterogeneity"))
    return bounds.Losses(smooth, *(each.clamp(min=0).sqrt() for each in squares))


def moves_with_laws(record: Mapping[str, Any]) -> pd.DataFrame:
    """Measured stability, Lemma 3 (``printed``) and the bound for convex losses, by seed."""
    moves, noise = (pd.DataFrame(record[name]) for name in ("moves", "noise"))
    keys = ["seed", "rate", "batch", "examples", "sampling", "steps"]
    rows = []
    for key, part in moves.merge(noise, "left", ["seed", "task"]).groupby(keys, sort=False):
        named: dict[str, Any] = dict(zip(keys, key, strict=True))
        losses = _losses(math.nan, part)
        own_plan = (named[name] for name in ("steps", "rate", "batch", "examples"))
        plan = Training.alike(len(part), *own_plan)
        epochs = named["sampling"] == "epochs"
        repaired = bounds.local_stability(losses, plan, epochs=epochs, convex=True)
        means = {name: float(part[name].mean()) for name in ("stability", "chaos", "progress")}
        printed = float(bounds.printed_local_stability(losses, plan).mean())
        rows.append({**named, **means, "printed": printed, "repaired": float(repaired.mean())})
    return pd.DataFrame(rows)


def sweeps(table: pd.DataFrame) -> dict[str, tuple[str, pd.DataFrame]]:
    """Where one setting varies: name to the column that does, and the rows."""
    usual = {name: table[name].mode()[0] for name in ("rate", "batch", "examples")}
    drawn, steps, last = table["sampling"] == "drawn", table["steps"], table["steps"].max()
    once = usual["examples"] // usual["batch"]
    parts = {
        "steps, first pass": drawn & (steps <= once),
        "steps, later passes": drawn & (steps >= once),
        "steps, whole epochs": ~drawn & (steps % once == 0),
        "rate": drawn & (steps == last),
    }
    for name in ("batch", "examples"):
        parts[f"{name}, one pass"] = drawn & (steps == once)
        parts[f"{name}, many"] = drawn & (steps == last)
    found = {}
    for name, rows in parts.items():
        column = name.partition(", ")[0]
        same = [table[other] == value for other, value in usual.items() if other != column]
        found[name] = column, table[rows & np.logical_and.reduce(same)]
    return found


def fits(table: pd.DataFrame) -> pd.DataFrame:
    """Slopes of log s above ``chaos`` and of the laws against the log of what varies, by seed."""
    fitted, fields = {}, ["stability", *LAWS]
    for name, (column, part) in sweeps(table).items():
        for seed, own in part[part["stability"] > part["chaos"]].groupby("seed"):
            fitted[name, seed] = np.polyfit(np.log(own[column]), np.log(own[fields]), 1)[0]
    return pd.DataFrame(fitted, index=fields).T.rename_axis(["sweep", "seed"])
