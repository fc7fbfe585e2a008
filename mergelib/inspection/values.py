"""Check that integers and ties agree between models."""

from collections.abc import Mapping, Set

import torch
from torch import Tensor

from mergelib.statedict import StateDict, layout_of

# Integers that may differ: they count or number something. Single numbers may, whatever they are.
COUNTERS = frozenset({"num_batches_tracked", "position_ids"})
_LEAVE_OUT = "; if they are none, leave them out with exclude="


def check_integers(
    models: Mapping[str, StateDict], keys: Set[str], aliases: Set[str], *, parts: bool
) -> None:
    """Raise ``ValueError`` for integers that differ between models, except counters.

    Integers are copied from the first model, which is right only for counters. No other tensor is
    read. With ``parts`` the message may suggest ``exclude=``.
    """
    (what, reference), *others = models.items()
    for key, kind in layout_of(reference).items():
        if key not in keys or key in aliases or kind.is_floating_point() or kind.is_complex():
            continue
        if key.rpartition(".")[2] in COUNTERS or kind.numel() < 2 or not others:
            continue
        expected = reference[key]
        for name, model in others:
            if not _same_bytes(expected, model[key]):
                raise ValueError(
                    f"{name}[{key!r}] differs from that of {what}, but {kind.dtype} "
                    "cannot be merged: if these are quantised weights, dequantise the models first"
                    + (_LEAVE_OUT if parts else "")
                )


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    """Whether tensors of one dtype hold the same bytes; some dtypes have no comparison."""
    raw = (t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(*raw)


def check_ties(
    models: Mapping[str, StateDict], ties: Mapping[str, Mapping[str, str]], merged: Set[str]
) -> None:
    """Raise ``ValueError`` for names that some models tie and others give two different tensors."""
    for name, ties_here in ties.items():
        for key, first in ties_here.items():
            if not {key, first} <= merged:
                continue
            for other, state in models.items():
                ties_there = ties[other]
                if ties_there.get(key, key) == ties_there.get(first, first) or not (
                    key in state and first in state
                ):
                    continue
                if not torch.equal(state[key], state[first]):
                    raise ValueError(
                        f"{name} ties {key!r} to {first!r}, but {other} holds two tensors there, "
                        f"one of which would be lost: give {name} a tensor of its own under each "
                        "name (a clone), and let the merged model's configuration not tie them "
                        "(tie_word_embeddings: false)"
                    )
