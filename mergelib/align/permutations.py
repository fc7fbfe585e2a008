"""Permutations of a network's units.

A permutation lists the old index of each new place, ``new = old[p]``. For the dimensions inside
heads it has one row per (new) head.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from mergelib.statedict import StateDict, tied_keys
from mergelib.structure import Axis, Structure

Permutations = Mapping[str, Tensor]


@torch.no_grad()
def permute(
    state: StateDict, structure: Structure, permutations: Permutations
) -> dict[str, Tensor]:
    """Return a state dict with reordered units, which computes the same function.

    Permutations map a group to int64 ``(size,)``, or ``(heads, size)`` for dimensions inside heads;
    other groups stay as they are. Running statistics move with their channels. A state dict or
    permutation that does not fit is a ``ValueError`` that names the key or group.
    """
    structure.check(state, "state")
    check_permutations(structure, permutations)
    aliases = tied_keys(state)
    permuted: dict[str, Tensor] = {}
    for key, tensor in state.items():
        if key in aliases:
            permuted[key] = permuted[aliases[key]]
        else:
            axes = structure.axes.get(key, ())
            moved = permute_tensor(tensor, axes, structure, permutations)
            permuted[key] = moved.clone() if moved is tensor else moved
    return permuted


def permute_tensor(
    tensor: Tensor, axes: tuple[Axis, ...], structure: Structure, permutations: Permutations
) -> Tensor:
    """Return one parameter with its axes reordered, or the parameter itself if nothing moves."""
    for number, axis in enumerate(axes):
        if any(name in permutations for factors in axis.layout for name in factors):
            order = _order(axis, structure, permutations)
            tensor = tensor.index_select(number, order.to(tensor.device))
    return tensor


def _order(axis: Axis, structure: Structure, permutations: Permutations) -> Tensor:
    """Return the old index of each place of an axis."""
    parts: list[Tensor] = []
    start = 0
    for factors, length in structure.part_sizes(axis):
        order = torch.zeros((), dtype=torch.long)
        for name in factors:
            size = structure.groups[name].size
            table = permutations.get(name, torch.arange(size)).cpu()
            order = order[..., None] * size + table  # a table of heads meets the heads before it
        parts.append(start + order.reshape(-1))
        start += length
    return torch.cat(parts)


def check_permutations(structure: Structure, permutations: Permutations) -> None:
    """Raise ``ValueError`` for the first invalid permutation."""
    for name, permutation in permutations.items():
        group = structure.group(name)
        if not group.permutable:
            raise ValueError(
                f"group {name!r} may not be permuted because it is "
                + ("fixed" if group.kind == "fixed" else "visible in the model's output")
            )
        shape = table_shape(structure, name)
        if permutation.shape != shape or permutation.dtype != torch.long:
            raise ValueError(
                f"the permutation of {name!r} is {permutation.dtype} of shape "
                f"{tuple(permutation.shape)}, expected torch.int64 of shape {shape}"
            )
        if not (permutation.cpu().sort(-1).values == torch.arange(group.size)).all():
            raise ValueError(f"the table for {name!r} is not a permutation of {group.size} indices")


def table_shape(structure: Structure, name: str) -> tuple[int, ...]:
    """Return the shape of a group's permutation."""
    group = structure.groups[name]
    if group.within is None:
        return (group.size,)
    return structure.groups[group.within].size, group.size


def identity(structure: Structure) -> dict[str, Tensor]:
    """Return identity permutations of all permutable groups."""
    shapes = {name: table_shape(structure, name) for name in structure.permutable()}
    return {name: torch.arange(s[-1]).expand(s).contiguous() for name, s in shapes.items()}


def random_permutations(structure: Structure, *, seed: int = 0) -> dict[str, Tensor]:
    """Return uniformly random permutations of all permutable groups."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(table_shape(structure, name), generator=generator).argsort(-1)
        for name in structure.permutable()
    }
