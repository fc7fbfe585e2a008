"""Concrete task arithmetic: one mask for all tasks, learned by entropy (Tang et al., 2023).

The merged weights are θ = θ_0 + m ∘ v, with v = λ Σ_t τ_t as in task arithmetic and a mask m of one
entry per parameter. During learning an entry is a relaxed Bernoulli variable s = σ((x + ε) /
temperature) with logit x and logistic noise ε, and m = s / mean(s) in every tensor, as in the
authors' code in FusionBench. Memory does not depend on the number of experts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mergelib.merging import merge_checked
from mergelib.messages.kinds import Count, Positive, Size
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted, complete
from mergelib.procedures.objectives import batches, loss_gradients
from mergelib.progress import progress
from mergelib.registry import Needs, procedure
from mergelib.statedict import StateDict, tied_keys


@dataclass(frozen=True)
class ConcreteSettings:
    """Hyperparameters of `concrete`; the defaults are those of FusionBench.

    Attributes:
        scale: λ of task arithmetic.
        temperature: of the relaxed variables, above 0; a lower one gives values closer to 0 and 1.
        learning_rate: of Adam, and about the change of a logit per step.
        steps: number of steps.
        batch_size: inputs of each task per step.
        seed: of the batches and the noise.
    """

    scale: float = 0.3
    temperature: Positive = 0.5
    learning_rate: float = 1e-3
    steps: Count = 2000
    batch_size: Size = 16
    seed: int = 0


@procedure(
    paper="tang2023concrete",
    data="unlabelled inputs of every task (the paper: test inputs)",
    settings=ConcreteSettings,
    needs=Needs(),
)
def concrete(problem: Problem, settings: ConcreteSettings) -> Adapted:
    """Concrete task arithmetic: learn a mask, shared by all tasks, by the entropy of predictions.

    Logits start at 0, and Adam minimises the sum of the tasks' mean entropies. Only parameters are
    masked; buffers are those of task arithmetic. The final mask is the median of the relaxed one,
    so with no steps the result is task arithmetic's.

    Returns:
        The merged state, and ``history`` with one row per step and each task's entropy (nats).
    """
    import pandas as pd

    pretrained, temperature = problem.pretrained, settings.temperature
    dense = merge_checked("task_arithmetic", problem.experts, pretrained, scale=settings.scale)
    names = dict(problem.model.named_parameters(remove_duplicate=False)).keys()
    keys = names - tied_keys(pretrained)
    added = {key: dense[key] - base for key, base in pretrained.items() if key in keys}
    logits = {key: torch.zeros_like(tensor) for key, tensor in added.items()}
    optimiser = torch.optim.Adam(logits.values(), lr=settings.learning_rate)
    generator = torch.Generator().manual_seed(settings.seed)
    device = next(iter(added.values())).device
    stream = batches(problem.data, settings.batch_size, settings.seed, device)
    history = []
    for step in progress(range(settings.steps), desc="concrete", leave=False):
        relaxed = {}
        for key, logit in logits.items():  # logistic noise, drawn on the CPU for any device
            drawn = torch.rand(logit.shape, generator=generator, dtype=torch.float32)
            noise = drawn.logit(eps=1e-6).to(logit)
            relaxed[key] = ((logit + noise) / temperature).sigmoid()
        merged = dense | _masked(pretrained, added, relaxed)
        losses, gradients = loss_gradients(problem, merged, list(added), next(stream))
        history.append({"step": step, **losses})
        for key, gradient in gradients.items():
            logits[key].grad = pull(gradient * added[key], relaxed[key], temperature)
        optimiser.step()
    final = {key: (logit / temperature).sigmoid() for key, logit in logits.items()}
    masked = _masked(pretrained, added, final)
    table = pd.DataFrame(history, columns=["step", *problem.data])
    return Adapted(complete(dense | masked, pretrained), history=table)


def pull(gradient: Tensor, relaxed: Tensor, temperature: float) -> Tensor:
    """Return the logits' gradient from that of the mask m = s / mean(s), for relaxed entries s.

    ∂ℓ/∂s = (∂ℓ/∂m − mean(∂ℓ/∂m ∘ m)) / mean(s), and ∂s/∂x = s (1 − s) / temperature.
    """
    mean = relaxed.mean()
    through_mean = (gradient * relaxed).mean() / mean
    return (gradient - through_mean) / mean * relaxed * (1 - relaxed) / temperature


def _masked(
    pretrained: StateDict, added: Mapping[str, Tensor], relaxed: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    return {
        key: pretrained[key] + addition * (relaxed[key] / relaxed[key].mean())
        for key, addition in added.items()
    }
