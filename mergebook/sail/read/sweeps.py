"""What chapter 54 and the ledger read of mixtures, overlap and other texts, in nats per token."""

import numpy as np
import pandas as pd

from mergebook.lab.results import load_table
from mergebook.sail.measure.text import BUDGET
from mergebook.sail.read import by_seed, flat, stacked
from mergebook.sail.read.reached import steps_of
from mergebook.sail.read.text import best, last
from mergebook.sail.read.tuning import goals_on

MIXTURES = {  # by what is mixed: two texts, or the outer thirds of one
    "texts": ("tinyshakespeare-mixture", "tinyshakespeare-mixture-matched"),
    "thirds": ("tinyshakespeare-mixture-thirds",),
}
MEASURED = "tinyshakespeare-mixture_weights"
OVERLAP = "tinyshakespeare-overlap"
SOURCES = ("tinyshakespeare", "wikitext2_test")  # of `cross_corpus`
MERGED = ("theorem", "uniform", "nearest source")

_CELL = ["parts", "seed", "start", "share"]
_DIRECTION = ["seed", "source", "target", "start"]


def mixed() -> pd.DataFrame:
    """``gamma`` and ``loss`` in the end, by parts, seed, start, share and method (or ``best``)."""
    curves, distances = last(_mixtures("curves")), _mixtures("distances")
    nearer = (distances["first"] < distances["second"]).astype(float)
    sweep = curves[curves["method"] == "sweep"]
    parts = {
        "theorem": curves[curves["method"] == "theorem"],
        "best": best(sweep, _CELL),
        "nearest source": sweep.merge(distances[_CELL].assign(gamma=nearer), on=[*_CELL, "gamma"]),
        "uniform": sweep[sweep["gamma"] == 0.5],
    }
    table = stacked(parts, "method")[[*_CELL, "gamma", "judge", "method"]]
    return table.rename(columns={"judge": "loss"})


def curved() -> pd.DataFrame:
    """``parts``, start and share of the mixtures whose curve is not `flat`."""
    curves = last(_mixtures("curves"))
    keys = ["parts", "start", "share"]
    level = flat(curves[curves["method"] == "sweep"], keys)
    return level[~level].reset_index()[keys]


def slopes(table: pd.DataFrame, start: str, parts: str = "texts") -> pd.Series:
    """Slope of the best γ on the theorem's over the shares of a seed, by seed: see `mixed`."""
    own = table[(table["start"] == start) & (table["parts"] == parts)]
    wide = own.pivot(index=["seed", "share"], columns="method", values="gamma")
    return by_seed(wide, lambda part: np.polyfit(part["theorem"], part["best"], 1)[0])


def asymmetries() -> pd.DataFrame:
    """Mean |ℓ(γ) − ℓ(1 − γ)| over ℓ's range in a seed and start, by step, ``alpha``, ``beta``."""
    keys = ["seed", "start", "step"]
    parts = []
    for _, curves in load_table(OVERLAP, "curves").groupby(keys):
        wide = curves.pivot(index=[*keys, "alpha", "beta"], columns="gamma", values="judge")
        losses = wide.to_numpy()
        gaps = np.abs(losses - wide[1 - wide.columns].to_numpy()).mean(1)
        parts.append(pd.Series(gaps / np.ptp(losses), wide.index, name="asymmetry"))
    return pd.concat(parts).reset_index()


def overlapping() -> pd.DataFrame:
    """Losses by γ after the last step, for overlaps α < 1, at which the sources' data differ."""
    return last(load_table(OVERLAP, "curves").query("alpha < 1"))


def falls(table: pd.DataFrame, start: str, step: int) -> pd.DataFrame:
    """How asymmetry falls with either overlap, by seed: minus its slopes in a plane, α < 1."""
    chosen = (table["start"] == start) & (table["step"] == step) & (table["alpha"] < 1)
    found = {}
    for seed, part in table[chosen].groupby("seed"):
        plane = np.column_stack([np.ones(len(part)), part[["alpha", "beta"]]])
        found[seed] = -np.linalg.lstsq(plane, part["asymmetry"].to_numpy(), rcond=None)[0][1:]
    return pd.DataFrame(found, index=["alpha", "beta"]).T.rename_axis("seed")


def goals_of_text(name: str) -> dict[str, float]:
    """Goals of training on a text, in nats per token, to three digits."""
    found = goals_on(load_table(f"{name}-text_goals", "curves"), BUDGET)
    return {goal: round(loss, 3) for goal, loss in found.items()}


def crossed() -> pd.DataFrame:
    """`steps_of` to goals of a target in another text, and FLOPs, by direction and ``method``."""
    keys = [*_DIRECTION, "method"]
    arms = _crossing("arms")
    goals = {name: goals_of_text(name) for name in arms["target"].unique()}
    rows = [
        dict(zip(keys, names, strict=True)) | steps_of(arm, goals[str(names[2])])
        for names, arm in arms.groupby(keys)
    ]
    table = pd.DataFrame(rows).merge(_crossing("costs"), on=_DIRECTION)
    sources = table["method"].map({"scratch": 0, "nearest source": 1}).fillna(2)
    measured = table["method"].isin(["theorem", "nearest source"])
    table["added_flops"] = table.pop("distance_flops") * measured
    return table.assign(source_flops=table["source_flops"] * sources)


def interiors() -> pd.DataFrame:
    """The best γ between 0 and 1 (``interior``) and the better ``end``, by seed and direction."""
    curves = crossing()
    inside = curves["gamma"].between(0, 1, inclusive="neither")
    parts = {"interior": curves[inside], "end": curves[curves["gamma"].isin([0.0, 1.0])]}
    table = stacked({name: best(part, _DIRECTION) for name, part in parts.items()}, "place")
    return table[[*_DIRECTION, "place", "gamma", "judge"]].rename(columns={"judge": "loss"})


def crossing() -> pd.DataFrame:
    """The sweeps over γ in another text after the last step, with ``source``."""
    return last(_crossing("curves"))


def _mixtures(part: str) -> pd.DataFrame:
    tables = {
        parts: pd.concat([load_table(name, part) for name in names])
        for parts, names in MIXTURES.items()
    }
    return stacked(tables, "parts")


def _crossing(part: str) -> pd.DataFrame:
    return stacked({name: load_table(f"{name}-cross_corpus", part) for name in SOURCES}, "source")
