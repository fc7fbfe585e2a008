"""Interference of task vectors τ_t = θ_t − θ_0 entry by entry: rows of a table, ``(T, n)``."""

from typing import Any

import torch
from torch import Tensor

from mergebook.suites.types import Zoo
from mergelib.merging import merge
from mergelib.statedict import flatten


def task_vectors(zoo: Zoo) -> Tensor:
    """Return the experts less the pretrained model, one row each, shape ``(T, n)``."""
    experts = torch.stack([flatten(expert) for expert in zoo.experts.values()])
    return experts - flatten(zoo.pretrained)


def merge_rows(method: str, rows: Tensor, **hyperparameters: Any) -> Tensor:
    """The task vector, shape ``(n,)``, that a data-free rule makes of rows of task vectors."""
    experts = {f"expert {i}": {"all": row} for i, row in enumerate(rows)}
    zeros = {"all": torch.zeros_like(rows[0])}
    return merge(method, experts, pretrained=zeros, **hyperparameters)["all"]
