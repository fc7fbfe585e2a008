"""What chapter 11 shows of CART, as tables out of ``results/``, and storage as bits per weight.

Differences are in points (per cent of accuracy) where nothing else is said.
"""

from collections.abc import Callable

import pandas as pd

from mergebook.lab.results import MissingResult, load_table
from mergebook.lab.statistics import both_intervals, interval

VISION = ("vision8-baselines", "vision14-baselines", "vision20-baselines")
SMALL = tuple(f"{file}-vit_small" for file in VISION)
KEPT_RANKS = (0.02, 0.04, 0.08, 0.16)

# Names of what the study `compression` measured, by method, setting and rest.
COMPRESSED = {
    ("individual", "", ""): "individual",
    ("emr", "", ""): "EMR",
    ("tall_masks", "base=task_arithmetic", ""): "TALL + task arithmetic",
    ("tall_masks", "base=ties", ""): "TALL + TIES",
    **{
        ("cart_indexing", f"rank_ratio={ratio}", rest): f"CART-Indexing{words}, {ratio:.0%}"
        for rest, words in (("own", ""), ("average", ", rest averaged"))
        for ratio in KEPT_RANKS
    },
}


def baselines(
    suite: str, ending: str = "", load: Callable[[str], pd.DataFrame] = load_table
) -> pd.DataFrame:
    """The test rows of a suite's ``baselines``, with TIES's density searched where it was measured.

    The first search left TIES at its default density; the results ``SUITE-ties`` repeat TIES with
    density and scale chosen together on validation data, on the same experts.
    """
    table = load(f"{suite}-baselines{ending}")
    try:
        searched = load(f"{suite}-ties{ending}").query("method == 'ties'")
    except MissingResult:
        return table
    return pd.concat([table.query("method != 'ties'"), searched], ignore_index=True)


def bell(table: pd.DataFrame, method: str, scale: float) -> pd.DataFrame:
    """Accuracy against the rank, in per cent: `interval` over seeds of the mean over tasks.

    Returns:
        Columns ``mean`` and ``half_width``, indexed by ``rank_ratio``.
    """
    rows = table[(table["method"] == method) & (table["scale"] == scale)]
    means = 100 * rows.groupby(["rank_ratio", "seed"])["accuracy"].mean()
    found = {ratio: interval(part.tolist()) for ratio, part in means.groupby("rank_ratio")}
    return pd.DataFrame.from_dict(found, orient="index", columns=["mean", "half_width"])


def chosen_ranks() -> "pd.Series[int]":
    """How many of the vision runs chose each rank ratio for CART on validation data."""
    chosen = [row for file in (*VISION, *SMALL) for row in load_table(file, "chosen")["settings"]]
    return (
        pd.Series([settings["cart"]["rank_ratio"] for settings in chosen])
        .value_counts()
        .sort_index()
    )


def centred_excess(column: str, suite: str = "vision8") -> pd.DataFrame:
    """By how much row-space interference is higher for centred vectors, in per cent.

    Returns:
        Means over the seeds: one row per layer, one column per positive rank ratio.
    """
    table = load_table(f"{suite}-interference", "curves").query("rank_ratio > 0")
    wide = table.pivot_table(index=["layer", "rank_ratio"], columns="centred", values=column)
    return (100 * (wide[True] / wide[False] - 1)).unstack("rank_ratio")


def learned_coefficients() -> pd.DataFrame:
    """AdaMerging's coefficients on CART by entropy and by labels, from ``vision8-coefficients``.

    Returns:
        `both_intervals` to CART in points, one row per objective and rate, with the objective's
        mean at the ``first`` and the ``last`` recorded step, in nats.
    """
    table, history = (load_table("vision8-coefficients", part) for part in ("test", "history"))
    for rows in (table, history):
        rate = rows["rate"].map(", rate {:g}".format).where(rows["rate"] > 0, "")
        rows["method"] = rows["method"].str.replace("_", "-") + rate
    names = [name for name in table["method"].unique() if name != "cart"]
    found = 100 * both_intervals(table, {name: (name, "cart") for name in names})
    values = history.groupby(["method", "step"])["value"].mean().unstack()
    return found.assign(first=values.iloc[:, 0], last=values.iloc[:, -1])


def by_granularity(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """A result of ``adaptation`` by AdaMerging's granularity, each part with the bases.

    Results from before there was a column for it are by layer.
    """
    if "granularity" not in table:
        return {"layer": table}
    kinds = [kind for kind in ("layer", "task") if (table["granularity"] == kind).any()]
    return {kind: table[table["granularity"].isin(["", kind])] for kind in kinds}


def with_rest(table: pd.DataFrame) -> pd.DataFrame:
    """A result of ``compression`` with its column ``rest``; where it has none, it is averaged."""
    if "rest" in table:
        return table
    averaged = table["method"] == "cart_indexing"
    return table.assign(rest=averaged.map({True: "average", False: ""}))


def compressed(suite: str, part: str = "test") -> pd.DataFrame:
    """A table of the study ``compression``, with `COMPRESSED`'s names in ``method``."""
    table = with_rest(load_table(f"{suite}-compression", part))
    keys = zip(table["method"], table["setting"], table["rest"], strict=True)
    return table.assign(method=[COMPRESSED[key] for key in keys])


def bits_per_weight(suite: str) -> "pd.Series[float]":
    """What one more task takes, by name as in `compressed`."""
    storage = compressed(suite, "storage").query("seed == 0").set_index("method")
    bits: pd.Series[float] = storage["bits_per_task"] / storage["parameters"]
    return bits.rename("bits per weight")
