"""What chapter 11 shows of real pretrained networks beside our small ones, out of ``results/``."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mergebook.cart.read.experiments import baselines, by_granularity, centred_excess
from mergebook.lab.comparison import ADAPTED
from mergebook.lab.results import load_result, load_table
from mergebook.lab.statistics import (
    both_intervals,
    crossed,
    interval,
    over_seeds,
    plus_minus,
)
from mergebook.plots import label

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
# The same network at 32 pixels after two ways of pretraining, and ours after the second.
PRETRAININGS = {
    "Lite0 after ImageNet": "lite8-baselines",
    "Lite0 after our pretraining": "lite8-baselines-lite0_small",
    "our ViT after our pretraining": "vision8-baselines",
}
COUNTS = (8, 14, 20)
RATIOS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 1.0)
FAMILIES = {"our ViT": "vision", "EfficientNet-Lite0": "imagenet"}
METHODS = (
    *("pretrained", "average", "task_arithmetic", "ties"),
    *("consensus", "cart", "tsv", "iso_c"),
)
BASES = tuple(ADAPTED)  # of AdaMerging
# What needs no labels, and whether more or less of it is good.
SIGNS = {
    "agreement": 1,
    "error": -1,
    "interference": -1,
    "signal": 1,
    "entropy": -1,
    "distance": -1,
}
TOLD = tuple(SIGNS)


def normalised(file: str, methods: Sequence[str] = METHODS) -> pd.DataFrame:
    """Normalised accuracy in per cent of a result of ``baselines``: `over_seeds`, by method."""
    suite, ending = file.split("-baselines")
    table = baselines(suite, ending).query("method in @methods")
    rows: pd.DataFrame = 100 * over_seeds(table, "method", "normalised").loc[list(methods)]
    return rows


def lead(suite: str) -> pd.DataFrame:
    """CART's lead over `METHODS` in points: `both_intervals`."""
    pairs = {f"CART − {label(other)}": ("cart", other) for other in METHODS if other != "cart"}
    return 100 * both_intervals(baselines(suite), pairs)


def written_leads(suites: Mapping[str, str]) -> pd.DataFrame:
    """`lead` as text, "mean [low, high]" over seeds and tasks: one column per name of a suite."""
    columns = {}
    for name, suite in suites.items():
        ends = lead(suite)[["mean", "low", "high"]]
        columns[name] = ends.apply(lambda row: "{:.1f} [{:.1f}, {:.1f}]".format(*row), axis=1)
    return pd.DataFrame(columns)


