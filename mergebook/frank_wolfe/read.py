"""What the chapters on FW-Merging show: differences with two intervals, shares, pools of experts.

Every difference has two 95 % intervals. The one is Student's over seeds, for these tasks; the other
is over seeds and tasks, for tasks like these. Tables are rows of ``seed``, ``method``,
``task`` and what is compared, as `mergebook.frank_wolfe.measure` writes them.
"""

import math
from collections.abc import Sequence

import pandas as pd

from mergebook.lab.results import load_table
from mergebook.lab.statistics import both_intervals, over_seeds
from mergebook.plots import label

FREE = ("pretrained", "average", "task_arithmetic", "cart")
UNLABELLED = ("fisher", "regmean", "adamerging", "concrete", "surgery", "surgery+cart")
SHADES = {
    "no data": "#8c8c8c",
    "unlabelled": "#0072b2",
    "labelled": "#d55e00",
    "experts": "#000000",
}
LONG = ("concrete, long", "task_arithmetic, masked")  # of the long run of Concrete
NAMES = {"surgery+cart": "Surgery + CART", "labels": "λ on CART, all labels"}
PARTS = {"cart": "CART", "adamerging": "AdaMerging", "frank_wolfe": "FW", "surgery": "Surgery"}

# How a pool's methods are drawn: name, colour, marker and line.
POOLED = {
    "frank_wolfe, labels": ("FW, labels", "#d55e00", "o-"),
    "frank_wolfe": ("FW, entropy", "#d55e00", "o--"),
    "adamerging": ("AdaMerging", "#009e73", "s-"),
    "cart": ("CART", "#a06a00", "^-"),
    "ties": ("TIES", "#e69f00", "v-"),
    "task_arithmetic": ("task arithmetic", "#0072b2", "D-"),
    "average": ("average", "#56b4e9", "x-"),
}
SUITES = {"vision20": "photographs and scans", "glyphs20": "rendered signs"}
# Networks that the procedures ran on, and the results that have them.
NETWORKS = {
    "our ViT": ("vision8-procedures",),
    "EfficientNet-Lite0": ("imagenet8-procedures", "imagenet8-procedures-others"),
    "MiniLM": ("sentences8-procedures",),
}

NO_LINEAR = "EfficientNet-Lite0"  # RegMean, which acts on linear layers, is the average there

# Differences of `vision8-procedures` that the chapter speaks of: name to the two methods.
RIVALS: dict[str, tuple[str, str]] = {
    "Fisher − average": ("fisher", "average"),
    "RegMean − average": ("regmean", "average"),
    "FW − average": ("frank_wolfe soft, by layer", "average"),
    "CART − FW": ("cart", "frank_wolfe soft, by layer"),
    "AdaMerging − task arithm.": ("adamerging", "task_arithmetic"),
    "FW from AdaMerging − AdaMerging": (
        "frank_wolfe soft, by layer, from adamerging",
        "adamerging",
    ),
    "FW from CART − CART": ("frank_wolfe soft, by layer, from cart", "cart"),
    "λ on CART − CART": ("labels", "cart"),
    "λ on CART − FW from CART": ("labels", "frank_wolfe soft, by layer, from cart"),
    "Surgery on CART − CART": ("surgery+cart", "cart"),
    "Concrete − task arithm.": LONG,
}
KINDS: dict[str, tuple[str, str]] = {
    "hard: by layer − by task": ("frank_wolfe hard, by layer", "frank_wolfe hard, by task"),
    "soft: by layer − by task": ("frank_wolfe soft, by layer", "frank_wolfe soft, by task"),
    "by task: soft − hard": ("frank_wolfe soft, by task", "frank_wolfe hard, by task"),
    "by layer: soft − hard": ("frank_wolfe soft, by layer", "frank_wolfe hard, by layer"),
    "paper's pairing: soft − hard": (
        "frank_wolfe soft, by task",
        "frank_wolfe hard, by layer, from adamerging",
    ),
    "the same with λ free": (
        "frank_wolfe soft, by task, unconstrained",
        "frank_wolfe hard, by layer, from adamerging",
    ),
    "unconstrained − task arithm.": (
        "frank_wolfe soft, by task, unconstrained",
        "task_arithmetic",
    ),
}
PAIRS = RIVALS | KINDS


def short(method: str) -> str:
    """A procedure's name as figures write it, e.g. "FW soft, by layer, from CART"."""
    if method in NAMES:
        return NAMES[method]
    base, *rest = method.split(", ")
    name = ", ".join([label(base), *rest])
    for plain, written in PARTS.items():
        name = name.replace(plain.replace("_", " "), written)
    return name


def group(method: str) -> str:
    """What data a procedure looks at, a key of `SHADES`."""
    if method == "individual":
        return "experts"
    return "no data" if method in FREE else "unlabelled" if method in UNLABELLED else "labelled"


def procedures_table() -> pd.DataFrame:
    """The test rows of ``vision8-procedures``, and three of other studies on the same experts.

    These are ``labels``, one coefficient per expert and matrix on CART, learned by cross-entropy on
    the whole training split at the better of two rates (``vision8-coefficients``); and
    ``concrete, long``, 2,000 steps on test inputs, with the ``task_arithmetic, masked`` that it
    starts from (``vision8-concrete``).
    """
    learned = load_table("vision8-coefficients").query("method == 'cross_entropy'")
    best = learned.groupby("rate")["accuracy"].mean().idxmax()
    labels = learned[learned["rate"] == best].assign(method="labels")
    names = dict(zip(("concrete", "task_arithmetic"), LONG, strict=True))
    masked = load_table("vision8-concrete").replace({"method": names})
    return pd.concat([load_table("vision8-procedures"), labels, masked], ignore_index=True)


