"""What chapter 44 and the ledger read of the studies of Remark 4 of Li et al. (2026)."""

import pandas as pd

PLAIN, ALIKE = "as they are", "alike"  # ways of the study `uneven`
OPTIMISERS = {"adam": "Adam", "sgd": "SGD"}
# Of the study `mechanisms`, by suite.
EXPLAINED = {"glyphs8": "glyphs8-mechanisms", "vision8": "vision8-mechanisms-vit_small"}


def by_way(merged: pd.DataFrame, *, kind: str, method: str) -> pd.DataFrame:
    """Means over draws by way, as ``method``; ``alike`` merges were all trained in one way."""
    own = merged[(merged["kind"] == kind) & (merged["method"] == method)]
    own = own.assign(method=own["way"].replace(["all first", "all second"], ALIKE))
    keys = ["method", "seed", "task"]
    return own.groupby(keys, sort=False, as_index=False)[["accuracy", "loss"]].mean()


def kind_name(kind: str) -> str:
    """A kind of difference in words, e.g. ``"Adam, rates"``."""
    optimiser, _, what = kind.partition(", ")
    return f"{OPTIMISERS[optimiser]}, {what}" if what else kind


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
