"""Representation surgery: a small module per task that corrects a merged model's features.

The difference between a merged model's features f and those of a task's expert is the
*representation bias* (Yang et al., 2024). The module f − Up(ReLU(Down f)) of low rank learns to
subtract it, by the L1 distance on unlabelled inputs. The merged weights stay unchanged; the task
must be known at inference, as for its head.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergelib.merging import merge_checked
from mergelib.messages.kinds import Count, Size
from mergelib.problems.calling import features, transform_of
from mergelib.problems.checks import check_finite
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted
from mergelib.procedures.objectives import batch_rows
from mergelib.progress import progress
from mergelib.registry import Needs, procedure
from mergelib.statedict import StateDict
from mergelib.training import seeded


class Surgery(nn.Module):
    """f − Up(ReLU(Down f)) on features ``(…, width)``; Up starts at 0, so this is the identity."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, features: Tensor) -> Tensor:
        bias: Tensor = self.up(self.down(features).relu())
        return features - bias


@dataclass(frozen=True)
class SurgerySettings:
    """Hyperparameters of `surgery`.

    Attributes:
        rank: of the modules.
        learning_rate: of Adam.
        steps: number of steps for each task.
        batch_size: inputs of each task per step.
        seed: of the batches, and of Down's initial weights.
    """

    rank: Size = 16
    learning_rate: float = 1e-3
    steps: Count = 1000
    batch_size: Size = 16
    seed: int = 0


@procedure(
    paper="yang2024representation",
    data="unlabelled inputs of every task (the paper: test inputs)",
    settings=SurgerySettings,
    needs=Needs(classes=False, every_task=True, accepts=("start",)),
)
def surgery(problem: Problem, settings: SurgerySettings) -> Adapted:
    """Representation surgery: learn, for each task, a module between the features and the head.

    The weights are ``problem.start``, or the experts' average, and do not change, so features ``(N,
    …, width)`` are computed once and each step trains only a small network.

    Returns:
        The unchanged merged state; ``heads``, task to the module followed by the given head;
        ``history``, one row per step with each task's mean L1 distance.
    """
    import pandas as pd

    state = problem.start
    if state is None:
        state = merge_checked("average", problem.experts, problem.pretrained)
    heads: dict[str, nn.Module] = {}
    distances: dict[str, list[float]] = {}
    for task in progress(problem.data, desc="surgery", leave=False):
        merged = _features(problem, task, state, "the merged model")
        target = _features(problem, task, problem.experts[task], "the expert")
        module, distances[task] = _mend(task, merged, target, settings)
        heads[task] = nn.Sequential(module, problem.heads[task])
    history = pd.DataFrame(distances).rename_axis("step").reset_index()
    return Adapted(dict(state), history=history, heads=heads)


def _features(problem: Problem, task: str, state: StateDict, what: str) -> Tensor:
    """Return a model's features on a task's inputs, without padding."""
    transform = transform_of(problem.transform, task)
    values = features(problem.model, state, problem.data[task], transform=transform)
    check_finite(f"the features of task {task!r} in {what}", values)
    return problem.data[task].without_padding(values)


def _mend(
    task: str, merged: Tensor, target: Tensor, settings: SurgerySettings
) -> tuple[Surgery, list[float]]:
    """Train a module that maps merged features to the expert's; return it and its losses."""
    with seeded(settings.seed):
        module = Surgery(merged.shape[-1], settings.rank).to(merged)
    batches = batch_rows({task: len(merged)}, settings.batch_size, settings.seed)
    optimiser = torch.optim.Adam(module.parameters(), lr=settings.learning_rate)
    distances = []
    for _ in range(settings.steps):
        rows = next(batches)[task].to(merged.device)
        loss = F.l1_loss(module(merged[rows]), target[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        distances.append(loss.item())
    return module.requires_grad_(False), distances
