"""Activation matching: pairing the units of two networks by what they do on the same inputs.

Two units play the same role if they are active on the same inputs, wherever in their layers they
lie. So run both networks on one batch, correlate every unit of A with every unit of B (Li et al.,
2016, "Convergent learning"), and pair them so that the sum of the correlations is as large as it
can be, one assignment problem per group of units (Ainsworth et al., 2023, section 3.1). Reordering
a layer does not change what other units compute, so the groups are solved independently of each
other, in one pass. Unlike weight matching it needs inputs, but no labels.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mergelib.activations import transposed_linear
from mergelib.align.assignment import Pairs, solve
from mergelib.align.matching import Alignment, check_state
from mergelib.align.permutations import permute, permute_tensor
from mergelib.problems.calling import evaluating
from mergelib.statedict import StateDict
from mergelib.structure import Structure, structure_of

_CONVOLUTIONS = tuple(
    getattr(nn, f"Conv{kind}{n}d") for kind in ("", "Transpose") for n in (1, 2, 3)
)
_LAYERS = (nn.Linear, nn.Embedding, *_CONVOLUTIONS)


@torch.no_grad()
def activation_matching(
    a: StateDict, b: StateDict, model: nn.Module, inputs: Tensor | Mapping[str, Tensor]
) -> Alignment:
    """Reorder the units of B to be active where A's are, as far as one assignment per group can.

    Activations are the outputs of linear layers, convolutions and embeddings, before the
    nonlinearity that follows; each unit is standardised over inputs and positions.

    Args:
        a: the reference, which stays.
        b: the weights to reorder, of the same structure.
        model: the model of both; it runs in evaluation mode and is left as it is.
        inputs: a batch of what it takes, as in `mergelib.activations.layer_inputs`; a few hundred
            will do.

    Returns:
        An `Alignment`; its objective is the mean correlation of paired units before and after.

    Raises:
        ValueError: if a state dict does not have the model's structure, or holds NaN or Inf (naming
            the key), or if none of those layers writes a group of units (naming the group).
    """
    structure = structure_of(model)
    for name, state in (("a", a), ("b", b)):
        check_state(state, structure, name)
    seen_a, seen_b = (_activations(model, state, inputs) for state in (a, b))
    axes = {site: structure.axes[site[0]][site[1]] for site in seen_a}
    pairs = [(axis, seen_a[site], seen_b[site]) for site, axis in axes.items()]
    permutations: dict[str, Tensor] = {}
    for group in structure.permutable():
        if structure.groups[group].within is None:
            if not any(group in factors for axis in axes.values() for factors in axis.layout):
                raise ValueError(f"no layer whose output can be seen writes the group {group!r}")
            permutations |= solve(structure, group, pairs)
    moved = [(x, a, permute_tensor(b, (x,), structure, permutations)) for x, a, b in pairs]
    objective = tuple(_agreement(structure, paired) for paired in (pairs, moved))
    return Alignment(permute(b, structure, permutations), permutations, objective, converged=True)


def _activations(
    model: nn.Module, state: StateDict, inputs: Tensor | Mapping[str, Tensor]
) -> dict[tuple[str, int], Tensor]:
    """What every layer writes, standardised, ``(units, inputs · positions)``.

    By the key of its weight and the axis of that which the units lie along.
    """
    seen: dict[tuple[str, int], list[Tensor]] = {}

    def watch(site: tuple[str, int], units: int) -> Callable[[nn.Module, object, Tensor], None]:
        def keep(_module: nn.Module, _given: object, output: Tensor) -> None:
            seen.setdefault(site, []).append(output.detach().movedim(units, 0).flatten(1))

        return keep

    handles = []
    for name, module in model.named_modules():
        if isinstance(module, _LAYERS + transposed_linear()):
            site = (f"{name}.weight" if name else "weight", _axis(module))
            channels = 1 if isinstance(module, _CONVOLUTIONS) else -1
            handles.append(module.register_forward_hook(watch(site, channels)))
    try:
        positional = (inputs,) if isinstance(inputs, Tensor) else ()
        named = {} if isinstance(inputs, Tensor) else dict(inputs)
        with evaluating(model):
            functional_call(model, dict(state), positional, named, tie_weights=False)
    finally:
        for handle in handles:
            handle.remove()
    return {site: _standardised(torch.cat(rows, 1)) for site, rows in seen.items()}


def _axis(module: nn.Module) -> int:
    """Along which axis of its weight the units lie that a layer writes."""
    behind = (nn.Embedding, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    return 1 if isinstance(module, behind + transposed_linear()) else 0


def _standardised(rows: Tensor) -> Tensor:
    """Rows of mean 0 and norm 1, whose inner products are correlations; constant ones become 0."""
    rows = rows.double()
    centred = rows - rows.mean(1, keepdim=True)
    norms = centred.norm(dim=1, keepdim=True)
    varies = norms > 1e-6 * rows.norm(dim=1, keepdim=True)
    return torch.where(varies, centred / norms.clamp(min=1e-300), 0.0)


def _agreement(structure: Structure, pairs: Pairs) -> float:
    """The mean correlation of units in the same place, of those that may be permuted and vary."""
    found = [torch.zeros(0)]
    for axis, a, b in pairs:
        start = 0
        for factors, size in structure.part_sizes(axis):
            x, y = a[start : start + size], b[start : start + size]
            if any(structure.groups[name].permutable for name in factors):
                found.append((x * y).sum(1)[x.any(1) | y.any(1)].cpu())
            start += size
    return float(torch.cat(found).mean())
