"""What chapter 54 and the ledger read out of studies of mixtures, overlap and other texts.

All losses are those of the half that judges, in nats per token; where γ is chosen, the other half
chooses it, after the last step.
"""

import numpy as np
import pandas as pd

from mergebook.lab.results import load_table
from mergebook.sail.costs import Account
from mergebook.sail.measure.text import BUDGET, EVERY
from mergebook.sail.read import reached
from mergebook.sail.read.flatness import flat
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


def weights() -> pd.DataFrame:
    """γ of mixtures: ``theorem`` (MMD²) or ``best``.

    Returns:
        A row per ``parts`` (of `MIXTURES`), seed, start, share and ``kind``, with ``gamma``.
    """
    curves = last(_mixtures("curves"))
    parts = {
        "theorem": curves[curves["method"] == "theorem"],
        "best": best(curves[curves["method"] == "sweep"], _CELL),
    }
    placed = [part[[*_CELL, "gamma"]].assign(kind=name) for name, part in parts.items()]
    table: pd.DataFrame = pd.concat(placed, ignore_index=True)
    return table


def curved() -> pd.DataFrame:
    """``parts``, start and share of the mixtures whose curve is not `flat`."""
    curves = last(_mixtures("curves"))
    keys = ["parts", "start", "share"]
    level = flat(curves[curves["method"] == "sweep"], keys)
    return level[~level].reset_index()[keys]


def slopes(table: pd.DataFrame, start: str, parts: str = "texts") -> pd.Series:
    """Slope of the best γ on the theorem's over the shares of a seed, by seed: see `weights`."""
    own = table[(table["start"] == start) & (table["parts"] == parts)]
    wide = own.pivot(index=["seed", "share"], columns="kind", values="gamma")
    found = {
        seed: np.polyfit(part["theorem"], part["best"], 1)[0] for seed, part in wide.groupby("seed")
    }
    return pd.Series(found).rename_axis("seed")


def mixed() -> pd.DataFrame:
    """Losses on mixtures after the last step.

    Returns:
        A row per ``parts``, seed, start, share and ``method``, with ``loss``: those of `MERGED` and
        ``best``.
    """
    curves = last(_mixtures("curves"))
    distances = _mixtures("distances")
    nearer = (distances["first"] < distances["second"]).astype(float)
    nearest = distances[_CELL].assign(gamma=nearer)
    sweep = curves[curves["method"] == "sweep"]
    parts = {
        "theorem": curves[curves["method"] == "theorem"],
        "best": best(sweep, _CELL),
        "nearest source": sweep.merge(nearest, on=[*_CELL, "gamma"]),
        "uniform": sweep[sweep["gamma"] == 0.5],
    }
    table: pd.DataFrame = pd.concat(
        [part[[*_CELL, "judge"]].assign(method=name) for name, part in parts.items()],
        ignore_index=True,
    )
    return table.rename(columns={"judge": "loss"})


def asymmetries() -> pd.DataFrame:
    """Mean |ℓ(γ) − ℓ(1 − γ)| over the range of ℓ in all cells of a seed and start.

    Returns:
        A row per seed, start, step, ``alpha`` and ``beta``, with ``asymmetry``.
    """
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
    curves = last(load_table(OVERLAP, "curves"))
    rows: pd.DataFrame = curves[curves["alpha"] < 1]
    return rows


def falls(table: pd.DataFrame, start: str, step: int) -> pd.DataFrame:
    """How asymmetry falls with each overlap, in each seed: minus its slopes in a plane, α < 1.

    Returns:
        Columns ``alpha`` and ``beta``, indexed by seed.
    """
    chosen = (table["start"] == start) & (table["step"] == step) & (table["alpha"] < 1)
    found = {}
    for seed, part in table[chosen].groupby("seed"):
        overlaps = part[["alpha", "beta"]].to_numpy()
        plane = np.column_stack([np.ones(len(part)), overlaps])
        found[seed] = -np.linalg.lstsq(plane, part["asymmetry"].to_numpy(), rcond=None)[0][1:]
    return pd.DataFrame.from_dict(found, orient="index", columns=["alpha", "beta"]).rename_axis(
        "seed"
    )


def goals_of_text(name: str) -> dict[str, float]:
    """Goals of training on a text, in nats per token, to three digits."""
    found = goals_on(load_table(f"{name}-text_goals", "curves"), BUDGET)
    return {goal: round(loss, 3) for goal, loss in found.items()}


def crossed() -> pd.DataFrame:
    """Steps to the goals of a target in another text.

    Returns:
        A row per seed, ``source``, ``target``, start and ``method`` (those of `MERGED`, and
        ``scratch``), with steps to each goal by its name, NaN where it was never reached, the
        ``last`` of all steps, and FLOPs of a step, of the start and of its sources.
    """
    keys = [*_DIRECTION, "method"]
    rows = []
    arms = _crossing("arms")
    goals = {name: goals_of_text(name) for name in arms["target"].unique()}
    for names, arm in arms.groupby(keys):
        cell = dict(zip(keys, names, strict=True))
        rows.append(cell | steps_of(arm, goals[str(cell["target"])]))
    table = pd.DataFrame(rows).merge(_crossing("costs"), on=_DIRECTION)
    sources = table["method"].map({"scratch": 0, "nearest source": 1}).fillna(2)
    measured = table["method"].isin(["theorem", "nearest source"])
    table["added_flops"] = table.pop("distance_flops") * measured
    return table.assign(source_flops=table["source_flops"] * sources)


def speed_ups(table: pd.DataFrame, goal: str, account: Account, method: str) -> pd.DataFrame:
    """log₂ speed-up of a start of `crossed` over scratch, as `reached.speed_ups` gives it."""
    own, scratch = (table[table["method"] == name] for name in (method, "scratch"))
    return reached.speed_ups(own, scratch, _DIRECTION, goal, account, EVERY)


def interiors() -> pd.DataFrame:
    """The best γ strictly between 0 and 1 (``interior``), and the better end (``end``).

    Returns:
        A row per seed, ``source``, ``target``, start and ``place``, with ``gamma`` and ``loss``.
    """
    curves = crossing()
    inside = curves["gamma"].between(0, 1, inclusive="neither")
    parts = {"interior": curves[inside], "end": curves[curves["gamma"].isin([0.0, 1.0])]}
    table: pd.DataFrame = pd.concat(
        [best(part, _DIRECTION).assign(place=name) for name, part in parts.items()],
        ignore_index=True,
    )
    return table[[*_DIRECTION, "place", "gamma", "judge"]].rename(columns={"judge": "loss"})


def crossing() -> pd.DataFrame:
    """The sweeps over γ in another text after the last step, with ``source``."""
    return last(_crossing("curves"))


def _mixtures(part: str) -> pd.DataFrame:
    tables = [
        load_table(name, part).assign(parts=parts)
        for parts, names in MIXTURES.items()
        for name in names
    ]
    return pd.concat(tables, ignore_index=True)


def _crossing(part: str) -> pd.DataFrame:
    tables = [load_table(f"{name}-cross_corpus", part).assign(source=name) for name in SOURCES]
    return pd.concat(tables, ignore_index=True)
