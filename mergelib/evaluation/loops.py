"""Evaluation loops: one state dict, or a grid of candidates, on every task of a suite.

Inputs are moved to the device as they are stored and transformed there. Candidates run through one
model by `functional_call`, which is never rebuilt.
"""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mergelib.evaluation.tasks import Split, Suite, Task
from mergelib.problems.calling import evaluating
from mergelib.problems.checks import check_tasks
from mergelib.progress import progress
from mergelib.statedict import StateDict, check_compatible

if TYPE_CHECKING:
    import pandas as pd

SplitName = Literal["train", "validation", "test"]


class Options(TypedDict, total=False):
    """The keyword arguments of `evaluate_many`."""

    split: SplitName
    tasks: Sequence[str] | None
    device: torch.device | str | None
    autocast: bool
    batch_size: int


def evaluate(
    model: nn.Module,
    state: StateDict,
    heads: Mapping[str, nn.Module],
    suite: Suite,
    **options: Unpack[Options],
) -> "pd.DataFrame":
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

    >>> evaluate(model, merge("average", experts), heads, suite)                # doctest: +SKIP
    """
    return evaluate_many(model, {"state": state}, heads, suite, **options).drop(columns="candidate")


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
) -> "pd.DataFrame":
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
    import pandas as pd

    names = list(suite.tasks) if tasks is None else tasks
    check_tasks(dict.fromkeys(names), suite.tasks, f"place in {suite.name}")
    check_tasks(dict.fromkeys(names), heads, "head")
    where = next(model.parameters()).device if device is None else torch.device(device)
    placed = {name: copy.deepcopy(heads[name]).to(where).eval() for name in names}
    scored = any(task.metric.score is not None for task in suite.tasks.values())
    rows = []
    pairs = candidates.items() if isinstance(candidates, Mapping) else candidates
    for label, state in progress(pairs, desc="evaluating", leave=False):
        check_compatible(model.state_dict(), {f"candidate {label!r}": state}, "the model")
        state = {key: value.to(where) for key, value in state.items()}
        for name in names:
            task = suite.tasks[name]
            stored: Split = getattr(task, split)
            part = Split(stored.inputs.to(where), stored.labels.to(where))
            with evaluating(model):
                row = _evaluated(model, state, placed[name], task, part, autocast, batch_size)
            del part  # free it before the next one is moved
            rows.append({"candidate": label, "task": name, **row})
    table = pd.DataFrame(rows)
    return table if scored else table.drop(columns=["metric", "score"], errors="ignore")


def normalised_accuracy(table: "pd.DataFrame", individual: "pd.DataFrame") -> "pd.Series[float]":
    """Return each row's accuracy as a fraction of the accuracy of the task's own expert."""
    expert_accuracy = individual.set_index("task")["accuracy"]
    return table["accuracy"] / table["task"].map(expert_accuracy)


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device has bfloat16 instructions instead of emulating them."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, check, bool)() for check in checks)


@torch.no_grad()
def _evaluated(
    model: nn.Module,
    state: Mapping[str, Tensor],
    head: nn.Module,
    task: Task,
    part: Split,
    autocast: bool,
    batch_size: int,
) -> dict[str, Any]:
    """Return one task's row of the table."""
    device = part.labels.device
    correct = torch.zeros((), dtype=torch.long, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    all_outputs: list[Tensor] = []  # for metrics that need all of them
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
            all_outputs.append(outputs.cpu())
    n = part.labels.numel()
    right = int(correct) if task.metric.of_classes else math.nan
    row = {"accuracy": right / n, "loss": float(loss) / n, "correct": right, "n": n}
    metric, score = task.metric, row.get(task.metric.name)
    if metric.score is not None:
        score = metric.score(torch.cat(all_outputs), part.labels.cpu())
    return {**row, "metric": metric.name, "score": score}
