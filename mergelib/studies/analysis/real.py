"""What chapter 11 shows of real pretrained networks beside our small ones, out of ``results/``."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mergelib.records.results import load_table
from mergelib.records.statistics import over_seeds, resampled_means

# Each network, by what it is called on the page, and the suite that it is judged on.
SUITES = {
    "our ViT": "vision8",
    "EfficientNet-Lite0": "imagenet8",
    "MiniLM": "sentences8",
}
PRETRAINED = {name: suite for name, suite in SUITES.items() if suite != "vision8"}
SIZES = {
    0.4: "vision8-baselines-vit_small",
    1.4: "vision8-baselines",
    3.4: "imagenet8-baselines",
    22.6: "sentences8-baselines",
}
METHODS = ("average", "task_arithmetic", "ties", "consensus", "cart", "tsv", "iso_c")
# CART's Table 1, ViT-B/32 with 8 tasks: merged over individual.
PAPER = {
    method: accuracy / 90.5
    for method, accuracy in {
        "pretrained": 48.0,
        "average": 65.9,
        "task_arithmetic": 69.1,
        "ties": 72.4,
        "consensus": 75.2,
        "cart": 84.7,
    }.items()
}
TOLD = ("agreement", "error", "interference", "signal", "entropy", "distance")


def normalised(file: str, methods: Sequence[str] = METHODS) -> pd.DataFrame:
    """Normalised accuracy in per cent of a result of ``baselines``: `over_seeds`, by method."""
    table = load_table(file).query("method in @methods")
    rows: pd.DataFrame = 100 * over_seeds(table, "method", "normalised").loc[list(methods)]
    return rows


def plane(suite: str, count: int = 8) -> pd.DataFrame:
    """CART's mean accuracy in per cent, rank ratios by scales, from the study ``surface``."""
    table = load_table(f"{suite}-surface").query("method == 'cart' and scale > 0")
    table = table[table["count"] == count]
    means: pd.Series[float] = table.groupby(["rank_ratio", "scale"])["accuracy"].mean()
    return 100 * means.unstack("scale")


def best_points(suite: str) -> pd.DataFrame:
    """Each seed's best rank ratio and scale of CART: what validation chose, and the test's best.

    Returns:
        One row per seed and ``way`` (``"chosen"``, ``"best"``), with ``rank_ratio`` and ``scale``.
    """
    chosen = load_table(f"{suite}-baselines", "chosen")
    rows = [
        {"seed": row["seed"], "way": "chosen", **row["settings"]["cart"]}
        for row in chosen.to_dict("records")
    ]
    table = load_table(f"{suite}-surface").query("method == 'cart' and scale > 0")
    keys = ["seed", "rank_ratio", "scale"]
    means = table.groupby(keys)["accuracy"].mean().reset_index()
    best = means.loc[means.groupby("seed")["accuracy"].idxmax()].drop(columns="accuracy")
    return pd.concat([pd.DataFrame(rows), best.assign(way="best")], ignore_index=True)


def correlations(suite: str, methods: Sequence[str] = ("cart",)) -> pd.DataFrame:
    """How well what needs no labels orders the points of the plane as their accuracies do.

    For every seed and task Spearman's correlation over all points (rank, scale) between accuracy
    and a column of `mergelib.studies.papers.surface.told`, signed so that it is high where the
    quantity is good: less error, interference, entropy and distance, more signal and agreement.
    The control is the same with another task's quantity, the mean over all the others.

    Returns:
        One row per quantity with ``own`` and ``other``, the means, and for each the ends of an
        interval of 95 % over seeds and tasks, ``own_low``, ``own_high`` and so on.
    """
    table = load_table(f"{suite}-surface").query("method in @methods")
    table = table[table["count"] == table["count"].max()]
    rows = {}
    for quantity in TOLD:
        good = 1 if quantity in ("signal", "agreement") else -1
        found: dict[str, list[list[float]]] = {"own": [], "other": []}
        for _, part in table.groupby("seed"):
            ranks = [
                part.pivot(index=["method", "rank_ratio", "scale"], columns="task", values=column)
                for column in ("accuracy", quantity)
            ]
            accuracy, told = (wide.rank().to_numpy() for wide in ranks)
            tasks = accuracy.shape[1]
            table_of = good * np.nan_to_num(np.corrcoef(accuracy.T, told.T)[:tasks, tasks:])
            own = np.diagonal(table_of)
            found["own"].append(own.tolist())
            found["other"].append(((table_of.sum(1) - own) / (tasks - 1)).tolist())
        row: dict[str, float] = {}
        for kind, values in found.items():
            draws = resampled_means(np.array(values))
            low, high = np.quantile(draws, [0.025, 0.975])
            row |= {kind: float(np.mean(values)), f"{kind}_low": low, f"{kind}_high": high}
        rows[quantity] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def sizes(methods: Sequence[str] = METHODS) -> pd.DataFrame:
    """Normalised accuracy in per cent, methods by millions of parameters, means over seeds."""
    return pd.DataFrame({size: normalised(file, methods)["mean"] for size, file in SIZES.items()})
