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
from mergelib.problems.calling import Transforms
from mergelib.problems.checks import check_labels
from mergelib.problems.examples import Examples
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted, Labelled
from mergelib.procedures.objectives import batch_rows, task_losses
from mergelib.progress import progress
from mergelib.registry import Needs, procedure
from mergelib.statedict import StateDict
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

    state, losses = descend(
        problem.pretrained,
        model=problem.model,
        heads=problem.heads,
        data={task: examples.pair for task, examples in problem.data.items()},
        rows=list(islice(batches, settings.steps)),
        optimise=optimise,
        seed=settings.seed,
        transform=problem.transform,
    )
    history = pd.DataFrame(losses, columns=list(sizes)).rename_axis("step").reset_index()
    return Adapted(state, history=history)


def descend(
    state: StateDict,
    *,
    model: nn.Module,
    heads: Mapping[str, nn.Module],
    data: Mapping[str, Labelled],
    rows: Sequence[Mapping[str, Tensor]],
    optimise: Callable[[nn.Module], tuple[Optimizer, LRScheduler | None]],
    seed: int,
    clip: float | None = None,
    transform: Transforms = None,
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Train a copy of the model on labelled data of all tasks: one step for each of ``rows``.

    Args:
        state: the initial weights, not changed.
        model: the architecture, in training mode.
        heads: task to head, frozen and in evaluation mode.
        data: task to inputs and labels. Integer labels are classes, with cross-entropy (nats);
            floating labels are outputs of the head, with mean squared error.
        rows: task to the indices of its batch, for each step, which descends the mean of their
            losses.
        optimise: maps the copy to its optimiser and schedule (or None).
        seed: of the model's draws in training.
        clip: the largest Euclidean norm of a step's whole gradient.
        transform: maps a batch of inputs to the model's.

    Returns:
        The trained state, and for each step task to loss.
    """
    classes = {task: pair for task, pair in data.items() if not pair[1].is_floating_point()}
    check_labels(classes, model, state, heads, transform)
    network = copy.deepcopy(model).requires_grad_()
    network.load_state_dict(state)
    network.train()
    frozen = {task: copy.deepcopy(heads[task]).requires_grad_(False).eval() for task in data}
    device = next(network.parameters()).device
    optimiser, schedule = optimise(network)
    history: list[dict[str, float]] = []

    def loss(batch: Mapping[str, Tensor]) -> Tensor:
        inputs, targets = (
            {task: data[task][part][chosen].to(device) for task, chosen in batch.items()}
            for part in (0, 1)
        )
        losses = task_losses(network, frozen, inputs, partial(_loss, targets), transform)
        history.append({task: value.item() for task, value in losses.items()})
        return torch.stack(list(losses.values())).mean()

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        batches = progress(rows, desc="training", leave=False)
        train(network, batches, loss, optimiser, schedule=schedule, clip=clip)
    trained = {key: value.detach().clone() for key, value in network.state_dict().items()}
    return trained, history


def _loss(targets: Mapping[str, Tensor | Examples], task: str, outputs: Tensor) -> Tensor:
    labels = targets[task]
    assert isinstance(labels, Tensor)
    if labels.is_floating_point():
        if labels.numel() != outputs.numel():
            raise ValueError(
                f"task {task!r} has floating labels of shape {tuple(labels.shape)} for outputs of "
                f"shape {tuple(outputs.shape)}; classes must be integers"
            )
        return F.mse_loss(outputs, labels.reshape(outputs.shape))
    return F.cross_entropy(outputs.flatten(0, -2), labels.flatten())
