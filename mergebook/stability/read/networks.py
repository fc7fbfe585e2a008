"""What chapter 40 reads from measurements on networks: constants, and laws of stability.

The unit of inference is the seed. Records are those of the studies `stability` and `retraining`.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from mergebook.lab.statistics import over_seeds
from mergebook.stability.theory import bounds
from mergebook.stability.theory.estimators import pl_constant
from mergebook.stability.theory.steps import Training

LAWS = ("printed", "repaired")


# Constants


def constants(record: Mapping[str, Any]) -> "pd.Series[float]":
    """Return what is measured at the pretrained model: means over seeds, and over tasks in each.

    The curvature of single examples is the largest of each seed.
    """
    tables = [pd.DataFrame(record[name]) for name in ("gradients", "points", "curvature")]
    gradients, points, curvature = (
        table[table["point"] == "pretrained"].set_index("seed") for table in tables
    )
    single = curvature["of"] == "example"
    columns = {
        "squared gradient": points["unbiased"],
        "noise": gradients["noise"],
        "heterogeneity": gradients["heterogeneity"],
        "heterogeneity, plugged in": gradients["plugged_in"],
        "curvature": curvature.loc[~single, "smoothness"],
        "curvature of an example": curvature[single].groupby("seed")["smoothness"].max(),
    }
    return pd.DataFrame(
        {name: each.groupby("seed").mean() for name, each in columns.items()}
    ).mean()


BACKBONES = {  # name to result of the study `stability`, and the rate that the book trains at
    "ViT, 1.4 M": ("vision8-stability-vit", 4e-4),
    "ViT, 0.4 M": ("vision8-stability-vit_small", 4e-4),
    "the same, scripts": ("glyphs8-stability-vit_small", 4e-4),
    "ResNet, narrow": ("vision8-stability-resnet18_narrow", 0.01),
    "ResNet, full width": ("vision8-stability-resnet18_strided", 0.01),
    "perceptron, scripts": ("glyphs8-stability-mlp", 0.02),
    "MiniLM, sentences": ("sentences8-stability", 1e-4),
}


def backbones(records: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """At θ_0: largest L, the ``steps`` K with ηLK = 1/8, and ``Theorem 3`` there over f(θ_0)."""
    rows = {}
    for name, record in records.items():
        rate, table = BACKBONES[name][1], pd.DataFrame(record["curvature"])
        table = table[table["point"] == "pretrained"]
        largest = table.groupby(["of", "seed"])["smoothness"].max().groupby("of").mean()
        rows[name] = {
            "L of the mean": largest["mean"],
            "of an example": largest["example"],
            "rate": rate,
            "steps": bounds.PAPERS_DOMAIN / (rate * largest["example"]),
            "Theorem 3": float(np.mean(theorem_3(record))),
        }
    return pd.DataFrame(rows).T


def theorem_3(record: Mapping[str, Any], *, batch: int = 32, examples: int = 1500) -> list[float]:
    """Theorem 3 over the excess error of the pretrained model, at the edge of its domain, by seed.

    With γ*, and what is measured: L at any point, σ, ζ and C at the pretrained model, and 0 for the
    least loss.
    """
    ratios = []
    tables = [pd.DataFrame(record[name]) for name in ("curvature", "gradients", "points")]
    for seed in tables[0]["seed"].unique():
        curvature, gradients, points = (table[table["seed"] == seed] for table in tables)
        smooth = float(curvature["smoothness"].max())
        start = gradients[gradients["point"] == "pretrained"]
        losses = _losses(smooth, start)
        rate = bounds.PAPERS_DOMAIN / smooth
        plan = Training.alike(len(start), 1, rate, batch, examples)
        values = points.set_index("point")[["loss", "squared"]].loc["pretrained"]
        loss, squared = (torch.tensor([values[name]]) for name in ("loss", "squared"))
        pl = pl_constant(loss, squared, smooth)
        parts, *_ = bounds.theorem_3(losses, plan, values["loss"], pl, gamma=None)
        ratios.append(sum(parts.values()) / values["loss"])
    return ratios


def _losses(smooth: float, tasks: pd.DataFrame) -> bounds.Losses:
    """σ and ζ of each task from the estimated squares, which may be negative."""
    squares = (torch.tensor(tasks[name].to_numpy()) for name in ("noise", "heterogeneity"))
    return bounds.Losses(smooth, *(each.clamp(min=0).sqrt() for each in squares))


# Laws


def moves_with_laws(record: Mapping[str, Any]) -> pd.DataFrame:
    """Measured stability and what two laws say of it, means over tasks, one row per seed.

    ``printed`` is Lemma 3, ``repaired`` the bound for convex losses, both with σ² and ζ² as
    measured at the pretrained model, in the mean square, which favours both.
    """
    noise = pd.DataFrame(record["noise"]).set_index(["seed", "task"])
    keys = ["seed", "rate", "batch", "examples", "sampling", "steps"]
    rows = []
    for key, part in pd.DataFrame(record["moves"]).groupby(keys, sort=False):
        named: dict[str, Any] = dict(zip(keys, key, strict=True))
        own = noise.loc[[(named["seed"], task) for task in part["task"]]]
        losses = _losses(math.nan, own)
        own_plan = (named[name] for name in ("steps", "rate", "batch", "examples"))
        plan = Training.alike(len(part), *own_plan)
        epochs = named["sampling"] == "epochs"
        repaired = bounds.local_stability(losses, plan, epochs=epochs, convex=True)
        means = {name: float(part[name].mean()) for name in ("stability", "chaos", "progress")}
        printed = float(bounds.printed_local_stability(losses, plan).mean())
        rows.append({**named, **means, "printed": printed, "repaired": float(repaired.mean())})
    return pd.DataFrame(rows)


def sweeps(table: pd.DataFrame) -> dict[str, tuple[str, pd.DataFrame]]:
    """Where one setting varies: name to the column that does, and the rows.

    One pass is as many steps as take batches of all examples, in the setting that most rows have.
    """
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


def slopes(table: pd.DataFrame) -> pd.DataFrame:
    """`fits` over seeds: ``measured`` with its 95 % ``half_width``, and the laws."""
    fitted = fits(table).reset_index()
    found = over_seeds(fitted, "sweep", "stability").rename(columns={"mean": "measured"})
    return found.join(fitted.groupby("sweep")[[*LAWS]].mean()).rename_axis(None)


# Merges


def bounded(merged: pd.DataFrame) -> pd.DataFrame:
    """E_G of a merge and what bounds make of S, V, L and ∇f at the same merge.

    One row per number of steps, means over seeds, in nats: ``error``, E_G on fresh examples above
    that of the pretrained model on the same examples, whose expectation is 0, with its 95 %
    ``half_width``; ``root`` √(S·V); ``bound`` √(S·V) + L/2 · S; and ``lemma_1``, √S ‖∇f‖ + L/2 · S,
    the least value over γ of the paper's Lemma 1.
    """
    gap = merged["fresh_loss"] - merged["loss"]
    start = merged[merged["steps"] == 0].assign(gap=gap).set_index("seed")["gap"]
    moved, curved = merged["stability"], merged["smoothness"] / 2 * merged["stability"]
    root = np.sqrt(moved * merged["second_moment"])
    table = merged.assign(
        error=gap - merged["seed"].map(start),
        root=root,
        bound=root + curved,
        lemma_1=np.sqrt(moved * merged["squared"]) + curved,
    )
    table = table[table["steps"] > 0]
    found = over_seeds(table, "steps", "error").rename(columns={"mean": "error"})
    return found.join(table.groupby("steps")[["root", "bound", "lemma_1"]].mean())
