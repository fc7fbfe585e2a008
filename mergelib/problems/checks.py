"""Checks of a procedure's inputs; each raises ValueError and names the cause."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mergelib.problems.calling import Transforms, evaluating, features, transform_of
from mergelib.problems.examples import IGNORED, Examples, Part, as_examples
from mergelib.statedict import StateDict


def check_tasks(data: Mapping[str, object], known: Mapping[str, object], what: str) -> None:
    """Refuse empty data, and a task without its head or expert (``what``)."""
    if not data:
        raise ValueError("no data: pass inputs of at least one task")
    for task in data:
        if task not in known:
            raise ValueError(f"task {task!r} has no {what}; there are: {', '.join(known)}")


def check_labels(
    data: Mapping[str, Part],
    model: nn.Module,
    state: StateDict,
    heads: Mapping[str, nn.Module],
    transform: Transforms,
) -> None:
    """Refuse labels that are not classes of their task's head; unlabelled tasks are skipped.

    One example of each task passes through the model with ``state`` to obtain the head's shape.
    """
    for task, part in data.items():
        examples = as_examples(part)
        if examples.labels is None:
            continue
        task_transform = transform_of(transform, task)
        with evaluating(heads[task]):
            shape = heads[task](
                features(model, state, examples[:1], transform=task_transform)
            ).shape
        labels = examples.labels
        if labels[:1].numel() != shape[:-1].numel():
            raise ValueError(
                f"labels of task {task!r} have shape {tuple(labels.shape)}, "
                f"expected {(len(labels), *shape[1:-1])}"
            )
        check_classes(task, labels, shape[-1], ignoring=len(shape) > 2)


def check_classes(task: str, labels: Tensor, classes: int, *, ignoring: bool = False) -> None:
    """Refuse labels that are not int64 in 0 to classes - 1, or `IGNORED` if ``ignoring``."""
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


def check_labelled(who: str, data: Mapping[str, Examples]) -> None:
    """Refuse tasks without labels, which ``who`` needs."""
    for task, examples in data.items():
        if examples.labels is None:
            raise ValueError(f"{who} needs labels: pass (inputs, labels) for task {task!r}")


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Refuse a setting that is not one of the known values."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}, expected {' or '.join(map(repr, known))}")


def check_finite(what: str, tensor: Tensor) -> None:
    """Refuse a tensor with NaN or Inf."""
    if not torch.isfinite(tensor).all():
        raise ValueError(f"{what} holds NaN or Inf: look at the inputs")
