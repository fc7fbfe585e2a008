"""Representation surgery: a small module per task that mends a merged model's features.

A merged model's features f of a task differ from those of its expert, the *representation bias*
(Yang et al., 2024). The module f − Up(ReLU(Down f)) of a low rank learns to subtract it,
by the L1 distance to the expert's features on unlabelled inputs of the task. The merged weights
stay as they are; who predicts must know the task, as for its head.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergelib.merging import merge
from mergelib.procedures.common import (
    Adapted,
    Transform,
    check_finite,
    check_tasks,
    features,
    unlabelled,
)
from mergelib.procedures.objectives import batch_rows, check_steps
from mergelib.progress import progress
from mergelib.registry import procedure
from mergelib.statedict import Experts, StateDict, check_compatible, name_experts


class Surgery(nn.Module):
    """f − Up(ReLU(Down f)) on features ``(…, width)``; Up starts at 0, so this is the identity."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, features: Tensor) -> Tensor:
        return features - self.up(self.down(features).relu())


@procedure(
    paper="yang2024representation",
    data="model, heads, unlabelled inputs of every task (the paper: test inputs)",
)
def surgery(
    experts: Experts,
    pretrained: StateDict,
    *,
    model: nn.Module,
    heads: Mapping[str, nn.Module],
    data: Mapping[str, Any],
    merged: StateDict | None = None,
    rank: int = 16,
    learning_rate: float = 1e-3,
    steps: int = 1000,
    batch_size: int = 16,
    seed: int = 0,
    transform: Transform | None = None,
) -> Adapted:
    """Representation surgery: learn, for each task, a module between the features and the head.

    No model changes, so all features are computed once, and a step is one of a small network.

    Args:
        experts: mapping of task to state dict; one for every task of ``data``.
        pretrained: gives the keys.
        model: the architecture, run in evaluation mode; its output are features ``(N, …, width)``.
        heads: task to what turns features into logits; for every task of ``data``.
        data: task to inputs, the first dimension counts them; labels beside them are not used.
        merged: the weights to mend; the experts' average when left out.
        rank: of the modules.
        learning_rate: of Adam.
        steps: how many, for each task.
        batch_size: inputs of each task in a step.
        seed: of the batches, and of Down's start.
        transform: from a batch of ``data`` to the model's input, e.g. the testbed's `normalise`.

    Returns:
        The merged state as it was; ``heads``, task to the module followed by the given head;
        ``history``, a row a step with each task's L1 distance, a mean over inputs and features.

    Raises:
        ValueError: weights that do not match; a task without head, expert or inputs; a number out
            of range; features that are not finite, naming the task.
    """
    import pandas as pd

    named = name_experts(experts)
    state = merge("average", named, pretrained=pretrained) if merged is None else dict(merged)
    check_compatible(pretrained, {**named, "merged": state}, "pretrained")
    check_tasks(data, heads, "head")
    check_tasks(data, named, "expert")
    inputs = unlabelled(data)
    check_steps(steps, batch_size)
    if rank < 1:
        raise ValueError(f"rank is {rank}, expected at least 1")
    made: dict[str, nn.Module] = {}
    distances: dict[str, list[float]] = {}
    for task, each in progress(inputs.items(), desc="surgery", leave=False):
        found = features(model, state, each, transform=transform)
        wanted = features(model, named[task], each, transform=transform)
        for what, values in (("the merged model", found), ("the expert", wanted)):
            check_finite(f"the features of task {task!r} in {what}", values)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = Surgery(found.shape[-1], rank).to(found)
        rows = batch_rows({task: len(each)}, batch_size, seed)
        optimiser = torch.optim.Adam(module.parameters(), lr=learning_rate)
        distances[task] = []
        for _ in range(steps):
            some = next(rows)[task].to(found.device)
            loss = F.l1_loss(module(found[some]), wanted[some])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            distances[task].append(loss.item())
        made[task] = nn.Sequential(module.requires_grad_(False), heads[task])
    history = pd.DataFrame(distances).rename_axis("step").reset_index()
    return Adapted(state, history=history, heads=made)
