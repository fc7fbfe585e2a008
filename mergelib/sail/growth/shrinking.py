"""A narrower network that does what a wider one does on given inputs: `shrink`.

SAIL speaks of sources larger than the target and does not say how they get there. The maps are
those of growing, W̃ = E_out W R_inᵀ, with fewer rows than columns: what writes a group of hidden
units is multiplied by E, what reads it by R, and Rᵀ E h should be near h for the activations h
that there are.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mergelib.activations import layer_inputs
from mergelib.io import Model, as_state
from mergelib.merging import tied_keys
from mergelib.problems.calling import evaluating, tied_names
from mergelib.problems.checks import check_finite
from mergelib.sail.growth.depth import origins
from mergelib.sail.growth.growing import group_sizes
from mergelib.sail.growth.width import Use, Widening
from mergelib.statedict import StateDict
from mergelib.structure import Structure, structure_of

Maps = dict[tuple[str, Use], Tensor]


@torch.no_grad()
def shrink(
    source: nn.Module,
    target: nn.Module,
    inputs: Tensor | Mapping[str, Tensor],
    *,
    state: Model | None = None,
) -> dict[str, Tensor]:
    """Weights for a network with fewer hidden units, made of those of a wider one.

    Where a group has one writer and one reader and nothing stands between, units may be mixed:
    E = R holds the leading principal directions of the activations (not centred, as a map has no
    offset), and no other E and R leave less of them out. Elsewhere something acts on each unit
    alone, which does not commute with rotations. There E selects units, by QR with pivots on what
    the readers are given, and R gives the least-squares estimate of all units from these. Nothing
    is lost if the activations have no higher rank than the target has units. Groups are treated one
    by one.

    Args:
        source: the wider network, run in evaluation mode.
        target: the narrower one, of as many layers; only its shapes are looked at.
        inputs: a batch of what the source takes, with more positions than units.
        state: the wider network's weights; by default its own.

    Returns:
        A state dict of the target's keys and ties, in the source's dtypes.

    Raises:
        ValueError: for networks that differ in more than the number of hidden units; a group that
            is wider in the target, has a norm across its units, belongs to a residual stream, to
            heads or to the output, or is read by other than linear layers; what `grow` refuses
            about weights; activations that are not finite. The message names group or key.
    """
    before, after = structure_of(source), structure_of(target)
    weights, fresh = as_state(source if state is None else state), target.state_dict()
    before.check(weights, "state")
    sizes = group_sizes(before, after, origins(weights, fresh, {}))
    ties = tied_names(source)
    own = {key: value for key, value in weights.items() if ties.get(key) not in weights}
    with evaluating(source):
        seen = layer_inputs(source, inputs, own)
    maps: Maps = {}
    for name, group in after.groups.items():
        if group.size != sizes[name]:
            rows = _activations(after, name, sizes[name], seen)
            linear = _handed_on(after, name, rows, weights, seen)
            write, read = (_mixed if linear else _selected)(rows, group.size)
            maps[name, "write"], maps[name, "read"] = write, read
    narrowing = Widening(after, sizes, "replicate").replaced(maps)
    ties = tied_keys(fresh)
    shrunk: dict[str, Tensor] = {}
    for key, start in fresh.items():
        if key in ties:
            shrunk[key] = shrunk[ties[key]]
        elif start.is_floating_point():
            kind = weights[key].dtype
            shrunk[key] = narrowing.apply(key, weights[key]).to(kind, copy=True).contiguous()
        else:
            shrunk[key] = weights[key].clone()
    return shrunk


def _activations(
    structure: Structure, name: str, before: int, seen: Mapping[str, Tensor]
) -> Tensor:
    """What the readers of a group are given, ``(count, units)``, float64 on the CPU."""
    group = structure.groups[name]
    if group.size > before:
        raise ValueError(
            f"{name!r} has {group.size} units in the target, more than the source's {before}"
        )
    if group.kind != "units" or not group.permutable or group.norm != "none":
        raise ValueError(f"{name!r} is no group of hidden units alone: only those can be shrunk")
    for member in structure.members(name):
        axis = structure.axes[member.key][member.axis]
        if member.role == "read" and (member.key not in seen or axis.layout != ((name,),)):
            raise ValueError(f"{member.key!r} reads {name!r}, and is no linear layer on it alone")
    keys = [member.key for member in structure.members(name) if member.role == "read"]
    rows = torch.cat([seen[key] for key in keys]).double().cpu()
    check_finite(f"what {keys[0]!r} is given", rows)
    return rows


def _handed_on(
    structure: Structure, name: str, rows: Tensor, weights: StateDict, seen: Mapping[str, Tensor]
) -> bool:
    """Whether readers are given what the group's one writer, a linear layer, writes."""
    members = structure.members(name)
    writers = [m for m in members if m.role == "write" and len(structure.axes[m.key]) > 1]
    if {member.role for member in members} != {"write", "read"} or len(writers) != 1:
        return False
    key = writers[0].key
    if key not in seen:
        return False
    matrix = weights[key].movedim(writers[0].axis, 1)
    written = seen[key].double().cpu() @ matrix.double().cpu()
    bias = weights.get(f"{key.removesuffix('weight')}bias")
    written = written if bias is None else written + bias.double().cpu()
    return written.shape == rows.shape and torch.allclose(written, rows, rtol=1e-3, atol=1e-5)


def _mixed(rows: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """E and R that keep the leading principal directions, both (size, units)."""
    leading = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -size:].flip(1).T
    return leading, leading


def _selected(rows: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """E that selects units and R that estimates all from these, both (size, units)."""
    from scipy.linalg import qr

    triangle = torch.linalg.qr(rows).R
    _, order = qr(triangle.numpy(), mode="r", pivoting=True)
    kept = torch.as_tensor(order[:size].copy()).long().sort().values
    read = torch.linalg.lstsq(triangle[:, kept], triangle, driver="gelsd").solution
    return torch.eye(rows.shape[1], dtype=rows.dtype)[kept], read
