"""Interference of task vectors entry by entry, as chapters 02 and 03 measure it.

Task vectors τ_t = θ_t − θ_0 are the rows of a table, shape ``(T, n)``, with the sum Σ = Σ_t τ_t.
Rules that act entry by entry, up to a threshold, take such rows as if each were a model of one
tensor over a pretrained model of zeros.

Two steps from θ_0 are compared at equal *projection* a = ⟨step, Σ⟩ / ‖Σ‖², not at equal length: for
task arithmetic a is its scale λ, and a step at the cosine c from Σ is 1/c times as long. What is
perpendicular to Σ may repair something or be noise.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from mergebook.lab.comparison import accuracies
from mergebook.suites.types import Zoo
from mergelib.evaluation.loops import SplitName
from mergelib.merging import merge
from mergelib.statedict import StateDict, flatten, unflatten


def task_vectors(zoo: Zoo, start: StateDict | None = None) -> Tensor:
    """The ways from the pretrained model, or another, to the experts: rows, shape ``(T, n)``."""
    origin = flatten(zoo.pretrained if start is None else start)
    return torch.stack([flatten(expert) for expert in zoo.experts.values()]) - origin


def merge_rows(method: str, rows: Tensor, **hyperparameters: Any) -> Tensor:
    """The task vector, shape ``(n,)``, that a data-free rule makes of rows of task vectors."""
    experts = {f"expert {i}": {"all": row} for i, row in enumerate(rows)}
    zeros = {"all": torch.zeros_like(rows[0])}
    merged: Tensor = merge(method, experts, pretrained=zeros, **hyperparameters)["all"]
    return merged


def along(
    zoo: Zoo,
    directions: Mapping[str, Tensor],
    total: Tensor,
    projections: Sequence[float],
    *,
    split: SplitName = "validation",
) -> pd.DataFrame:
    """Accuracy (0..1) by task of steps from θ_0 in several directions, at equal projections."""
    origin = flatten(zoo.pretrained)

    def candidates() -> Iterator[tuple[tuple[str, float], dict[str, Tensor]]]:
        for key, vector in directions.items():
            unit = (total @ total) / (vector @ total) * vector
            for a in projections:
                yield (key, a), unflatten(origin + a * unit, zoo.pretrained)

    table = accuracies(zoo, candidates(), split, autocast=True)
    table.index = pd.MultiIndex.from_tuples(table.index, names=["direction", "projection"])
    return table
