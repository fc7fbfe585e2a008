"""What the chapters on CoGraM compute: from the files of its studies, and on pairs trained live.

A *case* is a kind of data and a start, such as ``("homogeneous", "own")``; a *source* is where data
come from. Columns of results are series indexed by data, start and seed, accuracies in per cent, so
that a difference of two is paired by seed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import stats

from mergebook.cogram.measure import CHOSEN
from mergebook.cogram.pairs import Pair, draw_pairs, make_pair
from mergebook.lab.results import load_table
from mergebook.lab.statistics import both_intervals, interval, written
from mergebook.plots import label
from mergelib.align import git_rebasin
from mergelib.cogram import prototypes
from mergelib.evaluation.tasks import Split
from mergelib.messages.brief import Brief
from mergelib.statedict import StateDict, lerp

Case = tuple[str, str]

CASES: tuple[Case, ...] = (
    ("homogeneous", "own"),
    ("heterogeneous", "own"),
    ("homogeneous", "common"),
    ("heterogeneous", "common"),
)
UNEQUAL: tuple[Case, ...] = (("unequal", "own"), ("unequal", "common"))
FINER = ("layer, neuron", "layer, neuron, weight", "all neurons", "all weights")
NEAR = 0.05  # of the distance between A and B: "at a parent"


@dataclass(frozen=True, repr=False)
class Source(Brief):
    """What the studies wrote about one source.

    Attributes:
        name: ``"synthetic"`` or ``"digits"``.
        fusion: the ``test`` rows of the study ``fusion``, accuracies in per cent.
        tuning: those of ``tuning``.
        searched: the ``validation`` rows of ``thresholds``.
    """

    name: str
    fusion: pd.DataFrame
    tuning: pd.DataFrame
    searched: pd.DataFrame

    @classmethod
    def load(cls, name: str) -> "Source":
        """Read the three files of a source."""
        return cls(
            name,
            _per_cent(load_table(f"{name}-fusion")),
            _per_cent(load_table(f"{name}-tuning")),
            _per_cent(load_table(f"{name}-thresholds", "validation")),
        )

    def of(self, method: str, value: str = "accuracy") -> pd.Series:
        """A column of a network that CoGraM did not touch, such as ``"fisher"``."""
        return _column(self.fusion, value, method=method)

    def cogram(
        self,
        levels: str = "layer",
        prototypes: str = "arithmetic",
        iterations: int = 1,
        value: str = "accuracy",
    ) -> pd.Series:
        """A column of one of CoGraM's runs on the Fisher merge."""
        chosen = {"levels": levels, "prototypes": prototypes, "iterations": iterations}
        return _column(self.fusion, value, method="cogram", **chosen)

    def trained(self, method: str, training: str = "kickoff", value: str = "accuracy") -> pd.Series:
        """A column of a network after its training, or before it (``training="none"``)."""
        return _column(self.tuning, value, method=method, training=training)


def load_sources() -> dict[str, Source]:
    """Synthetic data, whose features have both signs, and digits, by name."""
    return {name: Source.load(name) for name in ("synthetic", "digits")}


def fused(name: str) -> Source:
    """What the study ``fusion`` alone wrote about a source, such as ``"synthetic_positive"``."""
    nothing = pd.DataFrame()
    return Source(
        name.replace("_", ", "), _per_cent(load_table(f"{name}-fusion")), nothing, nothing
    )


def feature_map(
    prototypes: str, rival: str, *, steepness: float = 5.5, iterations: int = 1
) -> pd.DataFrame:
    """Points by which CoGraM is above another network, on shifted and scaled features.

    Returns:
        Columns ``mean`` and ``half_width`` of the 95 % interval over seeds, indexed by data, start,
        scale and offset.
    """
    table = load_table("synthetic-feature_scale")
    keys = ["data", "start", "scale", "offset", "seed"]
    asked = {"prototypes": prototypes, "steepness": steepness, "iterations": iterations}
    chosen = (table[[*asked]] == pd.Series(asked)).all(axis=1)
    merged, other = (
        table[rows].set_index(keys)["accuracy"] for rows in (chosen, table["method"] == rival)
    )
    groups = (100 * (merged - other)).groupby(keys[:-1])
    rows = {key: interval(part.tolist()) for key, part in groups}
    index = pd.MultiIndex.from_tuples(rows, names=keys[:-1])
    return pd.DataFrame([*rows.values()], index=index, columns=["mean", "half_width"])


