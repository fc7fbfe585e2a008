"""Make a smaller network that computes nearly what a larger one does on given inputs: `shrink`.

SAIL's appendix I implies sources larger than the target but does not say how to transform them. The
maps are those of growing, W̃ = E_out W R_inᵀ, with fewer rows than columns: parameters that write a
group are multiplied by E, parameters that read it by R, and Rᵀ E h must be close to h for the
observed activations h. A convolution uses the same R at every position of its kernel, which keeps
zero padding. Eq. 9 selects among the layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from mergelib.activations import layer_inputs
from mergelib.io import Model
from mergelib.messages.extras import needs
from mergelib.problems.calling import evaluating
from mergelib.problems.checks import check_finite
from mergelib.sail.growth.depth import kept_lists
from mergelib.sail.growth.growing import FIXED, Plan, check_sizes, plan_of
from mergelib.sail.growth.width import Use

_REASONS = {
    **FIXED,
    "stream": "a residual stream, which all of its blocks write and read",
    "heads": "a number of attention heads",
    "head": "a dimension of attention heads",
}


@torch.no_grad()
def shrink(
    source: nn.Module,
    target: nn.Module,
    inputs: Tensor | Mapping[str, Tensor],
    *,
    state: Model | None = None,
    layers: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Tensor]:
    """Return weights for a network with fewer hidden units, channels and layers.

    If a group has one writer and one reader, both linear, with nothing between them, E = R holds
    the leading principal directions of the (uncentred) activations, which is the optimal pair. A
    batch norm or nonlinearity acts on each unit and does not commute with rotations. There E
    selects units by QR with pivoting on the readers' inputs, and R is the least-squares estimate of
    all units from them. Nothing is lost if the activations' rank is at most the target's width.
    Batch-norm statistics are the source's; `mergelib.recalibrate_batchnorm` re-estimates them.

    Shorter lists of layers keep some of the source's layers. This changes the function unless
    growing had added the layers that are removed.

    Args:
        source: the larger network, run in evaluation mode.
        target: the smaller network; only its shapes are used.
        inputs: a batch for the source, with more positions (of examples, texts, images) than units.
        state: the larger network's weights; by default its own.
        layers: by the path of a list of modules, the source layer that each target layer comes
            from, counted from 0. ``{"blocks": [0, 1]}`` undoes ``"stack"`` from two blocks; the
            default spreads them evenly, which undoes ``"interlace"``. A first layer of another
            shape stays in place.

    Returns:
        A state dict with the target's keys and ties, in the source's dtypes.

    Raises:
        ValueError: the networks differ in more than hidden units and layers, or something does not
            fit or is not finite. The message names the list, group or key.
    """
    plan = plan_of(source, target, state, kept_lists(source, target, layers or {}), "replicate")
    groups = plan.widening.structure.groups
    check_sizes(plan.widening, _REASONS, shrinking=True)
    with evaluating(source):
        inputs_of = layer_inputs(source, inputs, plan.weights, convolutions=True)
    maps: dict[tuple[str, Use], Tensor] = {}
    for name in filter(plan.widening.grows, groups):
        rows, size = _activations(plan, name, inputs_of), groups[name].size
        if _reads_directly(plan, name, rows, inputs_of):
            directions = torch.linalg.eigh(rows.T @ rows).eigenvectors  # ascending
            write = read = directions[:, -size:].flip(1).T
        else:
            write, read = _selected(rows, size)
        maps[name, "write"], maps[name, "read"] = write, read
    narrowing = replace(plan, widening=plan.widening.replaced(maps))
    return narrowing.state(narrowing.mapped)


def _activations(plan: Plan, name: str, inputs_of: Mapping[str, Tensor]) -> Tensor:
    """Return the inputs of a group's readers, ``(count, units)``, float64 on the CPU."""
    structure, sizes = plan.widening.structure, plan.widening.sizes
    parts = []
    for member in structure.members(name):
        if member.role not in ("read", "both"):
            continue
        key, layout = plan.origins[member.key][0][0], structure.axes[member.key][member.axis].layout
        others = {factor for factors in layout for factor in factors} - {name}
        alone = len(layout) == 1 and all(structure.groups[n].kind == "fixed" for n in others)
        if key not in inputs_of or not alone:
            raise ValueError(
                f"{member.key!r} reads {name!r}, but is not a linear layer or convolution that "
                "reads only this group"
            )
        places = inputs_of[key].unflatten(-1, [sizes[factor] for factor in layout[0]])
        rows = places.movedim(layout[0].index(name) - len(layout[0]), -1).flatten(0, -2)
        check_finite(f"the input of {key!r}", rows)
        parts.append(rows.double().cpu())
    return torch.cat(parts)


def _reads_directly(plan: Plan, name: str, rows: Tensor, inputs_of: Mapping[str, Tensor]) -> bool:
    """Whether the readers receive exactly what the group's one writer, a linear layer, returns."""
    structure = plan.widening.structure
    members = structure.members(name)
    writers = [m for m in members if m.role == "write" and len(structure.axes[m.key]) > 1]
    if {member.role for member in members} != {"write", "read"} or len(writers) != 1:
        return False
    key = plan.origins[writers[0].key][0][0]
    if key not in inputs_of or plan.weights[key].dim() != 2:
        return False
    matrix = plan.weights[key].movedim(writers[0].axis, 1)
    written = inputs_of[key].double().cpu() @ matrix.double().cpu()
    bias = plan.weights.get(f"{key.removesuffix('weight')}bias")
    written = written if bias is None else written + bias.double().cpu()
    return written.shape == rows.shape and torch.allclose(written, rows, rtol=1e-3, atol=1e-5)


def _selected(rows: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return E that selects units and R that estimates all units from them, both (size, units)."""
    with needs("align"):
        from scipy.linalg import qr

    triangle = torch.linalg.qr(rows).R
    _, order = qr(triangle.numpy(), mode="r", pivoting=True)
    units = torch.as_tensor(order[:size].copy()).long().sort().values
    read = torch.linalg.lstsq(triangle[:, units], triangle, driver="gelsd").solution
    return torch.eye(rows.shape[1], dtype=rows.dtype)[units], read.contiguous()
