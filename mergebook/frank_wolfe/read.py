"""The differences and the pools of experts that the chapters on FW-Merging show."""

import pandas as pd

from mergebook.lab.results import load_table
from mergebook.ledger.checks import pick
from mergebook.plots import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, label

LONG = ("concrete, long", "task_arithmetic, masked")  # of the long run of Concrete
NAMES = {"surgery+cart": "Surgery + CART", "labels": "λ on CART, all labels"}
PARTS = {"cart": "CART", "adamerging": "AdaMerging", "frank_wolfe": "FW", "surgery": "Surgery"}
PARTS |= {"by layer": "per tensor", "by task": "per model", "unconstrained": "λ free"}

# How a pool's methods are drawn: name, colour, marker and line.
POOLED = {
    "frank_wolfe, labels": ("FW, labels", PURPLE, "o-"),
    "frank_wolfe": ("FW, entropy", PURPLE, "o--"),
    "adamerging": ("AdaMerging", GREEN, "s-"),
    "cart": ("CART", VERMILION, "^-"),
    "ties": ("TIES", ORANGE, "v-"),
    "task_arithmetic": ("task arithmetic", BLUE, "D-"),
    "average": ("average", SKY, "x-"),
}
SUITES = {"vision20": "photographs and scans", "glyphs20": "rendered scripts"}
SOFT, SOFT_BY_LAYER = "frank_wolfe soft, by task", "frank_wolfe soft, by layer"
HARD, HARD_BY_TASK = "frank_wolfe hard, by layer", "frank_wolfe hard, by task"
FREE, MERGED = f"{SOFT}, unconstrained", f"{HARD}, from adamerging"
ON_CART = f"{SOFT_BY_LAYER}, from cart"
# Differences that the chapter shows: name to the two methods.
RIVALS: dict[str, tuple[str, str]] = {
    "Fisher − average": ("fisher", "average"),
    "RegMean − average": ("regmean", "average"),
    "FW − average": (SOFT_BY_LAYER, "average"),
    "CART − FW": ("cart", SOFT_BY_LAYER),
    "AdaMerging − task arithm.": ("adamerging", "task_arithmetic"),
    "FW from AdaMerging − AdaMerging": (f"{SOFT_BY_LAYER}, from adamerging", "adamerging"),
    "FW from CART − CART": (ON_CART, "cart"),
    "λ on CART − CART": ("labels", "cart"),
    "λ on CART − FW from CART": ("labels", ON_CART),
    "Surgery on CART − CART": ("surgery+cart", "cart"),
    "Concrete − task arithm.": LONG,
}
KINDS: dict[str, tuple[str, str]] = {
    "hard: per tensor − per model": (HARD, HARD_BY_TASK),
    "soft: per tensor − per model": (SOFT_BY_LAYER, SOFT),
    "per model: soft − hard": (SOFT, HARD_BY_TASK),
    "per tensor: soft − hard": (SOFT_BY_LAYER, HARD),
    "paper's pairing: soft − hard": (SOFT, MERGED),
    "the same with λ free": (FREE, MERGED),
    "λ free − task arithm.": (FREE, "task_arithmetic"),
}


def short(method: str) -> str:
    """A procedure's name as figures write it, e.g. "FW soft, per tensor, from CART"."""
    if method in NAMES:
        return NAMES[method]
    base, *rest = method.split(", ")
    name = ", ".join([label(base), *rest])
    for plain, written in PARTS.items():
        name = name.replace(plain.replace("_", " "), written)
    return name


def pools(study: str) -> pd.DataFrame:
    """Mean accuracy in per cent of pools by suite, method and ``count``, one column per seed."""
    parts = {suite: load_table(f"{suite}-{study}") for suite in SUITES}
    table = pd.concat(parts, names=["suite"]).reset_index("suite")
    means = 100 * table.groupby(["suite", "method", "count", "seed"])["accuracy"].mean()
    return means.unstack("seed")


def pool_ends(study: str) -> pd.DataFrame:
    """Accuracy with the smallest and the largest pool, as text: one row per method."""
    wide = pools(study).mean(axis=1)
    ends = wide.groupby(["suite", "method"]).agg(["first", "last"])
    text = ends.apply(lambda row: "{:.1f} → {:.1f}".format(*row), axis=1)
    table = text.unstack("suite")[list(SUITES)]
    order = [method for method in POOLED if method in table.index]
    names = {method: text for method, (text, _, _) in POOLED.items()}
    return table.loc[order].rename(index=names, columns=SUITES).rename_axis(None, axis=1)


def entropy_gains() -> pd.DataFrame:
    """Frank-Wolfe by entropy on the pool of four, less the pretrained model: points, by target."""
    gained = {}
    for suite in SUITES:
        before = pick(load_table(f"{suite}-baselines"), method="pretrained")
        after = pick(load_table(f"{suite}-irrelevant"), method="frank_wolfe", count=0)
        gained[suite] = (after - before).dropna().unstack("task")
    return pd.concat(gained, names=["suite"])
