"""What chapter 31 shows: tables out of the files of CoGraM's studies.

A *case* is a kind of data and an initialisation, such as ``("homogeneous", "own")``; a *source* is
where data come from. Columns are series by data, start and seed, accuracies in per cent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mergebook.lab.results import load_table
from mergebook.lab.statistics import over_seeds
from mergebook.ledger.checks import pick
from mergelib.messages.brief import Brief

Case = tuple[str, str]

DATA = ("homogeneous", "heterogeneous")
STARTS = {"own": "separate", "common": "common"}  # as the chapter calls initialisations
CASES: tuple[Case, ...] = tuple((data, start) for start in STARTS for data in DATA)
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
        """A column of a network that CoGraM did not change, such as ``"fisher"``."""
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
    prototypes: str | None, rival: str, *, steepness: float = 5.5, iterations: int = 1
) -> pd.DataFrame:
    """Points by which CoGraM is above a network on shifted and scaled features: `over_seeds`.

    Without ``prototypes``, it is the Fisher merge in place of CoGraM.
    """
    table, by = load_table("synthetic-feature_scale"), ["data", "start", "scale", "offset"]
    run = {"prototypes": prototypes, "steepness": steepness, "iterations": iterations}
    asked: dict[str, Any] = {"method": "fisher"} if prototypes is None else run
    merged, other = (pick(table, keys=(*by, "seed"), **rows) for rows in (asked, {"method": rival}))
    return over_seeds((merged - other).sort_index().reset_index(), by)


def gap(difference: pd.Series, cases: Sequence[Case] = CASES) -> pd.DataFrame:
    """`over_seeds` of a difference, one row per case."""
    values = difference.rename("value").reset_index()
    return over_seeds(values, ["data", "start"], "value").loc[list(cases)]


def improved(source: Source, prototypes: str, cases: Sequence[Case] = CASES) -> dict[Case, int]:
    """Number of seeds of each case on which one pass over layers is above the Fisher merge."""
    gained = source.cogram(prototypes=prototypes) - source.of("fisher")
    return {case: sum(gained[case] > 0) for case in cases}


def at_parent(source: Source, iterations: int) -> pd.DataFrame:
    """Number of seeds that end within `NEAR` of a parent, and of these, at the better one."""
    place = source.cogram(iterations=iterations, value="toward_a") - 0.5
    better = source.of("better", "toward_a") - 0.5
    counts = {}
    for case in CASES:
        near = place[case].abs() > 0.5 - NEAR
        counts[case] = sum(near), sum(near & (place[case] * better[case] > 0))
    return pd.DataFrame.from_dict(counts, orient="index", columns=["near", "better"])
