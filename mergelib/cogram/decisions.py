"""CoGraM's decisions: weights of candidates, refinement of parts, and acceptance of changes.

L_n is the loss with expert n's values in a part's place. For two experts the weight of A is α =
σ(-λ ΔL) with ΔL = L_A - L_B (Eq. 4); for more it is the softmax of -λ L_n (Lenz, CoGraM).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from mergelib.messages.brief import Brief
from mergelib.messages.kinds import NotNegative, Share, Size

if TYPE_CHECKING:
    import pandas as pd

LEVELS = ("layer", "neuron", "weight")
MERGE, UNCERTAIN, COARSE = "merge", "uncertain", "coarse"
ROUNDING = 1e-12  # smaller relative differences of losses are rounding errors

Losses = Callable[[Tensor], Tensor]  # of proposals ``(K, ...)`` for a part or parts, ``(K,)``
Part = tuple[str, int, int]  # level, unit, and weight, -1 for none


def mixing_weights(losses: Tensor, steepness: float, shrinkage: float = 0.0) -> Tensor:
    """Return the experts' weights ``(..., n)``, of sum 1, from losses ``(..., n)`` in nats (Eq. 4).

    ``steepness`` λ = 0 gives equal weights. ``shrinkage`` interpolates from Eq. 4 (0) to the plain
    mean (1), as the paper's outlook suggests.
    """
    weights = torch.softmax(-steepness * losses, dim=-1)
    if shrinkage:
        weights = torch.lerp(weights, torch.full_like(weights, 1 / losses.shape[-1]), shrinkage)
    return weights


def bar(before: float) -> float:
    """Return the loss that an accepted change must be below (Eq. 7)."""
    return before - ROUNDING * max(1.0, abs(before))


@dataclass(frozen=True, repr=False)
class CogramSettings(Brief):
    """Hyperparameters of `mergelib.cogram.refine.cogram`.

    Attributes:
        levels: some of ``"layer"``, ``"neuron"`` and ``"weight"``, in this order.
        thresholds: level to (τ_min, τ_max) in nats, by default (0, inf). A part with |ΔL| outside
            them is decided at the next level; at the last level all parts are merged.
        steepness: λ of Eq. 4, at least 0.
        shrinkage: 0..1, how far α is drawn towards the plain mean; see `mixing_weights`.
        order: ``"sequential"`` applies each change before the next decision. ``"simultaneous"``
            decides all units of a layer against the same M and applies them together, then the
            better half of them until the loss falls.
        iterations: passes over the network, at least 1.
        loss: averaged over each task, then over tasks.
        rollback: levels at which a change must lower the loss. The paper has none for layers.
        units: layer to rows ``(units, rows)``, int64, that are decided together; by default each
            row.
    """

    levels: Sequence[str] = ("layer",)
    thresholds: Mapping[str, tuple[float, float]] | None = None
    steepness: NotNegative = 5.5
    shrinkage: Share = 0.0
    order: Literal["sequential", "simultaneous"] = "sequential"
    iterations: Size = 1
    loss: Literal["cross_entropy", "mse"] = "cross_entropy"
    rollback: Sequence[str] = ("neuron", "weight")
    units: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        for name, levels in (("levels", self.levels), ("rollback", self.rollback)):
            in_order = [level for level in LEVELS if level in levels]
            if in_order != list(levels):
                raise ValueError(f"{name} is {levels!r}, expected some of {LEVELS} in this order")
        if not self.levels:
            raise ValueError(f"levels is empty, expected some of {LEVELS}")
        for level, ends in (self.thresholds or {}).items():
            if level not in LEVELS:
                raise ValueError(f"thresholds name the level {level!r}; there are: {LEVELS}")
            if len(ends) != 2 or not 0 <= ends[0] <= ends[1]:
                raise ValueError(f"thresholds of {level!r} are {ends}, expected 0 <= low <= high")

    def case(self, level: str, spread: float) -> str:
        """Return the paper's case for |ΔL|: uncertain, coarse, or merge (ends included)."""
        low, high = (self.thresholds or {}).get(level, (0.0, math.inf))
        if spread < low:
            return UNCERTAIN
        return COARSE if spread > high else MERGE

    def ceiling(self, level: str, before: float) -> float:
        """Return the loss that an accepted change at this level must be below."""
        return bar(before) if level in self.rollback else math.inf

    def weights(self, losses: Tensor) -> Tensor:
        """Return the `mixing_weights` for losses ``(..., n)``."""
        return mixing_weights(losses, self.steepness, self.shrinkage)


@dataclass
class Log:
    """Decides parts, and keeps all decisions; ``place`` is the iteration and layer of the next."""

    names: Sequence[str]
    settings: CogramSettings
    place: tuple[int, str] = (0, "")
    _rows: list[tuple[Any, ...]] = field(default_factory=list)

    def decide(
        self, part: Part, losses: Losses, proposals: Tensor, before: float, *, last: bool
    ) -> tuple[float, tuple[Tensor, Tensor] | None]:
        """Decide one part by proposals ``(n, ...)``, one with each expert's values.

        Returns:
            The loss with the mixture, NaN if it is decided at a finer level (never if ``last``);
            and if it is accepted, the experts' weights and the mixture.
        """
        values = losses(proposals)
        numbers = values.tolist()
        if not last and self.settings.case(part[0], max(numbers) - min(numbers)) != MERGE:
            self.add(part, numbers, before, math.nan, False)
            return math.nan, None
        weights = self.settings.weights(values)
        mixture = (weights @ proposals.flatten(1)).view(proposals.shape[1:])
        after = losses(mixture[None]).item()
        accepted = after < self.settings.ceiling(part[0], before)
        self.add(part, numbers, before, after, accepted)
        return after, (weights, mixture) if accepted else None

    def add(self, part: Part, losses: list[float], before: float, after: float, yes: bool) -> None:
        """Add a decision, with its losses by expert, and whether it is accepted."""
        self._rows.append((*self.place, *part, before, after, yes, *losses))

    def table(self) -> "pd.DataFrame":
        """Return all decisions, one per row."""
        import pandas as pd

        part = ["iteration", "layer", "level", "unit", "weight"]
        outcome = ["before", "after", "accepted"]
        losses, alphas = ([f"{what} {name}" for name in self.names] for what in ("loss", "alpha"))
        table = pd.DataFrame(self._rows, columns=[*part, *outcome, *losses])
        values = torch.tensor(table[losses].to_numpy(float))
        table[alphas] = self.settings.weights(values).numpy()
        table["spread"] = (values.amax(1) - values.amin(1)).numpy()
        table["case"] = [
            self.settings.case(level, spread) if math.isnan(after) else MERGE
            for level, spread, after in zip(
                table["level"], table["spread"], table["after"], strict=True
            )
        ]
        return table[[*part, "case", "spread", *losses, *alphas, *outcome]]
