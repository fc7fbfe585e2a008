"""Concrete task arithmetic: one mask for all tasks, learned by entropy (Tang et al., 2023).

The merged weights are θ = θ_0 + m ∘ v, where v = λ Σ_t τ_t is what task arithmetic adds and m a
mask with an entry a parameter, which is to leave out what tasks spoil for each other. While it is
learned, each entry is a relaxed Bernoulli variable s = σ((x + ε) / temperature) with a logit x and
logistic noise ε. In every tensor m = s / mean(s), as the authors' code in FusionBench has it.

Experts enter by their sum alone, so memory does not depend on their number. One backward pass gives
g = ∂ℓ/∂θ, and the rest of the chain rule is two lines; see `pull`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mergelib.merging import merge, tied_keys
from mergelib.procedures.common import (
    Adapted,
    Transform,
    check_tasks,
    complete,
    precise,
    unlabelled,
)
from mergelib.procedures.objectives import batches, check_steps, loss_gradients
from mergelib.progress import progress
from mergelib.registry import procedure
from mergelib.statedict import Experts, StateDict, check_keys


@procedure(
    paper="tang2023concrete",
    data="model, heads, unlabelled inputs of every task (the paper: test inputs)",
)
def concrete(
    experts: Experts,
    pretrained: StateDict,
    *,
    model: nn.Module,
    heads: Mapping[str, nn.Module],
    data: Mapping[str, Any],
    scale: float = 0.3,
    temperature: float = 0.5,
    learning_rate: float = 1e-3,
    steps: int = 2000,
    batch_size: int = 16,
    seed: int = 0,
    transform: Transform | None = None,
) -> Adapted:
    """Concrete task arithmetic: learn a mask, shared by all tasks, by the entropy of predictions.

    Logits start at 0, and Adam moves them by the sum of the tasks' mean entropies. The numbers are
    the defaults of FusionBench; logits move by about the learning rate a step, so fewer steps want
    a larger one. The final mask is without noise, the median of the relaxed one; at no step
    it is one everywhere, and the result is task arithmetic's.

    Args:
        experts: mapping of name to state dict, or a list of them.
        pretrained: θ_0.
        model: the architecture, run in evaluation mode; its parameters are masked, its buffers are
            those of task arithmetic.
        heads: task to what turns the model's output into logits; for every task of ``data``.
        data: task to inputs, the first dimension counts them; labels beside them are not used.
        scale: λ of task arithmetic.
        temperature: of the relaxed variables; the lower, the closer to 0 and 1.
        learning_rate: of Adam.
        steps: how many.
        batch_size: inputs of each task in a step.
        seed: of the batches and the noise.
        transform: from a batch of ``data`` to the model's input, e.g. the testbed's `normalise`.

    Returns:
        The merged state, and ``history`` with a row a step and each task's entropy (nats).

    Raises:
        ValueError: what `merge` refuses; a task without head or inputs; a number out of range; a
            loss that is not finite, naming the task.
    """
    import pandas as pd

    check_tasks(data, heads, "head")
    inputs = unlabelled(data)
    check_steps(steps, batch_size)
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, expected a positive number")
    check_keys(model.state_dict(), pretrained, "pretrained", "the model")
    dense = merge("task_arithmetic", experts, pretrained=pretrained, scale=scale)
    keys = dict(model.named_parameters(remove_duplicate=False)).keys() - tied_keys(pretrained)
    added = {key: precise(dense[key] - each) for key, each in pretrained.items() if key in keys}
    logits = {key: torch.zeros_like(each) for key, each in added.items()}
    optimiser = torch.optim.Adam(logits.values(), lr=learning_rate)
    generator = torch.Generator().manual_seed(seed)
    stream = batches(inputs, batch_size, seed, next(iter(added.values())).device)
    history = []
    for step in progress(range(steps), desc="concrete", leave=False):
        relaxed = {
            key: ((each + _noise(each, generator)) / temperature).sigmoid()
            for key, each in logits.items()
        }
        merged = dense | _masked(pretrained, added, relaxed)
        losses, gradients = loss_gradients(
            model, merged, list(added), pretrained, heads, next(stream), transform, {}
        )
        history.append({"step": step, **losses})
        for key, gradient in gradients.items():
            logits[key].grad = pull(gradient * added[key], relaxed[key], temperature)
        optimiser.step()
    final = {key: (each / temperature).sigmoid() for key, each in logits.items()}
    masked = _masked(pretrained, added, final)
    masked = {key: each.to(pretrained[key].dtype) for key, each in masked.items()}
    table = pd.DataFrame(history, columns=["step", *inputs])
    return Adapted(complete(dense | masked, pretrained), history=table)


def pull(gradient: Tensor, relaxed: Tensor, temperature: float) -> Tensor:
    """The gradient of the logits from that of the mask m = s / mean(s), for relaxed entries s.

    ∂ℓ/∂s = (∂ℓ/∂m − mean(∂ℓ/∂m ∘ m)) / mean(s), and ∂s/∂x = s (1 − s) / temperature.
    """
    mean = relaxed.mean()
    through_mean = (gradient * relaxed).mean() / mean
    return (gradient - through_mean) / mean * relaxed * (1 - relaxed) / temperature


def _masked(
    pretrained: StateDict, added: Mapping[str, Tensor], relaxed: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    return {
        key: pretrained[key] + each * (relaxed[key] / relaxed[key].mean())
        for key, each in added.items()
    }


def _noise(like: Tensor, generator: torch.Generator) -> Tensor:
    """Logistic noise; drawn on the CPU, so that it does not depend on the device."""
    return torch.rand(like.shape, generator=generator).logit(eps=1e-6).to(like)
