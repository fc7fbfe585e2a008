"""The result of every procedure, and steps that several procedures share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from mergelib.inspection.kinds import Matrices
from mergelib.messages.brief import Brief
from mergelib.problems.problem import Problem
from mergelib.statedict import StateDict, tied_keys

if TYPE_CHECKING:
    import pandas as pd


def _empty() -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame()


@dataclass(frozen=True, repr=False)
class Adapted(Brief):
    """The result of a procedure.

    Attributes:
        state: the merged state dict.
        coefficients: one row per expert; AdaMerging has one column per tensor, soups have
            ``weight``.
        history: one row per step; each procedure describes its columns.
        heads: task to a new head, if the procedure makes any.
        ranks: one row per expert and one column per matrix, of AdaRank.
    """

    state: dict[str, Tensor]
    coefficients: "pd.DataFrame" = field(default_factory=_empty)
    history: "pd.DataFrame" = field(default_factory=_empty)
    heads: Mapping[str, nn.Module] = field(default_factory=dict)
    ranks: "pd.DataFrame" = field(default_factory=_empty)


def complete(merged: Mapping[str, Tensor], pretrained: StateDict) -> dict[str, Tensor]:
    """Return merged tensors with counters copied and ties kept, in the pretrained model's order."""
    aliases = tied_keys(pretrained)
    state: dict[str, Tensor] = {}
    for key, tensor in pretrained.items():
        if key in aliases:
            state[key] = state[aliases[key]]
        else:
            state[key] = merged[key] if key in merged else tensor.clone()
    return state


def tell_of_kept(problem: Problem, state: StateDict, method: str, fate: str) -> None:
    """Warn of tensors that may be made of matrices and are not taken for any, see `Matrices`."""
    if isinstance(problem.is_matrix, Matrices):
        for key, tensor in state.items():
            problem.is_matrix.note(key, tensor)
        problem.is_matrix.tell(method, fate)


def unlabelled(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of every task alone."""
    return {task: part[0] if isinstance(part, tuple) else part for task, part in data.items()}
