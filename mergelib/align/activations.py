"""Activation matching: pair the units of two networks by their activations on the same inputs.

Every unit of A is correlated with every unit of B (Li et al., 2016), and one assignment problem per
group maximises the sum of correlations (Ainsworth et al., 2023, section 3.1). Reordering one layer
does not change other units' activations, so the groups are independent.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mergelib.activations import hooked, transposed_linear
from mergelib.align.assignment import Pairs, parts_of, solve
from mergelib.align.matching import Alignment, check_state
from mergelib.align.permutations import permute, permute_tensor
from mergelib.problems.calling import evaluating, run_with
from mergelib.statedict import StateDict, weight_key
from mergelib.structure import Structure, structure_of

_CONVOLUTIONS = tuple(
    getattr(nn, f"Conv{kind}{n}d") for kind in ("", "Transpose") for n in (1, 2, 3)
)
_LAYERS = (nn.Linear, nn.Embedding, *_CONVOLUTIONS)
# Those whose output units lie along the second axis of the weight.
_TRANSPOSED = (nn.Embedding, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@torch.no_grad()
def activation_matching(
    a: StateDict, b: StateDict, model: nn.Module, inputs: Tensor | Mapping[str, Tensor]
) -> Alignment:
    """Reorder the units of B to correlate best with those of A.

    Activations are outputs of linear layers, convolutions and embeddings, standardised per unit
    over inputs and positions. The model runs in evaluation mode and stays as it is; ``inputs`` is a
    batch as in `mergelib.activations.layer_inputs`, and a few hundred examples suffice.

    Returns:
        An `Alignment`, with the mean correlation of paired units before and after as its objective.

    Raises:
        ValueError: a state dict does not fit the model or is not finite, or no visible layer writes
            a group. The message names the key or group.
    """
    structure = structure_of(model)
    for name, state in (("a", a), ("b", b)):
        check_state(state, structure, name)
    outputs_a, outputs_b = (_activations(model, state, inputs) for state in (a, b))
    axes = {site: structure.axes[site[0]][site[1]] for site in outputs_a}
    pairs = [(axis, outputs_a[site], outputs_b[site]) for site, axis in axes.items()]
    permutations: dict[str, Tensor] = {}
    for group in structure.permutable():
        if structure.groups[group].within is None:
            if not any(group in factors for axis in axes.values() for factors in axis.layout):
                raise ValueError(
                    f"no linear layer, convolution or embedding writes the group {group!r}"
                )
            permutations |= solve(structure, group, pairs)
    moved = [(x, a, permute_tensor(b, (x,), structure, permutations)) for x, a, b in pairs]
    objective = tuple(_agreement(structure, paired) for paired in (pairs, moved))
    return Alignment(permute(b, structure, permutations), permutations, objective, converged=True)


def _activations(
    model: nn.Module, state: StateDict, inputs: Tensor | Mapping[str, Tensor]
) -> dict[tuple[str, int], Tensor]:
    """Return standardised outputs ``(units, inputs · positions)`` by weight key and unit axis."""
    outputs: dict[tuple[str, int], list[Tensor]] = {}

    def keep(name: str, module: nn.Module, _inputs: Any, output: Tensor) -> None:
        if isinstance(module, _LAYERS + transposed_linear()):
            axis = 1 if isinstance(module, _TRANSPOSED + transposed_linear()) else 0
            site = (weight_key(name), axis)
            units = output.detach().movedim(1 if isinstance(module, _CONVOLUTIONS) else -1, 0)
            outputs.setdefault(site, []).append(units.flatten(1))

    with evaluating(model), hooked(model, after=keep):
        run_with(model, state, inputs)
    return {site: _standardised(torch.cat(rows, 1)) for site, rows in outputs.items()}


def _standardised(rows: Tensor) -> Tensor:
    """Return rows of mean 0 and norm 1; constant rows become 0."""
    rows = rows.double()
    centred = rows - rows.mean(1, keepdim=True)
    norms = centred.norm(dim=1, keepdim=True)
    varies = norms > 1e-6 * rows.norm(dim=1, keepdim=True)
    return torch.where(varies, centred / norms.clamp(min=1e-300), 0.0)


def _agreement(structure: Structure, pairs: Pairs) -> float:
    """Return the mean correlation of permutable units that vary."""
    correlations = [torch.zeros(0)]
    for factors, x, y in parts_of(structure, pairs):
        if any(structure.groups[name].permutable for name in factors):
            correlations.append((x * y).sum(1)[x.any(1) | y.any(1)].cpu())
    return float(torch.cat(correlations).mean())
