"""What chapter 31 shows: tables out of the files of CoGraM's studies.

A *case* is a kind of data and a start, such as ``("homogeneous", "own")``; a *source* is where data
come from. Columns are series by data, start and seed, accuracies in per cent.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from mergebook.lab.results import load_table
from mergebook.lab.statistics import over_seeds, written
from mergebook.ledger.checks import pick
from mergelib.messages.brief import Brief

Case = tuple[str, str]

CASES: tuple[Case, ...] = (
    ("homogeneous", "own"),
    ("heterogeneous", "own"),
    ("homogeneous", "common"),
    ("heterogeneous", "common"),
)
KEYS = ("data", "start", "seed")
NEAR = 0.05  # of the distance between A and B: "at a parent"


@dataclass(frozen=True, repr=False)
class Source(Brief):
    """What the studies wrote about one source."""

    name: str  # "synthetic", "synthetic, positive" or "digits"
    fusion: pd.DataFrame  # the test rows of the study ``fusion``

    @classmethod
    def load(cls, name: str) -> "Source":
        """A source by its name in file names, such as ``"synthetic_positive"``."""
        return cls(name.replace("_", ", "), load_table(f"{name}-fusion"))

    def of(self, method: str, value: str = "accuracy") -> pd.Series:
        """A column of a network that CoGraM did not touch, such as ``"fisher"``."""
        return pick(self.fusion, value, keys=KEYS, method=method).sort_index()

    def cogram(
        self,
        levels: str = "layer",
        prototypes: str = "arithmetic",
        iterations: int = 1,
        value: str = "accuracy",
    ) -> pd.Series:
        """A column of one of CoGraM's runs on the Fisher merge."""
        chosen = {"levels": levels, "prototypes": prototypes, "iterations": iterations}
        return pick(self.fusion, value, keys=KEYS, method="cogram", **chosen).sort_index()

    def trained(self, method: str, training: str = "kickoff", value: str = "accuracy") -> pd.Series:
        """A column of a network after its training, or before it (``training="none"``)."""
        chosen = {"method": method, "training": training}
        return pick(load_table(f"{self.name}-tuning"), value, keys=KEYS, **chosen).sort_index()


def feature_map(
    prototypes: str, rival: str, *, steepness: float = 5.5, iterations: int = 1
) -> pd.DataFrame:
    """Points by which CoGraM is above a network on shifted and scaled features: `over_seeds`."""
    table, by = load_table("synthetic-feature_scale"), ["data", "start", "scale", "offset"]
    asked = {"prototypes": prototypes, "steepness": steepness, "iterations": iterations}
    merged, other = (pick(table, keys=(*by, "seed"), **rows) for rows in (asked, {"method": rival}))
    return over_seeds((merged - other).sort_index().reset_index(), by)


def gap(difference: pd.Series, cases: Sequence[Case] = CASES) -> pd.DataFrame:
    """`over_seeds` of a difference, one row per case."""
    values = difference.rename("value").reset_index()
    return over_seeds(values, ["data", "start"], "value").loc[list(cases)]


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
    """How many seeds end within `NEAR` of a parent, and of these, at the better one."""
    place = source.cogram(iterations=iterations, value="toward_a") - 0.5
    better = source.of("better", "toward_a") - 0.5
    counts = {}
    for case in CASES:
        near = place[case].abs() > 0.5 - NEAR
        counts[case] = sum(near), sum(near & (place[case] * better[case] > 0))
    return pd.DataFrame.from_dict(counts, orient="index", columns=["near", "better"])
