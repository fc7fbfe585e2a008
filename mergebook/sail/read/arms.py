"""What chapters and the ledger read out of ``arms``: starts of larger networks compared."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from mergebook.lab.results import load_table
from mergebook.sail.costs import Account
from mergebook.sail.measure.sources import ARMS
from mergebook.sail.read import by_seed, reached
from mergebook.sail.read.reached import FLOPS, SIDES, steps_of
from mergebook.sail.read.tuning import goals_for

SCALES = "tinyshakespeare-arms-scale"  # of texts, random weights of several scales, tuned
TEXT = ("tinyshakespeare-arms", SCALES)
COPIES = ("tinyshakespeare-arms-copies",)  # of texts, learned maps whose copies never part
LASTING = (SCALES, "tinyshakespeare-arms-longer")  # of texts, until scratch slows down
PICTURES = tuple(f"vision8-arms{part}" for part in ("", "-tuned", "-farther", "-drawn"))
SAME_RATE = "nearest source, at SAIL's rate"  # of pictures, where its own best rate is another
# The first two have the main arms in all cells, the others the rest in one.
HALVES = tuple(f"vision14-arms{part}" for part in ("", "-sizes", "-others", "-drawn", "-learned"))
ALIKE = ("vision14-arms-alike",)  # how alike these halves are, without training
LONGER = ("vision14-arms-longer",)  # one cell of halves for four times as many steps
UNLABELLED_LASTING = ("vision14-arms-unlabelled-longer",)  # by BYOL for ten times as many steps
UNLABELLED = tuple(f"vision14-arms-unlabelled{part}" for part in ("", "-others", "-classes"))
BASELINES = (
    *("scratch", "scratch, published"),
    *("nearest source", "own size", "Net2Net", "stack", "bert2BERT"),
    *("LiGO", "LiGO, published", "uniform", "greedy soup"),
)

_CELL = ["modality", "target", "seed", "start", "size"]
_ENDS = {"loss": "judge", "choose": "choose", "accuracy": "accuracy"}
_TUNED = {"scratch": "scratch, usual scale", "scratch, tuned": "scratch"}  # names of GPTs' arms
_RENAMED = {"vision8-arms": {"nearest source": SAME_RATE}}  # by result
_NO_SOURCE = [*_TUNED.values(), *(name for name, arm in ARMS.items() if not arm.weights)]
_ONE_SOURCE = [*_NO_SOURCE, *(name for name, arm in ARMS.items() if arm.weights == "nearest")]


def curves(results: Sequence[str]) -> pd.DataFrame:
    """Losses, costs and ``flops`` (B) by modality, target, seed, start, size, arm and step."""
    keys = [*_CELL, "arm"]
    rows = _loaded(results, "curves").drop_duplicates([*keys, "step"])
    rows = rows.merge(_loaded(results, "costs").drop_duplicates(keys), on=keys)
    rows = rows[rows["step"] <= _loaded(results[:1], "curves")["step"].max()]
    where = ["modality", "target", "seed", "size"]
    apart = _loaded(results, "distances")
    owned = apart[apart["start"] == "own"].assign(nearer=apart["first"] <= apart["second"])
    alone = rows[rows["arm"].isin(_ONE_SOURCE)].merge(owned[[*where, "nearer"]], on=where)
    alone = alone[alone.pop("nearer") | alone["arm"].isin(_NO_SOURCE)]
    both = pd.concat([rows, alone.assign(start="own")], ignore_index=True)
    table: pd.DataFrame = both.drop_duplicates([*keys, "step"])
    table["flops"] = table["added_flops"] + table["step"] * table["step_flops"]
    return table


def _loaded(results: Sequence[str], part: str) -> pd.DataFrame:
    """Rows of all results, with modality and target, which those of texts do not have."""
    tables = [load_table(name, part).replace({"arm": _RENAMED.get(name, {})}) for name in results]
    rows = pd.concat(tables, ignore_index=True)
    missing = {"modality": "GPT", "target": ""}
    rows = rows.assign(**{name: word for name, word in missing.items() if name not in rows})
    if "arm" in rows:
        texts = rows["modality"] == "GPT"
        rows["arm"] = rows["arm"].where(~texts, rows["arm"].replace(_TUNED))
    return rows


def starts(results: Sequence[str] = TEXT) -> pd.DataFrame:
    """Every arm by its steps to goals (`steps_of`), its FLOPs, and its losses at scratch's cost.

    ``loss`` (nats), ``choose`` and ``accuracy`` (0..1) are by account B, on straight lines between
    readings, or at the end of an arm that has spent less.
    """
    rows = []
    for names, cell in curves(results).groupby(_CELL):
        where = dict(zip(_CELL, names, strict=True))
        budget = cell.loc[cell["arm"] == "scratch", "flops"].max()
        goals = goals_for(str(where["modality"]), str(where["size"]), str(where["target"]))
        for arm, curve in cell.sort_values("step").groupby("arm"):
            flops = curve["flops"].to_numpy()
            ends = {k: float(np.interp(budget, flops, curve[v])) for k, v in _ENDS.items()}
            costs = {name: float(curve[name].iloc[0]) for name in FLOPS}
            rows.append({**where, "arm": arm, **ends, **costs, **steps_of(curve, goals)})
    return pd.DataFrame(rows)


def finished(results: Sequence[str] = TEXT) -> pd.DataFrame:
    """Return each arm's ``loss`` (nats) and ``accuracy`` after as many steps as scratch (A)."""
    table = curves(results)
    ends = table[table["arm"] == "scratch"].groupby(_CELL)["step"].max().rename("step")
    rows: pd.DataFrame = table.merge(ends.reset_index(), on=[*_CELL, "step"])
    return rows.rename(columns={"judge": "loss"})[[*_CELL, "arm", "loss", "accuracy"]]