def _per_cent(table: pd.DataFrame) -> pd.DataFrame:
    scaled = table.filter(like="accuracy")
    return table.assign(**{str(name): 100 * column for name, column in scaled.items()})


def _column(table: pd.DataFrame, value: str, **chosen: object) -> pd.Series:
    for name, wanted in chosen.items():
        table = table[table[name] == wanted]
    column: pd.Series = table.set_index(["data", "start", "seed"])[value].sort_index()
    if column.empty or column.index.has_duplicates:
        raise ValueError(f"{len(column)} rows with {chosen}, expected one per case and seed")
    return column


def gap(difference: pd.Series, cases: Sequence[Case] = CASES) -> pd.DataFrame:
    """Mean over the seeds of each case, and half width of its 95 % interval.

    Returns:
        Columns ``mean`` and ``half_width``, one row per case.
    """
    rows = {case: interval(difference[case].tolist()) for case in cases}
    index = pd.MultiIndex.from_tuples(rows, names=["data", "start"])
    return pd.DataFrame([*rows.values()], index=index, columns=["mean", "half_width"])


Column = Callable[[Source], pd.Series]


def differences(
    columns: Mapping[str, Column], sources: Iterable[Source], cases: Sequence[Case] = CASES
) -> pd.DataFrame:
    """A table to read: "mean ± half width", one row per source and case, written in one cell."""
    parts = []
    for source in sources:
        part = written({name: gap(column(source), cases) for name, column in columns.items()})
        part.index = pd.Index([f"{source.name}, {data}, {start}" for data, start in part.index])
        parts.append(part)
    return pd.concat(parts)


def improved(source: Source, prototypes: str, cases: Sequence[Case] = CASES) -> dict[Case, int]:
    """On how many seeds of each case one pass over layers is above the Fisher merge."""
    gained = source.cogram(prototypes=prototypes) - source.of("fisher")
    return {case: sum(gained[case] > 0) for case in cases}


def at_parent(source: Source, iterations: int) -> pd.DataFrame:
    """How many seeds end within `NEAR` of a parent, and of these, at the better one.

    The better one is the one ahead on validation data.

    Returns:
        Columns ``near`` and ``better``, one row per case.
    """
    place = source.cogram(iterations=iterations, value="toward_a") - 0.5
    better = source.of("better", "toward_a") - 0.5
    counts = {}
    for case in CASES:
        near = place[case].abs() > 0.5 - NEAR
        counts[case] = sum(near), sum(near & (place[case] * better[case] > 0))
    return pd.DataFrame.from_dict(counts, orient="index", columns=["near", "better"])


def same_network(source: Source, first: str, second: str) -> dict[Case, int]:
    """On how many seeds of each case two choices of levels end in one network.

    That is, with one accuracy and one place on the line from B to A; class means, one pass.
    """
    accuracy, place = (
        (source.cogram(first, value=value) - source.cogram(second, value=value)).abs()
        for value in ("accuracy", "toward_a")
    )
    apart = accuracy + place
    return {case: sum(apart[case] < 1e-9) for case in CASES}


