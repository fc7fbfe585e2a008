"""What all procedures share: their result, and the checks of what they are given."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mergelib.merging import tied_keys
from mergelib.problems.calling import Transform, Transforms, features, transform_of
from mergelib.problems.examples import IGNORED, Examples, Part, as_examples
from mergelib.rules.arithmetic import average
from mergelib.statedict import StateDict

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Adapted",
    "Labelled",
    "Transform",
    "Transforms",
    "averaged",
    "check_choice",
    "check_classes",
    "check_finite",
    "check_labels",
    "check_tasks",
    "complete",
    "labelled",
    "precise",
    "unlabelled",
]

Labelled = tuple[Tensor | Examples, Tensor]


def _empty() -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame()


@dataclass(frozen=True)
class Adapted:
    """What a procedure gives back.

    Attributes:
        state: the merged state dict.
        coefficients: one row per expert; for AdaMerging one column per tensor of the state dict,
            for soups the column ``weight``. Empty where a procedure has none.
        history: one row per step, as each procedure describes it.
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


def unlabelled(data: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of every task alone, where data come as pairs with labels or without."""
    return {task: part[0] if isinstance(part, tuple) else part for task, part in data.items()}


def check_labels(
    data: Mapping[str, Part],
    model: nn.Module,
    state: StateDict,
    heads: Mapping[str, nn.Module],
    transform: Transforms,
) -> None:
    """Refuse labels that are no classes of their task's head; tasks without labels are passed over.

    One example of each task goes through the model with ``state``, to see what its head gives.

    Raises:
        ValueError: labels of another shape than the predictions or no int64, a class out of range;
            it names the task.
    """
    for task, part in data.items():
        examples = as_examples(part)
        if examples.labels is None:
            continue
        own = transform_of(transform, task)
        shape = heads[task](features(model, state, examples[:1], transform=own)).shape
        labels = examples.labels
        if labels[:1].numel() != shape[:-1].numel():
            raise ValueError(
                f"labels of task {task!r} have shape {tuple(labels.shape)}, "
                f"expected {(len(labels), *shape[1:-1])}"
            )
        check_classes(task, labels, shape[-1], ignoring=len(shape) > 2)


def check_classes(task: str, labels: Tensor, classes: int, *, ignoring: bool = False) -> None:
    """Raise ValueError, naming the task, for labels that are not int64 from 0 to classes - 1.

    Where ``ignoring``, the label `IGNORED` is one of them.
    """
    if labels.dtype != torch.int64:
        raise ValueError(f"labels of task {task!r} are {labels.dtype}, expected torch.int64")
    wrong = (labels < 0) | (labels >= classes)
    if ignoring:
        wrong &= labels != IGNORED
    outside = labels[wrong]
    if len(outside):
        raise ValueError(
            f"task {task!r} has the label {outside[0].item()}, expected 0 to {classes - 1}"
        )


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Raise ValueError for a setting that is none of the known ones."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}, expected {' or '.join(map(repr, known))}")


def check_finite(what: str, tensor: Tensor) -> None:
    """Raise ValueError, naming ``what``, for a tensor with NaN or Inf in it."""
    if not torch.isfinite(tensor).all():
        raise ValueError(f"{what} holds NaN or Inf: look at the inputs")


def check_steps(steps: int, batch_size: int) -> None:
    """Raise ValueError for fewer than no steps, or an empty batch."""
    if steps < 0:
        raise ValueError(f"steps is {steps}, expected at least 0")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, expected at least 1")


def check_positive(name: str, value: float) -> None:
    """Raise ValueError for a setting that is not above 0."""
    if not value > 0:
        raise ValueError(f"{name} is {value}, expected a positive number")


def precise(tensor: Tensor) -> Tensor:
    """The tensor in float32 at least, to compute with."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
