"""Evaluation loops: one merged model, or a whole grid of candidates, on every task of a suite.

Inputs stay on the device as bytes, candidates go through one model by `functional_call` (it is
never rebuilt), and the answer is a table. Accuracy is in 0..1.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from mergelib.progress import progress
from mergelib.statedict import StateDict, check_compatible
from mergelib.testbed.models import normalise
from mergelib.testbed.tasks import Split, Suite

SplitName = Literal["train", "validation", "test"]


def evaluate(
    model: nn.Module,
    state: StateDict,
    heads: Mapping[str, nn.Module],
    suite: Suite,
    *,
    split: SplitName = "test",
    device: torch.device | str | None = None,
    autocast: bool = False,
    batch_size: int = 500,
) -> pd.DataFrame:
    """Accuracy and loss of one state dict on every task of a suite.

    Args:
        model: the architecture; its own weights are left alone.
        state: the weights to judge, complete and of the model's shapes.
        heads: a head for each task, features to logits.
        suite: the tasks.
        split: which part of each task.
        device: where to run; by default where the model is.
        autocast: compute in bfloat16 where that is safe.
        batch_size: inputs a forward pass.

    Returns:
        A table with a row a task and the columns ``task``, ``accuracy`` (0..1), ``loss`` (mean
        cross-entropy in nats), ``correct`` and ``n`` (counts of labels: pictures or characters).

    Raises:
        ValueError: a task without a head, or a state dict that does not fit the model.
    """
    table = evaluate_many(
        model,
        {"state": state},
        heads,
        suite,
        split=split,
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
    device: torch.device | str | None = None,
    autocast: bool = False,
    batch_size: int = 500,
) -> pd.DataFrame:
    """`evaluate` over a grid of candidates; a generator of them is consumed one at a time.

    Args:
        candidates: label to state dict, or an iterable of such pairs. Other arguments as in
            `evaluate`.

    Returns:
        The tables of `evaluate`, one below the other, with the label in column ``candidate``.
    """
    for name in suite.tasks:
        if name not in heads:
            raise ValueError(f"task {name!r} has no head; there are: {', '.join(heads)}")
    where = next(model.parameters()).device if device is None else torch.device(device)
    data = {name: _resident(getattr(task, split), where) for name, task in suite.tasks.items()}
    moved = {name: heads[name].to(where) for name in suite.tasks}
    rows = []
    for label, state in _labelled(candidates):
        check_compatible(model.state_dict(), {f"candidate {label!r}": state}, "the model")
        state = {key: value.to(where) for key, value in state.items()}
        for name, part in data.items():
            correct, loss = _judge(model, state, moved[name], part, autocast, batch_size)
            n = part.labels.numel()
            row = {"task": name, "accuracy": correct / n, "loss": loss / n, "correct": correct}
            rows.append({"candidate": label, **row, "n": n})
    return pd.DataFrame(rows)


def _resident(part: Split, device: torch.device) -> Split:
    return Split(part.inputs.to(device), part.labels.to(device))


def _labelled(
    candidates: Mapping[Any, StateDict] | Iterable[tuple[Any, StateDict]],
) -> Iterator[tuple[Any, StateDict]]:
    pairs = candidates.items() if isinstance(candidates, Mapping) else candidates
    bar = progress(pairs, desc="evaluating", leave=False)
    yield from bar


@torch.no_grad()
def _judge(
    model: nn.Module,
    state: Mapping[str, Tensor],
    head: nn.Module,
    part: Split,
    autocast: bool,
    batch_size: int,
) -> tuple[int, float]:
    """Count of right answers and summed loss."""
    training = model.training
    model.eval()
    device = part.labels.device
    correct = torch.zeros((), dtype=torch.long, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    batches = zip(part.inputs.split(batch_size), part.labels.split(batch_size), strict=True)
    for inputs, targets in batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            z = functional_call(model, dict(state), (normalise(inputs),))
        logits, labels = head(z.float()).flatten(0, -2), targets.flatten()
        correct += (logits.argmax(1) == labels).sum()
        loss += F.cross_entropy(logits, labels, reduction="sum")
    model.train(training)
    return int(correct), float(loss)


def normalised(table: pd.DataFrame, individual: pd.DataFrame) -> pd.Series:
    """Normalised accuracy of each row: accuracy over that of the task's own expert."""
    own = individual.set_index("task")["accuracy"]
    return table["accuracy"] / table["task"].map(own)
