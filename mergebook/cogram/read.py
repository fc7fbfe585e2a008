"""What chapter 31 shows: tables out of the files of CoGraM's studies.

A *case* is a kind of data and a start, such as ``("homogeneous", "own")``; a *source* is where data
come from. Columns of results are series indexed by data, start and seed, accuracies in per cent, so
that a difference of two is paired by seed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from mergebook.lab.results import load_table
from mergebook.lab.statistics import interval, written
from mergelib.messages.brief import Brief

Case = tuple[str, str]

CASES: tuple[Case, ...] = (
    ("homogeneous", "own"),
    ("heterogeneous", "own"),
    ("homogeneous", "common"),
    ("heterogeneous", "common"),
)
NEAR = 0.05  # of the distance between A and B: "at a parent"


@dataclass(frozen=True, repr=False)
class Source(Brief):
    """What the studies wrote about one source.

    Attributes:
        name: ``"synthetic"``, ``"synthetic, positive"`` or ``"digits"``.
        fusion: the ``test`` rows of the study ``fusion``, accuracies in per cent.
    """

    name: str
    fusion: pd.DataFrame

    @classmethod
    def load(cls, name: str) -> "Source":
        """A source by its name in file names, such as ``"synthetic_positive"``."""
        return cls(name.replace("_", ", "), _per_cent(load_table(f"{name}-fusion")))

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
        table = _per_cent(load_table(f"{self.name}-tuning"))
        return _column(table, value, method=method, training=training)


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
