"""Fisher merging: a mean of the experts weighted by how much each parameter matters to each.

The weights are the diagonal of the Fisher information of every expert on its own task (Matena and
Raffel, 2022, Eq. 4): F = E_x E_{y ~ p(y|x)} [(∂ log p(y|x) / ∂θ)²]. The square is taken for every
example by itself; squaring the gradient of a batch would be another, much noisier quantity.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from mergelib.procedures.common import (
    Adapted,
    Transform,
    averaged,
    check_finite,
    check_labels,
    check_tasks,
    complete,
    evaluating,
    labelled,
    unlabelled,
)
from mergelib.progress import progress
from mergelib.registry import procedure
from mergelib.statedict import Experts, StateDict, check_compatible, name_experts


@procedure(
    paper="matena2022merging",
    data="model, heads, inputs of every task (a few hundred)",
)
def fisher(
    experts: Experts,
    pretrained: StateDict,
    *,
    model: nn.Module,
    heads: Mapping[str, nn.Module],
    data: Mapping[str, Any],
    labels: Literal["model", "true"] = "model",
    floor: float = 1e-6,
    batch_size: int = 32,
    seed: int = 0,
    transform: Transform | None = None,
) -> Adapted:
    """Fisher merging: Σ F_t θ_t / Σ F_t in every parameter, with diagonal Fisher information F_t.

    Buffers such as running means are averaged, counters copied.

    Args:
        experts: mapping of task to state dict.
        pretrained: gives the order of keys, and the counters.
        model: the architecture, run in evaluation mode.
        heads: task to what turns the model's output into logits.
        data: expert to inputs of its task, the first dimension counts them; or to a pair of inputs
            and labels, which ``labels="true"`` needs. A few hundred examples are usual.
        labels: ``"model"`` draws one label an example from the expert's own predictions, which is
            the Fisher information; ``"true"`` takes the given ones (the *empirical* Fisher).
        floor: the least that a parameter weighs in each expert.
        batch_size: examples at once; each takes the memory of one gradient.
        seed: of the drawn labels.
        transform: from a batch of inputs to the model's, e.g. the testbed's `normalise`.

    Raises:
        ValueError: an expert without data or head, no labels where they are needed, a label that is
            no class, a floor that is not positive, a gradient that is not finite.
    """
    named = name_experts(experts)
    check_compatible(pretrained, named, "pretrained")
    if labels not in ("model", "true"):
        raise ValueError(f"labels is {labels!r}, expected 'model' or 'true'")
    if not floor > 0:
        raise ValueError(f"floor is {floor}, expected a positive number")
    check_tasks(data, heads, "head")
    check_tasks(named, data, "data")
    generator = torch.Generator().manual_seed(seed)
    pairs: Mapping[str, tuple[Tensor, Tensor | None]]
    if labels == "true":
        pairs = {**labelled(data, "fisher with labels='true'")}
        check_labels(pairs, model, pretrained, heads, transform)
    else:
        pairs = {task: (inputs, None) for task, inputs in unlabelled(data).items()}
    sums: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}
    for name, expert in progress(named.items(), desc="fisher", leave=False):
        inputs, targets = pairs[name]
        information = diagonal_fisher(
            model,
            expert,
            heads[name],
            inputs,
            targets,
            batch_size=batch_size,
            generator=generator,
            transform=transform,
        )
        for key, values in information.items():
            check_finite(f"the Fisher information of {key!r} in expert {name!r}", values)
            weight = values.clamp(min=floor)
            sums[key] = sums.get(key, 0) + weight * expert[key].float()
            weights[key] = weights.get(key, 0) + weight
    merged = {key: (each / weights[key]).to(pretrained[key].dtype) for key, each in sums.items()}
    return Adapted(complete({**averaged(named, pretrained, merged), **merged}, pretrained))


def diagonal_fisher(
    model: nn.Module,
    state: StateDict,
    head: nn.Module,
    inputs: Tensor,
    targets: Tensor | None = None,
    *,
    batch_size: int = 32,
    generator: torch.Generator | None = None,
    transform: Transform | None = None,
) -> dict[str, Tensor]:
    """Mean over the examples of the squared gradient of the log-likelihood, for every parameter.

    Args:
        model: the architecture.
        state: its weights.
        head: from its output to logits, ``(B, C)``, or ``(B, N, C)`` for texts, which count as one
            example a text.
        inputs: the first dimension counts the examples.
        targets: labels; drawn from the predictions when left out.
        batch_size: examples at once.
        generator: draws labels, on the CPU.
        transform: from a batch of inputs to the model's.
    """
    device = next(model.parameters()).device
    names = [name for name, _ in model.named_parameters()]
    parameters = {name: state[name].detach().float().to(device) for name in names}
    rest = {key: value.to(device) for key, value in state.items() if key not in parameters}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = head(functional_call(model, {**rest, **weights}, (x[None],)))
        return F.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="sum")

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    squares = {name: torch.zeros_like(value) for name, value in parameters.items()}
    # vmap has no rule for fused attention, and would fall back to a loop
    with evaluating(model), sdpa_kernel(SDPBackend.MATH):
        for start in range(0, len(inputs), batch_size):
            x = inputs[start : start + batch_size].to(device)
            x = x if transform is None else transform(x)
            if targets is None:
                y = _draw(head(functional_call(model, {**rest, **parameters}, (x,))), generator)
            else:
                y = targets[start : start + batch_size].to(device)
            for name, each in gradients(parameters, x, y).items():
                squares[name] += each.detach().square().sum(0)
    return {name: each / len(inputs) for name, each in squares.items()}


@torch.no_grad()
def _draw(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """A label for each example, from the predictions."""
    flat = logits.detach().float().flatten(0, -2).softmax(1).cpu()
    if not torch.isfinite(flat).all():
        raise ValueError("the predictions hold NaN or Inf: look at the inputs")
    drawn = torch.multinomial(flat, 1, generator=generator)[:, 0]
    return drawn.view(logits.shape[:-1]).to(logits.device)