lasting = partial(starts, LASTING)
pictured = partial(starts, PICTURES)
halved = partial(starts, HALVES)
longer = partial(starts, LONGER)
unlabelled = partial(starts, UNLABELLED)
unlabelled_lasting = partial(starts, UNLABELLED_LASTING)


def best_baseline(rows: pd.DataFrame) -> str:
    """The one of `BASELINES` with the least mean loss on the half that chooses."""
    return str(rows.groupby("arm")["choose"].mean().reindex(BASELINES).idxmin())


def distances(results: Sequence[str] = PICTURES[:1]) -> pd.DataFrame:
    """MMD² of images in every setting; ``distance`` is the one to the nearer source."""
    table = _loaded(results, "distances")
    nearer = table[["first", "second"]].min(axis=1)
    return table.assign(distance=nearer).drop_duplicates(_CELL, ignore_index=True)


def fading(table: pd.DataFrame) -> pd.Series:
    """How speed-ups fall with distance: minus Spearman's correlation over targets, by seed."""
    pairs = table.merge(distances(), on=_CELL)[["seed", "speed", "distance"]]
    return by_seed(pairs, lambda rows: -rows["speed"].corr(rows["distance"], method="spearman"))


def nearness(table: pd.DataFrame) -> pd.DataFrame:
    """By target, mean ``speed`` and ``near``, minus MMD² of the nearer source."""
    rows = table.merge(distances(), on=_CELL)
    return rows.assign(near=-rows["distance"]).groupby("target")[["speed", "near"]].mean()


def speed_ups(
    table: pd.DataFrame, goal: str, account: Account, own: str, rival: str = "scratch"
) -> pd.DataFrame:
    """`reached.speed_ups` of an arm over another, in the cells that have such a goal."""
    places = [*zip(*(table[name] for name in ("modality", "size", "target")), strict=True)]
    having = {place: goal in goals_for(*map(str, place)) for place in {*places}}
    table = table[[having[place] for place in places]]
    if table.empty:
        return pd.DataFrame(columns=[*_CELL, "speed", *SIDES])
    return reached.speed_ups(table, goal, account, own, rival)
