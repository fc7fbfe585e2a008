"""What all procedures share: their result, and the checks of what they are given."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mergelib.merging import tied_keys
from mergelib.messages.brief import Brief
from mergelib.problems.calling import Transform, Transforms
from mergelib.problems.checks import check_tasks
from mergelib.problems.examples import Examples
from mergelib.rules.arithmetic import average
from mergelib.statedict import StateDict

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Adapted",
    "Labelled",
    "Transform",
    "Transforms",
    "averaged",
    "check_tasks",
    "complete",
    "labelled",
    "precise",
    "unlabelled",
]

Labelled = tuple[Tensor | Examples, Tensor]


def _empty() -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame()


@dataclass(frozen=True, repr=False)
class Adapted(Brief):
    """What a procedure gives back.

    Attributes:
        state: the merged state dict.
        coefficients: one row per expert; for AdaMerging one column per tensor of the state dict,
            for soups the column ``weight``. Empty where a procedure has none.
        history: one row per step, as each procedure describes it.
        heads: task to a head that takes the place of the given one, where a procedure makes some.
    """

    state: dict[str, Tensor]
    coefficients: "pd.DataFrame" = field(default_factory=_empty)
    history: "pd.DataFrame" = field(default_factory=_empty)
    heads: Mapping[str, nn.Module] = field(default_factory=dict)


def complete(merged: Mapping[str, Tensor], pretrained: StateDict) -> dict[str, Tensor]:
    """Merged tensors with counters copied and ties kept, in the order of the pretrained model."""
    aliases = tied_keys(pretrained)
    state: dict[str, Tensor] = {}
    for key, tensor in pretrained.items():
        if key in aliases:
            state[key] = state[aliases[key]]
        else:
            state[key] = merged[key] if key in merged else tensor.clone()
    return state


def averaged(
    experts: Mapping[str, StateDict], pretrained: StateDict, done: Collection[str]
) -> dict[str, Tensor]:
    """The plain average of every floating tensor that a procedure has not ``done``."""
    return {
        key: average([expert[key].float() for expert in experts.values()]).to(tensor.dtype)
        for key, tensor in pretrained.items()
        if key not in done and tensor.is_floating_point()
    }


def labelled(data: Mapping[str, object], method: str) -> dict[str, Labelled]:
    """Data of a method that needs labels, checked: task to inputs and labels, of one length.

    Raises:
        ValueError: inputs without labels, or not one for each; it names the task.
    """
    checked = {}
    for task, part in data.items():
        if not (isinstance(part, tuple) and len(part) == 2):
            raise ValueError(f"{method} needs labels: pass (inputs, labels) for task {task!r}")
        inputs, labels = part
        if len(inputs) != len(labels):
            raise ValueError(f"task {task!r} has {len(inputs)} inputs and {len(labels)} labels")
        if not len(inputs):
            raise ValueError(f"task {task!r} has no inputs")
        checked[task] = (inputs, labels)
    return checked


def unlabelled(data: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of every task alone, where data come as pairs with labels or without."""
    return {task: part[0] if isinstance(part, tuple) else part for task, part in data.items()}


def precise(tensor: Tensor) -> Tensor:
    """The tensor in float32 at least, to compute with."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