def spread_ratio(
    first: pd.Series, second: pd.Series, *, draws: int = 10_000, seed: int = 0
) -> pd.DataFrame:
    """Standard deviation over seeds of one column over that of another, by case.

    With the 95 % interval of a bootstrap of the logarithm, which draws seeds for both together, so
    that it is paired and presumes no distribution.

    Returns:
        Columns ``first`` and ``second``, the deviations in points, ``ratio``, ``low`` and ``high``.
    """
    rows = {}
    for case in CASES:
        x, y = first[case].to_numpy(), second[case].to_numpy()
        drawn = np.random.default_rng(seed).integers(len(x), size=(draws, len(x)))
        logs = np.log(x[drawn].std(1, ddof=1) / y[drawn].std(1, ddof=1))
        low, high = np.exp(np.quantile(logs, [0.025, 0.975]))
        deviations = x.std(ddof=1), y.std(ddof=1)
        rows[case] = (*deviations, deviations[0] / deviations[1], low, high)
    columns = ["first", "second", "ratio", "low", "high"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def drop_at_weak(source: Source, *, draws: int = 5000, seed: int = 0) -> pd.DataFrame:
    """Spearman's correlation of CoGraM's distance below A and B with their weakness, by case.

    Returns:
        Columns ``rho``, and ``low`` and ``high``, a 95 % bootstrap interval over seeds.
    """
    strength = (source.of("a") + source.of("b")) / 2
    below = strength - source.cogram()
    rows = {}
    for case in CASES:
        x, y = below[case].to_numpy(), -strength[case].to_numpy()
        drawn = np.random.default_rng(seed).integers(len(x), size=(draws, len(x)))
        rows[case] = (
            float(_rank_correlation(x[None], y[None])[0]),
            *np.quantile(_rank_correlation(x[drawn], y[drawn]), [0.025, 0.975]),
        )
    return pd.DataFrame.from_dict(rows, orient="index", columns=["rho", "low", "high"])


def _rank_correlation(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Spearman's coefficient of every row."""
    ranks = [stats.rankdata(values, axis=1) for values in (x, y)]
    a, b = (rank - rank.mean(1, keepdims=True) for rank in ranks)
    found: NDArray[Any] = (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return found


def steepness_curve(source: Source, case: Case, prototypes: str) -> pd.DataFrame:
    """Validation accuracy of layers against the steepness: ``mean`` and ``half_width``."""
    rows = source.searched.set_index(["levels", "data", "start", "prototypes"])
    rows = rows.loc[[("layer", *case, prototypes)]]
    found = {key: interval(part.tolist()) for key, part in rows.groupby("steepness")["accuracy"]}
    return pd.DataFrame.from_dict(found, orient="index", columns=["mean", "half_width"])


def threshold_means(source: Source) -> tuple[pd.DataFrame, tuple[float, float]]:
    """Mean validation accuracy of all three levels by their ranges, over cases and seeds.

    Returns:
        Rows (τ_min, τ_max) of layers, columns those of neurons, in nats; and the chosen row.
    """
    ends = ["layer_low", "layer_high", "neuron_low", "neuron_high"]
    rows = source.searched.query("prototypes == 'arithmetic' and levels == 'layer, neuron, weight'")
    means = rows.groupby(ends)["accuracy"].mean()
    chosen = CHOSEN[source.name]
    if means[(*chosen["layer"], *chosen["neuron"])] < means.max() - 1e-6:
        raise ValueError(f"{chosen} is not the best setting for {source.name}")
    return means.unstack(["neuron_low", "neuron_high"]).sort_index(axis=1), chosen["layer"]


def after_other_merges(result: str) -> dict[str, pd.DataFrame]:
    """What CoGraM over layers adds to other merges, in points: `both_intervals`.

    Returns:
        As the paper has it and with rollback at layers: one row per merge that it began with.
    """
    parts = dict(list(load_table(result).groupby("base", sort=False)))
    return {
        name: 100
        * pd.concat(
            both_intervals(part, {label(str(base)): (method, "none")})
            for base, part in parts.items()
        )
        for name, method in (("as published", "cogram"), ("with rollback", "cogram, rolled back"))
    }


def loss(pair: Pair, state: StateDict, split: Split | None = None) -> float:
    """Mean cross-entropy in nats, on the test data or those given."""
    labels = (split or pair.data.test).labels
    return F.cross_entropy(pair.outputs(state, split), labels).item()


def layer_passes(seeds: Iterable[int]) -> pd.DataFrame:
    """One pass over layers of live synthetic pairs, for three kinds of evaluation data.

    Returns:
        Rows of ``data``, ``start``, ``seed``, ``judged on``; ``last`` and ``first``, the share of A
        in the last layer and in the first; ``lean``, the first decision's L_A - L_B; ``rises``, how
        many of the two merges raised the loss; and accuracies in per cent: ``a``, ``b``,
        ``fisher``, ``cogram``.
    """
    rows = []
    for seed in seeds:
        for names, pair in draw_pairs(seed, "synthetic"):
            states = {"a": pair.a, "b": pair.b, "fisher": pair.fisher}
            for kind in ("everything", "arithmetic", "geometric"):
                data = {"all": pair.together} if kind == "everything" else pair.prototypes(kind)
                result = pair.cogram(pair.fisher, data)
                log = result.history.set_index("layer")
                after = {**states, "cogram": result.state}
                rows.append(
                    {
                        **names,
                        "seed": seed,
                        "judged on": kind,
                        "last": log["alpha a"]["2"],
                        "first": log["alpha a"]["0"],
                        "lean": log["loss a"]["2"] - log["loss b"]["2"],
                        "rises": int((log["after"] > log["before"]).sum()),
                    }
                    | {name: 100 * pair.accuracy(state) for name, state in after.items()}
                )
    return pd.DataFrame(rows)


def told_by_prototypes(
    kinds: Mapping[str, Mapping[str, Any]], seeds: Iterable[int]
) -> pd.DataFrame:
    """What prototypes of homogeneous synthetic data tell about the classes.

    Returns:
        Rows of ``prototypes``; ``nearest, %``, test examples that are nearest to a prototype of
        their class; ``A is right, %`` on the prototypes, and ``loss of A`` on them in nats.
    """
    rows = []
    for seed in seeds:
        pair = make_pair(seed, "synthetic", "homogeneous", shared=True)
        for name, options in kinds.items():
            points = Split(*prototypes(*pair.together, seed=seed, **options))
            nearest = torch.cdist(pair.data.test.inputs, points.inputs).argmin(1)
            right = points.labels[nearest] == pair.data.test.labels
            rows.append(
                {
                    "prototypes": name,
                    "nearest, %": 100 * right.float().mean().item(),
                    "A is right, %": 100 * pair.accuracy(pair.a, points),
                    "loss of A": loss(pair, pair.a, points),
                }
            )
    return pd.DataFrame(rows)


def aligned(pair: Pair) -> StateDict:
    """B with its hidden neurons in the order in which they resemble A's most (Git Re-Basin)."""
    return git_rebasin(pair.a, pair.b, pair.model).state


def aligned_scores(pairs: Iterable[Pair]) -> pd.DataFrame:
    """Accuracies in per cent around aligning, one row per pair.

    Returns:
        Columns ``a``, ``b``, ``better`` (by validation data), ``average``, ``aligned`` (A averaged
        with B in A's order) and ``aligned, then CoGraM`` (over layers, on class means).
    """
    rows = []
    for pair in pairs:
        turned = Pair(pair.data, pair.model, pair.a, aligned(pair), pair.fisher)
        mean = lerp(pair.a, turned.b, 0.5)
        states = {"a": pair.a, "b": pair.b}
        ahead = max(states, key=lambda name: pair.accuracy(states[name], pair.data.validation))
        states |= {"better": states[ahead], "average": lerp(pair.a, pair.b, 0.5), "aligned": mean}
        states["aligned, then CoGraM"] = turned.cogram(mean, pair.prototypes("arithmetic")).state
        rows.append({name: 100 * pair.accuracy(state) for name, state in states.items()})
    return pd.DataFrame(rows)
