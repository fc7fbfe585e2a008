"""CoGraM's decisions: weights of candidates, refinement of parts, and acceptance of changes.

L_n is the loss with expert n's values in a part's place. For two experts the weight of A is α =
σ(-λ ΔL) with ΔL = L_A - L_B (Eq. 4); for more it is the softmax of -λ L_n (Lenz, CoGraM).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mergelib.messages.brief import Brief

if TYPE_CHECKING:
    import pandas as pd

LEVELS = ("layer", "neuron", "weight")
MERGE, UNCERTAIN, COARSE = "merge", "uncertain", "coarse"
INFINITY = float("inf")
ROUNDING = 1e-12  # smaller relative differences of losses are rounding errors

Thresholds = Mapping[str, tuple[float, float]]


def mixing_weights(losses: Tensor, steepness: float, shrinkage: float = 0.0) -> Tensor:
    """Return the experts' weights ``(..., n)``, of sum 1, from losses ``(..., n)`` in nats (Eq. 4).

    ``steepness`` λ = 0 gives equal weights. ``shrinkage`` interpolates from Eq. 4 (0) to the plain
    mean (1), as the paper's outlook suggests.
    """
    weights = torch.softmax(-steepness * losses, dim=-1)
    if shrinkage:
        weights = torch.lerp(weights, torch.full_like(weights, 1 / losses.shape[-1]), shrinkage)
    return weights


def case(spread: float, low: float, high: float) -> str:
    """Return the paper's case for a spread |ΔL|: uncertain, coarse, or merge (ends included)."""
    if spread < low:
        return UNCERTAIN
    return COARSE if spread > high else MERGE


def bar(before: float) -> float:
    """Return the loss that an accepted change must be below (Eq. 7)."""
    return before - ROUNDING * max(1.0, abs(before))


@dataclass(frozen=True)
class Rules:
    """The rules of decision; see `mergelib.cogram.refine.CogramSettings`."""

    levels: Sequence[str]
    thresholds: Thresholds
    steepness: float
    shrinkage: float
    rollback: Sequence[str]

    def __post_init__(self) -> None:
        for name, levels in (("levels", self.levels), ("rollback", self.rollback)):
            in_order = [level for level in LEVELS if level in levels]
            if isinstance(levels, str) or in_order != list(levels):
                raise ValueError(f"{name} is {levels!r}, expected some of {LEVELS} in this order")
        if not self.levels:
            raise ValueError(f"levels is empty, expected some of {LEVELS}")
        for level, ends in self.thresholds.items():
            if level not in LEVELS:
                raise ValueError(f"thresholds name the level {level!r}; there are: {LEVELS}")
            if len(ends) != 2 or not 0 <= ends[0] <= ends[1]:
                raise ValueError(f"thresholds of {level!r} are {ends}, expected 0 <= low <= high")
        if not 0 <= self.steepness < INFINITY:
            raise ValueError(f"steepness is {self.steepness}, expected a number of at least 0")
        if not 0 <= self.shrinkage <= 1:
            raise ValueError(f"shrinkage is {self.shrinkage}, expected 0 to 1")

    def merges(self, level: str, losses: Sequence[float]) -> bool:
        """Whether a part with these losses is merged at this level."""
        return case(max(losses) - min(losses), *self._ends(level)) == MERGE

    def judge(self, level: str, losses: Tensor, *, last: bool) -> "Judgement":
        """Return the judgement of K parts from losses ``(K, n)``; at the last level all merge."""
        spreads = losses.amax(1) - losses.amin(1)
        cases = [MERGE] * len(spreads)
        if not last:
            cases = [case(spread, *self._ends(level)) for spread in spreads.tolist()]
        weights = mixing_weights(losses, self.steepness, self.shrinkage)
        return Judgement(losses, spreads, cases, weights, torch.full_like(spreads, float("nan")))

    def _ends(self, level: str) -> tuple[float, float]:
        return self.thresholds.get(level, (0.0, INFINITY))

    def ceiling(self, level: str, before: float) -> float:
        """Return the loss that an accepted change at this level must be below."""
        return bar(before) if level in self.rollback else INFINITY


@dataclass(repr=False)
class Judgement(Brief):
    """Decisions on K parts."""

    losses: Tensor  # with each expert's values, ``(K, n)``
    spreads: Tensor  # |ΔL|, ``(K,)``
    cases: list[str]
    weights: Tensor  # of the experts in the mixture, ``(K, n)``
    after: Tensor  # loss with the mixture, ``(K,)``; NaN if decided at a finer level

    @property
    def merging(self) -> list[int]:
        """Indices of the parts that merge."""
        return [i for i, outcome in enumerate(self.cases) if outcome == MERGE]

    @classmethod
    def join(cls, parts: Sequence["Judgement"]) -> "Judgement":
        """Return several judgements as one."""
        tensors = ("losses", "spreads", "weights", "after")
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in tensors}
        return cls(cases=[outcome for part in parts for outcome in part.cases], **joined)


@dataclass
class Log:
    """Blocks of decisions; ``place`` holds the columns that the next blocks share."""

    names: Sequence[str]
    place: dict[str, Any] = field(default_factory=dict)
    _blocks: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, level: str, units: Any, weights: Any, judgement: Judgement, before: Any, accepted: Any
    ) -> None:
        """Add a block; each argument has one value per decision or one for all."""
        block = {**self.place, "level": level, "unit": units, "weight": weights}
        block |= {"case": judgement.cases, "spread": judgement.spreads.tolist()}
        for what, values in (("loss", judgement.losses), ("alpha", judgement.weights)):
            for name, column in zip(self.names, values.T.tolist(), strict=True):
                block[f"{what} {name}"] = column
        self._blocks.append(
            {**block, "before": before, "after": judgement.after.tolist(), "accepted": accepted}
        )

    def table(self) -> "pd.DataFrame":
        """Return all decisions, one per row."""
        import pandas as pd

        columns: dict[str, list[Any]] = {}
        for block in self._blocks:
            length = len(block["case"])
            for name, values in block.items():
                several = isinstance(values, Sequence) and not isinstance(values, str)
                columns.setdefault(name, []).extend(values if several else [values] * length)
        return pd.DataFrame(columns)
