"""What all procedures share: their result, and how the data they are given is checked."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mergelib.merging import tied_keys
from mergelib.rules.arithmetic import average
from mergelib.statedict import StateDict

if TYPE_CHECKING:
    import pandas as pd

Transform = Callable[[Tensor], Tensor]
Labelled = tuple[Tensor, Tensor]


def _empty() -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame()


@dataclass(frozen=True)
class Adapted:
    """What a procedure made.

    Attributes:
        state: the merged state dict.
        coefficients: a row an expert; for AdaMerging a column a tensor of the state dict, for soups
            the column ``weight``. Empty where a procedure has none.
        history: a row a step, as each procedure describes it.
        heads: task to a head that takes the place of the given one, where a procedure makes some.
    """

    state: dict[str, Tensor]
    coefficients: "pd.DataFrame" = field(default_factory=_empty)
    history: "pd.DataFrame" = field(default_factory=_empty)
    heads: Mapping[str, nn.Module] = field(default_factory=dict)


def complete(merged: Mapping[str, Tensor], pretrained: StateDict) -> dict[str, Tensor]:
    """Merged tensors with counters copied and ties kept, in the order of the pretrained model."""
    aliases = tied_keys(pretrained)
    state: dict[str, Tensor] = {}
    for key, tensor in pretrained.items():
        if key in aliases:
            state[key] = state[aliases[key]]
        else:
            state[key] = merged[key] if key in merged else tensor.clone()
    return state


def averaged(
    experts: Mapping[str, StateDict], pretrained: StateDict, done: Collection[str]
) -> dict[str, Tensor]:
    """The plain average of every floating tensor that a procedure has not ``done``."""
    return {
        key: average([expert[key].float() for expert in experts.values()]).to(tensor.dtype)
        for key, tensor in pretrained.items()
        if key not in done and tensor.is_floating_point()
    }


def check_tasks(data: Mapping[str, object], known: Mapping[str, object], what: str) -> None:
    """Raise ValueError for no data, or for a task that lacks its head or expert (``what``)."""
    if not data:
        raise ValueError("no data: pass inputs of at least one task")
    for task in data:
        if task not in known:
            raise ValueError(f"task {task!r} has no {what}; there are: {', '.join(known)}")


def labelled(data: Mapping[str, object], method: str) -> dict[str, Labelled]:
    """Data of a method that needs labels, checked: task to inputs and labels, of one length.

    Raises:
        ValueError: inputs without labels, or not one for each; it names the task.
    """
    checked = {}
    for task, part in data.items():
        if not (isinstance(part, tuple) and len(part) == 2):
            raise ValueError(f"{method} needs labels: pass (inputs, labels) for task {task!r}")
        inputs, labels = part
        if len(inputs) != len(labels):
            raise ValueError(f"task {task!r} has {len(inputs)} inputs and {len(labels)} labels")
        if not len(inputs):
            raise ValueError(f"task {task!r} has no inputs")
        checked[task] = (inputs, labels)
    return checked


def check_labels(
    data: Mapping[str, tuple[Tensor, Tensor | None]],
    model: nn.Module,
    state: StateDict,
    heads: Mapping[str, nn.Module],
    transform: Transform | None,
) -> None:
    """Refuse labels that are no classes of their task's head; tasks without labels are passed over.

    One example of each task goes through the model with ``state``, to see what its head gives.

    Raises:
        ValueError: labels of another shape than the predictions or no int64, a class out of range;
            it names the task.
    """
    for task, (inputs, labels) in data.items():
        if labels is None:
            continue
        shape = heads[task](features(model, state, inputs[:1], transform=transform)).shape
        if labels[:1].numel() != shape[:-1].numel():
            raise ValueError(
                f"labels of task {task!r} have shape {tuple(labels.shape)}, "
                f"expected {(len(labels), *shape[1:-1])}"
            )
        check_classes(task, labels, shape[-1])


def check_classes(task: str, labels: Tensor, classes: int) -> None:
    """Raise ValueError, naming the task, for labels that are not int64 from 0 to classes - 1."""
    if labels.dtype != torch.int64:
        raise ValueError(f"labels of task {task!r} are {labels.dtype}, expected torch.int64")
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        raise ValueError(
            f"task {task!r} has the label {outside[0].item()}, expected 0 to {classes - 1}"
        )


def unlabelled(data: Mapping[str, Any]) -> dict[str, Tensor]:
    """The inputs of every task alone, where data come with labels or without.

    Raises:
        ValueError: a task without inputs.
    """
    inputs = {task: part[0] if isinstance(part, tuple) else part for task, part in data.items()}
    for task, part in inputs.items():
        if not len(part):
            raise ValueError(f"task {task!r} has no inputs")
    return inputs


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Raise ValueError for a setting that is none of the known ones."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}, expected {' or '.join(map(repr, known))}")


def check_finite(what: str, tensor: Tensor) -> None:
    """Raise ValueError, naming ``what``, for a tensor with NaN or Inf in it."""
    if not torch.isfinite(tensor).all():
        raise ValueError(f"{what} holds NaN or Inf: look at the inputs")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and afterwards in the mode it was in."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@torch.no_grad()
def features(
    model: nn.Module,
    state: StateDict,
    inputs: Tensor,
    *,
    batch_size: int = 500,
    transform: Transform | None = None,
) -> Tensor:
    """What a model gives its head, in evaluation mode: inputs to features ``(N, …, width)``."""
    device = next(model.parameters()).device
    here = {key: value.to(device) for key, value in state.items()}
    parts = []
    with evaluating(model):
        for batch in inputs.split(batch_size):
            ready = batch.to(device) if transform is None else transform(batch.to(device))
            parts.append(functional_call(model, here, (ready,)))
    return torch.cat(parts)


def precise(tensor: Tensor) -> Tensor:
    """The tensor in float32 at least, to compute with."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
