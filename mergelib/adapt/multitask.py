"""Multi-task training: one model trained on the labelled data of all tasks together.

No merging, but the baseline that it is measured against (Caruana, 1997): the pretrained backbone,
trained under the same frozen heads as the experts, with the data and steps that it is given.
"""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergelib.adapt.common import Adapted, Transform, check_tasks, labelled
from mergelib.adapt.objectives import batch_rows, check_steps, task_losses
from mergelib.progress import progress
from mergelib.registry import other
from mergelib.statedict import Experts, StateDict, check_compatible, name_experts


@other(
    family="procedure",
    paper="caruana1997multitask",
    data="model, heads, labelled examples of every task (the training sets)",
)
def multitask(
    experts: Experts,
    pretrained: StateDict,
    *,
    model: nn.Module,
    heads: Mapping[str, nn.Module],
    data: Mapping[str, Any],
    learning_rate: float = 4e-4,
    steps: int = 500,
    batch_size: int = 16,
    weight_decay: float = 0.01,
    seed: int = 0,
    transform: Transform | None = None,
) -> Adapted:
    """Multi-task training: the pretrained model, trained on all tasks; experts are not used.

    A step takes a batch of every task through the model together, and descends the mean of the
    tasks' mean cross-entropies by AdamW, with a rate that falls to zero like a cosine.

    Args:
        experts: they give names and shapes to check, as for every procedure, and nothing else.
        pretrained: where training starts.
        model: the architecture, run in training mode.
        heads: task to what turns the model's output into logits; not trained.
        data: task to a pair of inputs and labels.
        learning_rate: where it starts.
        steps: how many; with ``batch_size`` it is the budget.
        batch_size: inputs of each task in a step.
        weight_decay: of parameters with two dimensions and more.
        seed: of the batches, and of what the model draws in training.
        transform: from a batch of inputs to the model's, e.g. the testbed's `normalise`.

    Returns:
        The trained state, and ``history`` with a row a step and each task's cross-entropy (nats).

    Raises:
        ValueError: data without labels; a task without head or inputs; a number out of range; a
            loss that is not finite, naming the task.
    """
    import pandas as pd

    check_compatible(pretrained, name_experts(experts), "pretrained")
    check_tasks(data, heads, "head")
    pairs = labelled(data, "multitask")
    check_steps(steps, batch_size)
    network = copy.deepcopy(model).requires_grad_()
    network.load_state_dict(pretrained)
    network.train()
    frozen = {task: copy.deepcopy(heads[task]).requires_grad_(False) for task in pairs}
    device = next(network.parameters()).device
    optimiser, schedule = _optimiser(network, learning_rate, weight_decay, steps)
    rows = batch_rows({task: len(y) for task, (_, y) in pairs.items()}, batch_size, seed)
    history = []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for step in progress(range(steps), desc="multitask", leave=False):
            some = next(rows)
            inputs, targets = (
                {task: pair[part][some[task]].to(device) for task, pair in pairs.items()}
                for part in (0, 1)
            )
            loss = partial(_cross_entropy, targets)
            losses = task_losses(network, frozen, inputs, loss, transform)
            optimiser.zero_grad()
            torch.stack(list(losses.values())).mean().backward()
            optimiser.step()
            schedule.step()
            history.append({"step": step, **{task: each.item() for task, each in losses.items()}})
    state = {key: value.detach().clone() for key, value in network.state_dict().items()}
    return Adapted(state, history=pd.DataFrame(history))


def _cross_entropy(targets: Mapping[str, Tensor], task: str, logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets[task].flatten())


def _optimiser(
    network: nn.Module, learning_rate: float, weight_decay: float, steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    groups: list[dict[str, Any]] = [
        {"params": [p for p in network.parameters() if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in network.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
    return optimiser, schedule
