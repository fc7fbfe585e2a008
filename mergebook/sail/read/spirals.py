"""What chapter 52 and the ledger read out of the study ``spirals``."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mergebook.lab.results import load_table
from mergebook.sail import two_spirals as world
from mergebook.sail.costs import Costs, mmd_flops, perceptron_flops
from mergebook.sail.measure import spirals as study
from mergebook.sail.read import by_seed, stacked
from mergebook.sail.read.reached import FLOPS

FILE = "spirals-spirals"
MATCHED = "spirals-spirals-matched"  # its table of this name, and γ of 0 and 1 alone
STARTS = ("shared", "own")
MERGED = ("theorem", "uniform", "nearest source")
TIMES = (0, 50, 100, 200)  # steps at which a sweep is looked at
NEAR = 0.15  # of γ to 0 or 1: "near"

_KEYS = ["seed", "reading", "start"]
_OWN = round(world.SHARE * world.SIZES[0])  # points of a source
_STEP = perceptron_flops(world.WIDTHS, world.SIZES[0])
_DISTANCES = mmd_flops((world.SIZES[0], _OWN, _OWN), world.WIDTHS[0])
_SOURCE = study.EPOCHS * perceptron_flops(world.WIDTHS, _OWN)
COSTS = {
    "scratch": Costs(_STEP),
    "theorem": Costs(_STEP, added=_DISTANCES, sources=2 * _SOURCE),
    "uniform": Costs(_STEP, sources=2 * _SOURCE),
    "nearest source": Costs(_STEP, added=_DISTANCES, sources=_SOURCE),
}


def sweep() -> pd.DataFrame:
    """All arms but scratch and those by Theorem 3: a row per seed, reading, start and γ."""
    return load_table(FILE, "arms").query("arm == 'sweep'").drop(columns="arm")


def compared() -> pd.DataFrame:
    """What `speed_ups` needs, by seed, reading, start and ``method``: `MERGED` and ``scratch``."""
    arms, sources = load_table(FILE, "arms"), load_table(FILE, "sources")
    nearer = sources.loc[sources.groupby(_KEYS)["mmd"].idxmin(), [*_KEYS, "source"]]
    chosen = nearer.assign(gamma=nearer["source"].map({1: 1.0, 2: 0.0})).drop(columns="source")
    swept = arms[arms["arm"] == "sweep"]
    scratch = arms[(arms["arm"] == "scratch") & (arms["start"] == "fresh")].drop_duplicates()
    parts = {
        "theorem": arms[arms["arm"] == "proximal"],
        "uniform": swept[(swept["gamma"] == 0.5) & swept["start"].isin(STARTS)],
        "nearest source": swept.merge(chosen, on=[*_KEYS, "gamma"]),
        "scratch": scratch.drop(columns=["reading", "start"]).merge(nearer[_KEYS], on="seed"),
    }
    table = stacked(parts, "method").drop(columns="arm")
    table = table.assign(first_step=study.EVERY, last=study.EPOCHS)
    flops = {name: (costs.step, costs.added, costs.sources) for name, costs in COSTS.items()}
    columns = pd.DataFrame(flops, index=FLOPS).T.rename_axis("method")
    table = table.merge(columns.reset_index(), on="method")
    return table.sort_values(_KEYS, kind="stable", ignore_index=True)


def barriers() -> pd.DataFrame:
    """``loss`` by ``place``: at γ = ½ (``middle``), and its mean over γ = 0 and 1 (``ends``)."""
    table = sweep().drop(columns="loss")
    wide = table.melt([*_KEYS, "gamma"], [f"loss_{k}" for k in TIMES], "steps", "loss")
    wide["steps"] = wide["steps"].str.removeprefix("loss_").astype(int)
    keys = [*_KEYS, "steps"]
    ends = wide[wide["gamma"].isin([0.0, 1.0])].groupby(keys, as_index=False)["loss"].mean()
    matched = ends[ends["start"] == "own"].assign(start="re-basin")
    middle = wide[wide["gamma"] == 0.5].drop(columns="gamma")
    return stacked({"middle": middle, "ends": pd.concat([ends, matched])}, "place")


def nearness(result: str = FILE) -> pd.DataFrame:
    """``log`` of the squared distance to an optimum, of each ``source`` and ``random`` weights."""
    table = load_table(result, "sources")
    keys = [*(name for name in _KEYS if name in table), "number"]
    distances = table.rename(columns={"parameters": "source", "source": "number"})
    long = distances.melt(keys, ["source", "random"], "point", "log")
    return long.assign(log=np.log(long["log"])).rename(columns={"number": "source"})


def best_weights(table: pd.DataFrame, column: str = "loss_50") -> pd.DataFrame:
    """The ``gamma`` of least loss by seed, reading and start, and whether it is ``near`` 0 or 1."""
    own = table[table["start"].isin(STARTS)]
    best = own.loc[own.groupby(_KEYS)[column].idxmin(), [*_KEYS, "gamma"]]
    return best.assign(near=is_near(best["gamma"])).reset_index(drop=True)


def is_near(gammas: pd.Series) -> pd.Series:
    """Whether weights are within `NEAR` of 0 or 1."""
    return (gammas.abs() <= NEAR) | ((gammas - 1).abs() <= NEAR)


def chain() -> pd.DataFrame:
    """Each source's links of data, parameters and losses (`LINKS`) by ``cell``, in long form."""
    sources, keys = load_table(FILE, "sources"), ["seed", "reading", "source"]
    own = sources[sources["start"] == "own"].drop(columns="parameters")
    moved = own.merge(load_table(MATCHED, "matched")[[*keys, "parameters"]], on=keys)
    arms = sweep()
    arms = pd.concat([arms, arms[arms["start"] == "own"].assign(start="re-basin")])
    sources = pd.concat([sources, moved.assign(start="re-basin")])
    ends = sources.assign(gamma=2.0 - sources["source"])
    table = ends.merge(arms, on=[*_KEYS, "gamma"])
    table = table.rename(columns={"mmd": "data", "loss_0": "before", "loss": "after"})
    table["cell"] = table["reading"] + " " + table["source"].astype(str)
    return table.melt(["seed", "start", "cell"], LINKS, "link", "value")


LINKS = ["data", "parameters", "before", "after"]


def rank_correlations(table: pd.DataFrame, start: str, links: Sequence[str]) -> pd.Series:
    """Spearman's correlation of two links over the six sources of a seed, by seed."""
    own = table[table["start"] == start]
    wide = own.pivot(index=["seed", "cell"], columns="link", values="value")
    return by_seed(wide, lambda rows: rows[links[0]].corr(rows[links[1]], method="spearman"))
