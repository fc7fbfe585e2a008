"""What chapter 44 and the ledger read out of the studies of Remark 4 of Li et al. (2026).

The studies are ``remedies``, ``rebasin``, ``uneven`` and ``mechanisms``.
"""

from collections.abc import Mapping
from typing import Any, Literal

import pandas as pd

from mergelib.records.statistics import both_intervals, interval

PLAIN = "as they are"  # ways of the study `uneven`
KINDS = ("plain, half as long", "sharpness-aware, 0.05", "sharpness-aware, 0.2", "linearised")


def training_gains(test: pd.DataFrame, method: str, value: str = "accuracy") -> pd.DataFrame:
    """What each kind of training gains over plain experts that cost the same: `both_intervals`.

    Args:
        test: the table of that name from the study ``remedies``.
        method: a merge, or ``individual``.
        value: a column; of losses, what is gained is taken off.
    """
    runs = test[test["method"] == method].drop(columns="method").rename(columns={"kind": "method"})
    pairs = {kind: ("plain", kind) if value == "loss" else (kind, "plain") for kind in KINDS}
    return both_intervals(runs, pairs, value)


def by_way(
    merged: pd.DataFrame, *, own: Literal["few", "many"] | None = None, **chosen: Any
) -> pd.DataFrame:
    """Means over draws, with the ways of treating task vectors as ``method``.

    Args:
        merged: the table of that name from the study ``uneven``.
        own: only tasks whose expert took few steps, or many.
        **chosen: columns to the value that they shall have: ``optimiser``, ``few``, ``method``.

    Returns:
        Rows of ``method``, ``seed``, ``task``, ``accuracy`` and ``loss``.
    """
    for name, value in chosen.items():
        merged = merged[merged[name] == value]
    if own is not None:
        merged = merged[merged["steps"] == merged[own]]
    means = merged.groupby(["way", "seed", "task"], sort=False)[["accuracy", "loss"]].mean()
    return means.reset_index().rename(columns={"way": "method"})


def correlations(coefficients: pd.DataFrame, granularity: str, column: str) -> pd.Series:
    """Spearman's correlation of λ_t with another column over tasks, by seed.

    Args:
        coefficients: the table of that name from the study ``mechanisms``.
        granularity: of AdaMerging's coefficients.
        column: ``heterogeneity``, ``loss`` or ``distance``.
    """
    own = coefficients[coefficients["granularity"] == granularity]
    found = {
        seed: part["coefficient"].corr(part[column], method="spearman")
        for seed, part in own.groupby("seed")
    }
    return pd.Series(found).rename_axis("seed")


def errors(test: pd.DataFrame) -> pd.DataFrame:
    """The two errors of a model, as far as they can differ between models (nats).

    Args:
        test: the table of that name from the study ``mechanisms``.

    Returns:
        Its rows with ``of`` put behind ``method``, ``optimisation``, the training loss, which is
        E_O but for a constant, and ``generalisation``, test loss less training loss, E_G.
    """
    names = test["method"] + test["of"].map(lambda of: f", {of}" if of else "")
    gap = test["loss"] - test["train_loss"]
    return test.assign(method=names, optimisation=test["train_loss"], generalisation=gap)


def by_matching(pairs: pd.DataFrame, pair: str) -> pd.DataFrame:
    """Rows of the study ``rebasin`` of one kind of pair, with ``method`` to compare.

    ``method`` is ``matched`` or ``as trained``.
    """
    own = pairs[pairs["pair"] == pair]
    return own.assign(method=own["matched"].map({True: "matched", False: "as trained"}))


def intervals(values: Mapping[str, pd.Series]) -> pd.DataFrame:
    """Mean and half width over seeds of named columns, which are indexed by seed."""
    rows = {name: interval(column.tolist()) for name, column in values.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "half_width"])
