"""What chapter 44 and the ledger read out of the studies of Remark 4 of Li et al. (2026).

The studies are ``remedies``, ``rebasin``, ``uneven`` and ``mechanisms``.
"""

import numpy as np
import pandas as pd

from mergebook.lab.statistics import both_intervals

PLAIN, ALIKE = "as they are", "alike"  # ways of the study `uneven`
OPTIMISERS = {"adam": "Adam", "sgd": "SGD"}
EXPLAINED = {  # of the study `mechanisms`, by suite
    "glyphs8": "glyphs8-mechanisms",
    "vision8": "vision8-mechanisms-vit_small",
}
KINDS = ("plain, half as long", "sharpness-aware, 0.05", "sharpness-aware, 0.2", "linearised")


def training_gains(
    test: pd.DataFrame, method: str, value: str = "accuracy", *, base: str = "plain"
) -> pd.DataFrame:
    """`both_intervals` of other kinds of training less plain experts that cost the same."""
    runs = test[test["method"] == method].drop(columns="method").rename(columns={"kind": "method"})
    return both_intervals(runs, {kind: (kind, base) for kind in KINDS if kind != base}, value)


def by_way(merged: pd.DataFrame, *, kind: str, method: str) -> pd.DataFrame:
    """Means over draws by way, as ``method``; ``alike`` merges were all trained in one way."""
    own = merged[(merged["kind"] == kind) & (merged["method"] == method)]
    own = own.assign(method=own["way"].replace(["all first", "all second"], ALIKE))
    keys = ["method", "seed", "task"]
    return own.groupby(keys, sort=False, as_index=False)[["accuracy", "loss"]].mean()


def way_gains(merged: pd.DataFrame, way: str, base: str, *, method: str) -> pd.DataFrame:
    """Points that one way gains over another, by kind of difference; NaN where it has none."""
    found = []
    for kind in merged["kind"].unique():
        table, pair = by_way(merged, kind=kind, method=method), {kind_name(kind): (way, base)}
        known = {way, base} <= set(table["method"])
        found.append(100 * both_intervals(table, pair) if known else pd.DataFrame(index=[*pair]))
    return pd.concat(found)


def kind_name(kind: str) -> str:
    """A kind of difference in words, e.g. ``"Adam, rates"``."""
    optimiser, _, what = kind.partition(", ")
    return f"{OPTIMISERS[optimiser]}, {what}" if what else kind


def longer(experts: pd.DataFrame) -> pd.DataFrame:
    """Of the table of that name from the study ``uneven``, trainings with more than one length."""
    training = ["optimiser", "learning_rate", "momentum", "pull"]
    lengths = experts.groupby(training)["steps"].transform("nunique")
    return experts[lengths > 1]


def growth(experts: pd.DataFrame) -> pd.DataFrame:
    """Slope of log ‖θ_t − θ_0‖ against log K by seed and optimiser, means over tasks."""
    keys = ["seed", "optimiser", "task"]
    logs = experts.assign(**{name: np.log(experts[name]) for name in ("steps", "distance")})
    slopes = {
        key: np.polyfit(part["steps"], part["distance"], 1)[0] for key, part in logs.groupby(keys)
    }
    table = pd.Series(slopes).rename_axis(keys)
    return table.groupby(["seed", "optimiser"]).mean().unstack()


def task_means(coefficients: pd.DataFrame, granularity: str) -> pd.DataFrame:
    """``coefficient`` and ``heterogeneity`` of every task, means over seeds."""
    own = coefficients[coefficients["granularity"] == granularity]
    return own.groupby("task")[["coefficient", "heterogeneity"]].mean()


def errors(test: pd.DataFrame) -> pd.DataFrame:
    """A model's rows with E_O (its training loss, up to a constant) and E_G, in nats."""
    names = test["method"] + test["of"].map(lambda of: f", {of}" if of else "")
    gap = test["loss"] - test["train_loss"]
    return test.assign(method=names, optimisation=test["train_loss"], generalisation=gap)


def by_matching(pairs: pd.DataFrame, pair: str) -> pd.DataFrame:
    """Rows of the study ``rebasin`` of one kind of pair, whose method is matched or as trained."""
    own = pairs[pairs["pair"] == pair]
    return own.assign(method=own["matched"].map({True: "matched", False: "as trained"}))