def on_networks() -> dict[str, pd.DataFrame]:
    """`RIVALS` and `KINDS` on our network and real pretrained ones: `both_intervals`, in points.

    Rows are the differences that were measured on two networks at least; NaN where one lacks it.
    """
    found = {}
    for network, files in NETWORKS.items():
        rows = pd.concat([load_table(file) for file in files])
        table = rows.drop_duplicates(["seed", "method", "task"])
        methods = set(table["method"]) - ({"regmean"} if network == NO_LINEAR else set())
        known = {name: pair for name, pair in PAIRS.items() if methods.issuperset(pair)}
        found[network] = 100 * both_intervals(table, known)
    shared = [name for name in PAIRS if sum(name in rows.index for rows in found.values()) > 1]
    return {name: rows.reindex(shared) for name, rows in found.items()}


def block_shares(coefficients: pd.DataFrame) -> pd.DataFrame:
    """Coefficients of a walk, averaged over the tensors of every block: one column per block."""
    names = [str(name).split(".") for name in coefficients]
    blocks = [".".join(parts[: 2 if parts[0] == "blocks" else 1]) for parts in names]
    return coefficients.T.groupby(blocks, sort=False).mean().T


def start_shares(history: pd.DataFrame) -> pd.DataFrame:
    """What is left of the start after every walk: the product of what its steps left.

    By whole models that is the start's coefficient; by layer a step's part is a mean over tensors,
    and so the product is near the mean coefficient, not equal to it.

    Returns:
        One row per method, one column per seed.
    """
    left = history.assign(left=1 - history["moved"])
    return left.groupby(["method", "seed"], sort=False)["left"].prod().unstack("seed")


def pools(study: str) -> pd.DataFrame:
    """Mean accuracy in per cent of ``irrelevant`` or ``relevant`` pools, one column per seed.

    Rows are of suite, method and ``count``, the experts that joined or are there.
    """
    parts = {suite: load_table(f"{suite}-{study}") for suite in SUITES}
    table = pd.concat(parts, names=["suite"]).reset_index("suite")
    means = 100 * table.groupby(["suite", "method", "count", "seed"])["accuracy"].mean()
    return means.unstack("seed")


def pool_ends(study: str) -> pd.DataFrame:
    """Accuracy with the smallest and the largest pool, as text: one row per method."""
    wide = pools(study).mean(axis=1)
    ends = [wide.groupby(["suite", "method"]).nth(place).droplevel("count") for place in (0, -1)]
    text = pd.Series(
        [f"{few:.1f} → {many:.1f}" for few, many in zip(*ends, strict=True)], index=ends[0].index
    )
    table = text.unstack("suite")[list(SUITES)]
    order = [method for method in POOLED if method in table.index]
    names = {method: text for method, (text, _, _) in POOLED.items()}
    return table.loc[order].rename(index=names, columns=SUITES).rename_axis(None, axis=1)


def pool_differences(study: str, better: str, worse: Sequence[str]) -> pd.DataFrame:
    """`both_intervals` from other methods in the largest pool: rows of suite and other method."""
    parts = {}
    for suite in SUITES:
        table = load_table(f"{suite}-{study}")
        largest = table[table["count"] == table["count"].max()]
        names = {f"− {POOLED[other][0]}": (better, other) for other in worse}
        parts[suite] = 100 * both_intervals(largest, names)
    return pd.concat(parts)


def pool_losses(study: str = "irrelevant") -> pd.DataFrame:
    """`both_intervals` of what each method loses from the smallest to the largest pool, in points.

    Methods that lose exactly nothing in every seed and task are left out.
    """
    parts = {}
    for suite in SUITES:
        table = load_table(f"{suite}-{study}")
        ends = {table["count"].min(): ", few", table["count"].max(): ", many"}
        table = table[table["count"].isin(list(ends))]
        table = table.assign(method=table["method"] + table["count"].map(ends))
        pairs = {
            text: (f"{name}, few", f"{name}, many")
            for name, (text, _, _) in POOLED.items()
            if f"{name}, few" in set(table["method"])
        }
        rows = 100 * both_intervals(table, pairs)
        parts[SUITES[suite]] = rows[rows["half_width"] > 0]
    return pd.concat(parts)


def entropy_gains() -> pd.DataFrame:
    """Frank-Wolfe by entropy on the pool of four, less the pretrained model: points.

    Returns:
        Rows of suite and seed, one column for each of the four targets in order; NaN for those of
        the other suite.
    """
    gained = {}
    for suite in SUITES:
        before = load_table(f"{suite}-baselines").query("method == 'pretrained'")
        after = load_table(f"{suite}-irrelevant").query("method == 'frank_wolfe' and count == 0")
        values = [each.set_index(["seed", "task"])["accuracy"] for each in (after, before)]
        gained[suite] = (100 * (values[0] - values[1]).dropna()).unstack("task")
    return pd.concat(gained, names=["suite"])


def text_bits() -> pd.DataFrame:
    """Bits a character of ``text4``: procedures, and data-free methods at their best settings.

    Methods of ``text4-baselines``, searched on validation data, are named "…, tuned".
    """
    tuned = load_table("text4-baselines").query("method not in ['individual', 'pretrained']")
    tuned = tuned.assign(method=tuned["method"] + ", tuned")
    columns = ["seed", "task", "method", "loss"]
    table = pd.concat([load_table("text4-language")[columns], tuned[columns]], ignore_index=True)
    return table.assign(bits=table["loss"] / math.log(2))


def best_tuned(table: pd.DataFrame) -> str:
    """The tuned data-free method of `text_bits` that needs the fewest bits."""
    means = over_seeds(table, "method", "bits")["mean"]
    return str(means[[name for name in means.index if name.endswith(", tuned")]].idxmin())
