"""What chapter 11 reads of CART's results; differences are in points (per cent of accuracy)."""

from collections.abc import Callable

import pandas as pd

from mergebook.lab.results import MissingResult, load_table

# Each network, by what it is called on the page, and the suite that it is judged on.
SUITES = {"our ViT": "vision8", "EfficientNet-Lite0": "imagenet8", "MiniLM": "sentences8"}
# Names of what the study `compression` measured, by method, setting and rest.
COMPRESSED = {
    ("individual", "", ""): "individual",
    ("emr", "", ""): "EMR",
    ("tall_masks", "base=task_arithmetic", ""): "TALL + task arithmetic",
    ("tall_masks", "base=ties", ""): "TALL + TIES",
    **{
        ("cart_indexing", f"rank_ratio={ratio}", rest): f"CART-Indexing{words}, {ratio:.0%}"
        for rest, words in (("own", ""), ("average", ", rest averaged"))
        for ratio in (0.02, 0.04, 0.08, 0.16)
    },
}


def baselines(
    suite: str, ending: str = "", load: Callable[[str], pd.DataFrame] = load_table
) -> pd.DataFrame:
    """A suite's ``baselines``, with TIES of ``SUITE-ties``, where its density was searched too."""
    table = load(f"{suite}-baselines{ending}")
    try:
        searched = load(f"{suite}-ties{ending}").query("method == 'ties'")
    except MissingResult:
        return table
    return pd.concat([table.query("method != 'ties'"), searched], ignore_index=True)


def centred_excess(column: str, suite: str = "vision8") -> pd.DataFrame:
    """By how much interference is higher for centred vectors, in per cent: layers by ranks."""
    table = load_table(f"{suite}-interference", "curves").query("rank_ratio > 0")
    wide = table.pivot_table(index=["layer", "rank_ratio"], columns="centred", values=column)
    return (100 * (wide[True] / wide[False] - 1)).unstack("rank_ratio")


def plane(suite: str, part: str = "") -> pd.DataFrame:
    """CART's mean accuracy in per cent, rank ratios by scales, from the study ``surface``."""
    means = points(suite, part).groupby(["rank_ratio", "scale"])["accuracy"].mean()
    return 100 * means.unstack("scale")


def points(suite: str, part: str = "") -> pd.DataFrame:
    """The points of CART's plane; ``part`` ends the result's name, as "-4" for four tasks."""
    table = load_table(f"{suite}-surface{part}")
    return table.query("method == 'cart' and scale > 0")


def by_granularity(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """A result of ``adaptation`` by granularity, each with the bases; old results are by layer."""
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
