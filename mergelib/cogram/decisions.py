"""CoGraM's decisions: how candidates are weighed, when a part is refined, when a change stays.

For one part of the network (a layer, a neuron, a weight), L_n is the loss with expert n's values in
its place. With two experts A and B the weight of A is Eq. 4, α = σ(-λ ΔL) with ΔL = L_A - L_B; with
more it is the softmax of -λ L_n, of which Eq. 4 is the case of two (Lenz, CoGraM). The log holds a
row a decision.
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
ROUNDING = 1e-12  # a smaller difference of losses, relative to them, is no difference

Thresholds = Mapping[str, tuple[float, float]]


def mixing_weights(losses: Tensor, steepness: float, shrinkage: float = 0.0) -> Tensor:
    """Weights of the experts, ``(..., n)`` and summing to 1, from their losses (Eq. 4).

    Args:
        losses: L_n in nats, shape ``(..., n)``.
        steepness: λ; 0 weighs all alike, a large one takes the best.
        shrinkage: from 0, Eq. 4, to 1, the plain mean. It keeps a much worse expert from being left
            out altogether, for which the paper's outlook asks.
    """
    weights = torch.softmax(-steepness * losses, dim=-1)
    if shrinkage:
        weights = torch.lerp(weights, torch.full_like(weights, 1 / losses.shape[-1]), shrinkage)
    return weights


def case(spread: float, low: float, high: float) -> str:
    """What to do at a spread |ΔL| of losses (the paper's cases 1 to 3).

    ``"uncertain"`` below ``low`` and ``"coarse"`` above ``high`` ask for a finer level; between
    them, ends included, the part is merged as it is.
    """
    if spread < low:
        return UNCERTAIN
    return COARSE if spread > high else MERGE


def bar(before: float) -> float:
    """The loss that a change must stay below to be kept (Eq. 7): ``before``, less rounding."""
    return before - ROUNDING * max(1.0, abs(before))


@dataclass(frozen=True)
class Rules:
    """What decides at every level; see `mergelib.cogram.refine.CogramSettings`.

    Raises:
        ValueError: levels out of order, thresholds or numbers out of range.
    """

    levels: Sequence[str]
    thresholds: Thresholds
    steepness: float
    shrinkage: float
    rollback: Sequence[str]

    def __post_init__(self) -> None:
        for name, chosen in (("levels", self.levels), ("rollback", self.rollback)):
            known = [level for level in LEVELS if level in chosen]
            if isinstance(chosen, str) or known != list(chosen):
                raise ValueError(f"{name} is {chosen!r}, expected some of {LEVELS} in this order")
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
        """Whether a part with these losses is merged, and not left to a finer level."""
        return case(max(losses) - min(losses), *self._ends(level)) == MERGE

    def judge(self, level: str, losses: Tensor, *, last: bool) -> "Judgement":
        """What K parts come to, from the losses ``(K, n)`` with each expert's values in them.

        At the last level everything merges, as nothing finer follows.
        """
        spreads = losses.amax(1) - losses.amin(1)
        cases = [MERGE] * len(spreads)
        if not last:
            cases = [case(spread, *self._ends(level)) for spread in spreads.tolist()]
        weights = mixing_weights(losses, self.steepness, self.shrinkage)
        return Judgement(losses, spreads, cases, weights, torch.full_like(spreads, float("nan")))

    def _ends(self, level: str) -> tuple[float, float]:
        """The thresholds of a level."""
        return self.thresholds.get(level, (0.0, INFINITY))

    def ceiling(self, level: str, before: float) -> float:
        """The loss that a change at this level must stay below."""
        return bar(before) if level in self.rollback else INFINITY


@dataclass(repr=False)
class Judgement(Brief):
    """What K parts come to.

    Attributes:
        losses: with each expert's values in the part's place, ``(K, n)``.
        spreads: |ΔL| of each, ``(K,)``.
        cases: of each.
        weights: of the experts in the mixture, ``(K, n)``.
        after: loss with the mixture in place, ``(K,)``; NaN where left to a finer level.
    """

    losses: Tensor
    spreads: Tensor
    cases: list[str]
    weights: Tensor
    after: Tensor

    @property
    def merging(self) -> list[int]:
        """The parts that merge."""
        return [i for i, outcome in enumerate(self.cases) if outcome == MERGE]

    @classmethod
    def join(cls, parts: Sequence["Judgement"]) -> "Judgement":
        """Several as one."""
        tensors = ("losses", "spreads", "weights", "after")
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in tensors}
        return cls(cases=[outcome for part in parts for outcome in part.cases], **joined)


@dataclass
class Log:
    """Decisions in blocks of columns, one table at the end.

    Attributes:
        names: of the experts.
        place: the columns that all of the coming blocks share, iteration and layer.
    """

    names: Sequence[str]
    place: dict[str, Any] = field(default_factory=dict)
    _blocks: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, level: str, units: Any, weights: Any, judged: Judgement, before: Any, accepted: Any
    ) -> None:
        """A block of decisions: each argument has a value for each of them, or one for all."""
        block = {**self.place, "level": level, "unit": units, "weight": weights}
        block |= {"case": judged.cases, "spread": judged.spreads.tolist()}
        for what, values in (("loss", judged.losses), ("alpha", judged.weights)):
            for name, column in zip(self.names, values.T.tolist(), strict=True):
                block[f"{what} {name}"] = column
        self._blocks.append(
            {**block, "before": before, "after": judged.after.tolist(), "accepted": accepted}
        )

    def table(self) -> "pd.DataFrame":
        """All decisions, one per row."""
        import pandas as pd

        columns: dict[str, list[Any]] = {}
        for block in self._blocks:
            length = len(block["case"])
            for name, values in block.items():
                several = isinstance(values, Sequence) and not isinstance(values, str)
                columns.setdefault(name, []).extend(values if several else [values] * length)
        return pd.DataFrame(columns)