def lower_layers(column: str, ratios: Sequence[float] = RATIOS) -> pd.DataFrame:
    """In how many per cent of the layers row-space interference is lower for centred vectors.

    Returns:
        One row per network, one column per rank ratio; a layer counts by its mean over the seeds.
    """
    excess = {name: centred_excess(column, suite) for name, suite in SUITES.items()}
    rows = {name: 100 * (layers[list(ratios)] < 0).mean() for name, layers in excess.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def by_count(family: str) -> pd.DataFrame:
    """`normalised` with 8, 14 and 20 tasks: rows of method and count."""
    parts = {count: normalised(f"{family}{count}-baselines") for count in COUNTS}
    return pd.concat(parts, names=["count"]).swaplevel()


def plane(suite: str, part: str = "") -> pd.DataFrame:
    """CART's mean accuracy in per cent, rank ratios by scales, from the study ``surface``.

    ``part`` ends the result's name where fewer tasks were merged, as in ``"-4"``.
    """
    table = _plane_of(suite, part)
    means: pd.Series[float] = table.groupby(["rank_ratio", "scale"])["accuracy"].mean()
    return 100 * means.unstack("scale")


def correlations(suite: str) -> pd.DataFrame:
    """How well what needs no labels orders the points of CART's plane as accuracy does.

    For every seed and task Spearman's correlation over all points (rank, scale) between accuracy
    and a column of `mergebook.cart.measure.surface.told`, signed so that it is high where the
    quantity is good: less error, interference, entropy and distance, more signal and agreement.
    ``apart`` is the control, the same of deviations from the mean over tasks: what a quantity knows
    of this task and not of the merged model as such.

    Returns:
        One row per quantity with the means ``own`` and ``apart``, and for each the ends of an
        interval of 95 % over seeds and tasks, ``own_low``, ``own_high`` and so on.
    """
    table = _plane_of(suite)
    rows = {}
    for quantity in TOLD:
        found: dict[str, list[list[float]]] = {"own": [], "apart": []}
        for _, part in table.groupby("seed"):
            accuracy, told = (
                part.pivot(index=["rank_ratio", "scale"], columns="task", values=column)
                for column in ("accuracy", quantity)
            )
            for kind, shared in (("own", 0.0), ("apart", 1.0)):
                pair = [wide.sub(shared * wide.mean(axis=1), axis=0) for wide in (accuracy, told)]
                ranks = [wide.round(9).rank().to_numpy() for wide in pair]
                columns = zip(ranks[0].T, ranks[1].T, strict=True)
                found[kind].append([SIGNS[quantity] * _correlation(x, y) for x, y in columns])
        row: dict[str, float] = {}
        for kind, values in found.items():
            low, high = crossed(np.array(values)).interval()
            row |= {kind: float(np.mean(values)), f"{kind}_low": low, f"{kind}_high": high}
        rows[quantity] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def _correlation(x: NDArray[Any], y: NDArray[Any]) -> float:
    """Pearson's correlation; 0 where one of them does not vary."""
    return 0.0 if np.ptp(x) == 0 or np.ptp(y) == 0 else float(np.corrcoef(x, y)[0, 1])


def picked(suite: str) -> pd.DataFrame:
    """What is lost by picking CART's rank and scale without labels, in points: `over_seeds`.

    Returns:
        One row per quantity: mean accuracy of the plane's best point, minus that of the point which
        the quantity's mean over tasks picks.
    """
    table = _plane_of(suite).groupby(["seed", "rank_ratio", "scale"])
    means = table[["accuracy", *TOLD]].mean().reset_index()
    rows = []
    for seed, part in means.groupby("seed"):
        for quantity in TOLD:
            point = int((SIGNS[quantity] * part[quantity]).to_numpy().argmax())
            lost = 100 * (part["accuracy"].max() - part["accuracy"].iloc[point])
            rows.append({"seed": seed, "quantity": quantity, "lost": lost})
    return over_seeds(pd.DataFrame(rows), "quantity", "lost")


def _plane_of(suite: str, part: str = "") -> pd.DataFrame:
    """The points of CART's plane, without the average."""
    table = load_table(f"{suite}-surface{part}")
    points: pd.DataFrame = table.query("method == 'cart' and scale > 0")
    return points


def best_cell(wide: pd.DataFrame) -> tuple[int, int]:
    """Row and column of the largest value."""
    return divmod(int(wide.to_numpy().argmax()), wide.shape[1])


def peaks() -> pd.DataFrame:
    """Where CART's plane is highest with four and with eight tasks, and at scale 1, to read."""
    rows = {}
    for name, suite in PRETRAINED.items():
        for count, part in ((4, "-4"), (8, "")):
            wide = plane(suite, part)
            ranks, scales = (axis.to_numpy(float) for axis in (wide.index, wide.columns))
            row, column = best_cell(wide)
            at_one = wide[1.0].to_numpy()
            rows[f"{name}, {count} tasks"] = {
                "best rank": f"{ranks[row]:.0%}",
                "best scale": f"{scales[column]:g}",
                "accuracy": f"{wide.to_numpy().max():.1f}",
                "best rank at scale 1": f"{ranks[at_one.argmax()]:.0%}",
                "accuracy there": f"{at_one.max():.1f}",
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def adapted_gains(suite: str, bases: Sequence[str] = BASES) -> dict[str, pd.DataFrame]:
    """Points that AdaMerging gains on each base, by granularity: `both_intervals`."""
    pairs = {label(base): (f"adamerging+{base}", base) for base in bases}
    parts = by_granularity(load_table(f"{suite}-adaptation"))
    return {f"by {kind}": 100 * both_intervals(part, pairs) for kind, part in parts.items()}


def adapted_slowly() -> pd.DataFrame:
    """AdaMerging's gains by layer on CART on EfficientNet, in few large and many small steps."""
    pair = {"": ("adamerging+cart", "cart")}
    rows = {}
    for file in ("imagenet8-adaptation", "imagenet8-adaptation-500"):
        used = load_result(file)["provenance"]["settings"]
        name = f"{used['steps']} steps of {used['learning_rate']:g}"
        rows[name] = 100 * both_intervals(by_granularity(load_table(file))["layer"], pair)
    return pd.concat(rows).droplevel(1)


def networks() -> pd.DataFrame:
    """What else differs between the networks, to read: "mean ± half width" over seeds.

    Returns:
        A column per network: its parameters; the mean length of task vectors, and cosine between
        them; the share of centred vectors' squared norm in 8 % of the rank; and CART's best rank at
        scale 1.
    """
    rows = {}
    for name, suite in SUITES.items():
        tasks, pairs, spectra = (
            load_table(f"{suite}-geometry", part) for part in ("tasks", "pairs", "spectra")
        )
        spectra = spectra.query("centred and rank_ratio == 0.08")
        ranks = _plane_of(suite) if suite in PRETRAINED.values() else load_table(f"{suite}-ranks")
        at_one = ranks.query("method == 'cart' and scale == 1")
        means = at_one.groupby("rank_ratio")["accuracy"].mean()
        best = float(means.index[int(means.argmax())])
        rows[name] = {
            "parameters, 10⁶": f"{tasks['parameters'].iloc[0] / 1e6:.1f}",
            "‖τ‖ / ‖θ₀‖, %": _by_seed(100 * tasks.groupby("seed")["length"].mean(), 1),
            "cosine of τ": _by_seed(pairs.groupby("seed")["cosine"].mean(), 3),
            "in 8 % of rank, %": _by_seed(100 * spectra.groupby("seed")["kept"].mean(), 0),
            "best rank at λ = 1, %": f"{100 * best:g}",
        }
    return pd.DataFrame(rows)


def recalibrated() -> pd.DataFrame:
    """Points gained by measuring EfficientNet's BatchNorm anew after merging: `both_intervals`."""
    table = load_table("imagenet8-batch_norm").query("method != 'individual'")
    methods = table["method"].unique()
    table = table.assign(method=table["method"] + " " + table["statistics"])
    pairs = {label(method): (f"{method} measured", f"{method} merged") for method in methods}
    return 100 * both_intervals(table, pairs)


def _by_seed(values: "pd.Series[float]", digits: int) -> str:
    return plus_minus(*interval(values.tolist()), digits)


def sizes(methods: Sequence[str] = METHODS) -> pd.DataFrame:
    """Normalised accuracy in per cent, methods by millions of parameters, means over seeds."""
    return pd.DataFrame({size: normalised(file, methods)["mean"] for size, file in SIZES.items()})
