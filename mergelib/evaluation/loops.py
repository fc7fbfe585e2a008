"""Evaluation loops: one state dict, or a grid of candidates, on every task of a suite.

Inputs are moved to the device as they are stored and transformed there. Candidates run through one
model by `functional_call`, which is never rebuilt.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call

from mergelib.evaluation.tasks import Split, Suite, Task
from mergelib.problems.calling import evaluating
from mergelib.progress import progress
from mergelib.statedict import StateDict, check_compatible

SplitName = Literal["train", "validation", "test"]


def evaluate(
    model: nn.Module,
    state: StateDict,
    heads: Mapping[str, nn.Module],
    suite: Suite,
    *,
    split: SplitName = "test",
    tasks: Sequence[str] | None = None,
    device: torch.device | str | None = None,
    autocast: bool = False,
    batch_size: int = 500,
) -> pd.DataFrame:
    """Return accuracy, loss and the tasks' own scores of one state dict on every task of a suite.

    Args:
        model: the architecture; its weights and modes are not changed.
        state: complete weights of the model's shapes.
        heads: task to its head, from features to logits; run in evaluation mode, as is the model.
        suite: the tasks.
        **options: as in `evaluate_many`.

    Returns:
        One row per task: ``task``, ``accuracy`` (0..1), ``loss`` (mean of the task's loss, e.g. in
        nats), ``correct`` and ``n`` (numbers of labels). Accuracy and ``correct`` are NaN for a
        regression. If any task of the suite has another metric, ``metric`` and ``score`` follow.

    Raises:
        ValueError: a task is unknown or has no head, or the state dict does not fit the model.
    """
    table = evaluate_many(
        model,
        {"state": state},
        heads,
        suite,
        split=split,
        tasks=tasks,
        device=device,
        autocast=autocast,
        batch_size=batch_size,
    )
    return table.drop(columns="candidate")


def evaluate_many(
    model: nn.Module,
    candidates: Mapping[Any, StateDict] | Iterable[tuple[Any, StateDict]],
    heads: Mapping[str, nn.Module],
    suite: Suite,
    *,
    split: SplitName = "test",
    tasks: Sequence[str] | None = None,
    device: torch.device | str | None = None,
    autocast: bool = False,
    batch_size: int = 500,
) -> pd.DataFrame:
    """Return the tables of `evaluate` for many candidates, with their labels in ``candidate``.

    One task's data and one candidate at a time are on the device.

    Args:
        model: as in `evaluate`.
        candidates: label to state dict, or an iterable of such pairs, consumed one at a time.
        heads: as in `evaluate`.
        suite: the tasks.
        split: which part of each task.
        tasks: names of the tasks; all by default.
        device: where to run; by default where the model is.
        autocast: compute in bfloat16 where it is safe, if the processor has instructions for it;
            emulation would be about ten times slower than float32.
        batch_size: inputs per forward pass.
    """
    names = _names(suite, heads, tasks)
    where = next(model.parameters()).device if device is None else torch.device(device)
    moved = {name: _placed(heads[name], where) for name in names}
    own_scores = any(task.metric.score is not None for task in suite.tasks.values())
    rows = []
    for label, state in _labelled(candidates):
        check_compatible(model.state_dict(), {f"candidate {label!r}": state}, "the model")
        state = {key: value.to(where) for key, value in state.items()}
        for name in names:
            task = suite.tasks[name]
            part = _moved(getattr(task, split), where)
            with evaluating(model, moved[name]):
                row = _judge(model, state, moved[name], task, part, autocast, batch_size)
            del part  # else it would be there still when the next one comes
            if own_scores:
                metric = task.metric
                score = row["score"] if metric.score else row[metric.name]
                row |= {"metric": metric.name, "score": score}
            rows.append({"candidate": label, "task": name, **row})
    return pd.DataFrame(rows)


def normalised_accuracy(table: pd.DataFrame, individual: pd.DataFrame) -> "pd.Series[float]":
    """Return each row's accuracy as a fraction of the accuracy of the task's own expert."""
    own = individual.set_index("task")["accuracy"]
    return table["accuracy"] / table["task"].map(own)


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device has bfloat16 instructions instead of emulating them."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, check, bool)() for check in checks)


def _names(
    suite: Suite, heads: Mapping[str, nn.Module], tasks: Sequence[str] | None
) -> Sequence[str]:
    names = list(suite.tasks) if tasks is None else tasks
    for name in names:
        if name not in suite.tasks:
            raise ValueError(f"unknown task {name!r}; {suite.name} has: {', '.join(suite.tasks)}")
        if name not in heads:
            raise ValueError(f"task {name!r} has no head; there are: {', '.join(heads)}")
    return names


def _placed(head: nn.Module, device: torch.device) -> nn.Module:
    """Return the head if it is on the device, or a copy that is."""
    tensors = [*head.parameters(), *head.buffers()]
    there = all(tensor.device == device for tensor in tensors)
    return head if there else copy.deepcopy(head).to(device)


def _moved(part: Split, device: torch.device) -> Split:
    return Split(part.inputs.to(device), part.labels.to(device))


def _labelled(
    candidates: Mapping[Any, StateDict] | Iterable[tuple[Any, StateDict]],
) -> Iterator[tuple[Any, StateDict]]:
    pairs = candidates.items() if isinstance(candidates, Mapping) else candidates
    yield from progress(pairs, desc="evaluating", leave=False)


@torch.no_grad()
def _judge(
    model: nn.Module,
    state: Mapping[str, Tensor],
    head: nn.Module,
    task: Task,
    part: Split,
    autocast: bool,
    batch_size: int,
) -> dict[str, Any]:
    """Return one task's row of the table, with ``score`` if the metric has its own."""
    device = part.labels.device
    correct = torch.zeros((), dtype=torch.long, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    kept: list[Tensor] = []  # outputs, for metrics that need all of them
    fast = autocast and has_bfloat16(device)
    batches = zip(part.inputs.split(batch_size), part.labels.split(batch_size), strict=True)
    for inputs, labels in batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=fast):
            z = functional_call(model, dict(state), (task.transform(inputs),))
        outputs = head(z.float())
        if task.metric.of_classes:
            correct += (outputs.flatten(0, -2).argmax(1) == labels.flatten()).sum()
        loss += task.loss(outputs, labels, reduction="sum")
        if task.metric.score is not None:
            kept.append(outputs.cpu())
    n = part.labels.numel()
    right = int(correct) if task.metric.of_classes else math.nan
    row = {"accuracy": right / n, "loss": float(loss) / n, "correct": right, "n": n}
    if task.metric.score is not None:
        row["score"] = task.metric.score(torch.cat(kept), part.labels.cpu())
    return row
