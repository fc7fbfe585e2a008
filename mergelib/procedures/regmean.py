"""RegMean: linear layers that come closest to every expert's outputs on its own inputs.

For a linear layer with weights W_t (out, in) and inputs X_t (rows), the merged weight minimises
Σ_t ‖X_t Wᵀ − X_t W_tᵀ‖² (Jin et al., 2023, Eq. 2). It needs no labels, only the Gram
matrices G_t = X_tᵀ X_t of the inputs that the layers of expert t get on task t.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mergelib.activations import layer_inputs
from mergelib.procedures.common import (
    Adapted,
    Transform,
    averaged,
    check_finite,
    check_tasks,
    complete,
    evaluating,
    unlabelled,
)
from mergelib.progress import progress
from mergelib.registry import procedure
from mergelib.statedict import Experts, StateDict, check_compatible, name_experts


@procedure(
    paper="jin2023dataless",
    data="model, unlabelled inputs of every task (a few hundred)",
)
def regmean(
    experts: Experts,
    pretrained: StateDict,
    *,
    model: nn.Module,
    data: Mapping[str, Any],
    off_diagonal: float = 0.9,
    ridge: float = 1e-6,
    batch_size: int = 100,
    transform: Transform | None = None,
) -> Adapted:
    """RegMean: (Σ W_t G_t) (Σ G_t)⁻¹ in every linear layer, the average elsewhere.

    Args:
        experts: mapping of task to state dict.
        pretrained: gives the order of keys, and the counters.
        model: the architecture, run in evaluation mode.
        data: expert to inputs of its task, the first dimension counts them; labels beside them are
            not used.
        off_diagonal: factor on the Gram matrices' entries off the diagonal, in 0..1, which makes up
            for few inputs; 1 is least squares, 0 a mean weighted by the inputs' squares.
        ridge: added to the diagonal of Σ G_t, as a share of its mean, so that it can be inverted.
        batch_size: inputs at once.
        transform: from a batch of inputs to the model's, e.g. the testbed's `normalise`.

    Raises:
        ValueError: an expert without data, a number out of range, layers' inputs that are not
            finite.
    """
    named = name_experts(experts)
    check_compatible(pretrained, named, "pretrained")
    if not 0 <= off_diagonal <= 1:
        raise ValueError(f"off_diagonal is {off_diagonal}, expected 0..1")
    if not ridge >= 0:
        raise ValueError(f"ridge is {ridge}, expected at least 0")
    check_tasks(data, named, "expert")
    check_tasks(named, data, "data")
    inputs = unlabelled(data)
    totals: dict[str, Tensor] = {}
    products: dict[str, Tensor] = {}
    for name, expert in progress(named.items(), desc="regmean", leave=False):
        grams = layer_grams(model, expert, inputs[name], batch_size=batch_size, transform=transform)
        for key, gram in grams.items():
            check_finite(f"the input of {key!r} in expert {name!r}", gram)
            gram = off_diagonal * gram + (1 - off_diagonal) * torch.diag(gram.diagonal())
            totals[key] = totals.get(key, 0) + gram
            products[key] = products.get(key, 0) + expert[key].to(gram) @ gram
    merged = {}
    for key, total in totals.items():
        total += ridge * total.diagonal().mean().clamp(min=1e-30) * torch.eye(len(total)).to(total)
        solved = torch.linalg.solve(total, products[key].T).T  # total is symmetric
        merged[key] = solved.to(pretrained[key].dtype).contiguous()
    return Adapted(complete({**averaged(named, pretrained, merged), **merged}, pretrained))


def layer_grams(
    model: nn.Module,
    state: StateDict,
    inputs: Tensor,
    *,
    batch_size: int = 100,
    transform: Transform | None = None,
) -> dict[str, Tensor]:
    """G = XᵀX / rows of every linear layer, in float64: key of the weight to ``(in, in)``.

    Divided by the number of rows, so that tasks with more inputs, or longer ones, weigh no more.
    """
    device = next(model.parameters()).device
    here = {key: value.to(device) for key, value in state.items()}
    grams: dict[str, Tensor] = {}
    rows: dict[str, int] = {}
    with evaluating(model):
        for batch in inputs.split(batch_size):
            ready = batch.to(device) if transform is None else transform(batch.to(device))
            for key, x in layer_inputs(model, ready, here).items():
                grams[key] = grams.get(key, 0) + (x.T @ x).double()
                rows[key] = rows.get(key, 0) + len(x)
    return {key: gram / rows[key] for key, gram in grams.items()}
