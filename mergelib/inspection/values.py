"""What must agree between models beyond keys, shapes and dtypes: integers, and ties."""

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
    """Refuse integers and booleans that differ between models, as they cannot be merged.

    They were copied from the first model, as counters are: right for counters alone. Only these
    tensors are read.

    Args:
        models: by name; the first one is what the others are compared with.
        keys: those that are merged.
        aliases: those of them that are further names of others.
        parts: whether the caller has an ``exclude=`` to speak of.

    Raises:
        ValueError: naming model and key.
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
                    f"{name}[{key!r}] holds other values than that of {what}, but {kind.dtype} "
                    "cannot be merged: if these are quantised weights, dequantise the models first"
                    + (_LEAVE_OUT if parts else "")
                )


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    """Whether tensors of one dtype are equal, also in dtypes that PyTorch cannot compare."""
    raw = (t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(*raw)


def check_ties(
    models: Mapping[str, StateDict], ties: Mapping[str, Mapping[str, str]], merged: Set[str]
) -> None:
    """Refuse models of which some tie two names and others hold two tensors under them.

    Args:
        models: by name.
        ties: model to its further names, each with the first.
        merged: the keys that are merged.

    Raises:
        ValueError: naming models and keys, and what to do.
    """
    for name, own in ties.items():
        for key, first in own.items():
            if not {key, first} <= merged:
                continue
            for other, state in models.items():
                known = ties[other]
                if known.get(key, key) == known.get(first, first) or not (
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
