"""Multi-task training: one model trained on the labelled data of all tasks together.

This is not merging but its baseline (Caruana, 1997): the pretrained backbone is trained under the
experts' frozen heads, with the given data and steps.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from mergelib.messages.kinds import Count, Size
from mergelib.problems.checks import check_labels
from mergelib.problems.examples import Examples
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted
from mergelib.procedures.objectives import batch_rows, task_losses
from mergelib.progress import progress
from mergelib.registry import Needs, procedure
from mergelib.training import make_optimiser, train


@dataclass(frozen=True)
class MultitaskSettings:
    """Hyperparameters of `multitask`.

    Attributes:
        learning_rate: the initial rate.
        steps: number of steps.
        batch_size: inputs of each task per step.
        weight_decay: of parameters with two or more dimensions.
        seed: of the batches, and of the model's draws in training.
    """

    learning_rate: float = 4e-4
    steps: Count = 500
    batch_size: Size = 16
    weight_decay: float = 0.01
    seed: int = 0


@procedure(
    paper="caruana1997multitask",
    data="labelled examples of every task (the training sets)",
    settings=MultitaskSettings,
    needs=Needs(labels="targets", parts=False),
)
def multitask(problem: Problem, settings: MultitaskSettings) -> Adapted:
    """Multi-task training: the pretrained model, trained on all tasks; experts are not used.

    Each step passes a batch of every task through the model and descends the mean of the tasks'
    mean cross-entropies by AdamW with a cosine schedule. Experts are only checked. Heads stay
    frozen.

    Returns:
        The trained state, and ``history`` with one row per step and each task's cross-entropy
        (nats).
    """
    import pandas as pd

    sizes = {task: len(examples) for task, examples in problem.data.items()}
    batches = batch_rows(sizes, settings.batch_size, settings.seed)

    def optimise(network: nn.Module) -> tuple[Optimizer, LRScheduler]:
        decay = settings.weight_decay
        optimiser = make_optimiser(network, "adamw", settings.learning_rate, weight_decay=decay)
        return optimiser, CosineAnnealingLR(optimiser, max(1, settings.steps))

    rows = list(islice(batches, settings.steps))
    state, losses = descend(problem, rows, optimise, seed=settings.seed)
    history = pd.DataFrame(losses, columns=list(sizes)).rename_axis("step").reset_index()
    return Adapted(state, history=history)


def descend(
    problem: Problem,
    rows: Sequence[Mapping[str, Tensor]],
    optimise: Callable[[nn.Module], tuple[Optimizer, LRScheduler | None]],
    *,
    seed: int,
    clip: float | None = None,
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Train a copy of the pretrained model on labelled data of all tasks.

    Integer labels are classes, with cross-entropy (nats); floating labels are outputs of the head,
    with mean squared error. The heads are frozen.

    Args:
        problem: the pretrained model, data, heads and transform.
        rows: task to the indices of its batch, for each step, which descends the mean of their
            losses.
        optimise: maps the copy to its optimiser and schedule (or None).
        seed: of the model's draws in training.
        clip: the largest Euclidean norm of a step's whole gradient.

    Returns:
        The trained state, and for each step task to loss.
    """
    data, heads, transform = problem.data, problem.heads, problem.transform
    classes = {
        task: part
        for task, part in data.items()
        if part.labels is not None and not part.labels.is_floating_point()
    }
    check_labels(classes, problem.model, problem.pretrained, heads, transform)
    network = copy.deepcopy(problem.model).requires_grad_()
    network.load_state_dict(problem.pretrained)
    network.train()
    frozen = {task: copy.deepcopy(heads[task]).requires_grad_(False).eval() for task in data}
    device = next(network.parameters()).device
    optimiser, schedule = optimise(network)
    history: list[dict[str, float]] = []

    def loss(chosen: Mapping[str, Tensor]) -> Tensor:
        batch = {task: data[task][numbers].to(device) for task, numbers in chosen.items()}
        losses = task_losses(network, frozen, batch, partial(_loss, batch), transform)
        history.append({task: value.item() for task, value in losses.items()})
        return torch.stack(list(losses.values())).mean()

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        batches = progress(rows, desc="training", leave=False)
        train(network, batches, loss, optimiser, schedule=schedule, clip=clip)
    trained = {key: value.detach().clone() for key, value in network.state_dict().items()}
    return trained, history


def _loss(batch: Mapping[str, Examples], task: str, outputs: Tensor) -> Tensor:
    labels = batch[task].labels
    assert labels is not None
    if labels.is_floating_point():
        if labels.numel() != outputs.numel():
            raise ValueError(
                f"task {task!r} has floating labels of shape {tuple(labels.shape)} for outputs of "
                f"shape {tuple(outputs.shape)}; classes must be integers"
            )
        return F.mse_loss(outputs, labels.reshape(outputs.shape))
    return F.cross_entropy(outputs.flatten(0, -2), labels.flatten())
