"""Tasks and suites: data, transform, loss and metric, wherever they come from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from mergelib.hashing import digest
from mergelib.messages.brief import Brief

Transform = Callable[[Tensor], Tensor]


class Loss(Protocol):
    """Loss of outputs and labels: a scalar with a gradient."""

    def __call__(self, outputs: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
        """Return the ``"mean"`` over all labels, or their ``"sum"``."""


def as_stored(inputs: Tensor) -> Tensor:
    """Return inputs unchanged."""
    return inputs


def cross_entropy(outputs: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy in nats of logits ``(..., classes)`` and int64 labels ``(...)``."""
    return F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), reduction=reduction)


@dataclass(frozen=True)
class Metric:
    """The number by which a task is evaluated.

    Attributes:
        name: ``"accuracy"`` and ``"loss"`` are columns of every evaluation; other metrics need a
            score.
        score: function of all outputs and labels, both on the CPU.
        higher_is_better: whether larger is better.
        of_classes: whether the largest output is the predicted class; False for regression.
    """

    name: str
    score: Callable[[Tensor, Tensor], float] | None = None
    higher_is_better: bool = True
    of_classes: bool = True

    @property
    def column(self) -> str:
        """The metric's column in an evaluation table."""
        return self.name if self.score is None else "score"


ACCURACY = Metric("accuracy")
LOSS = Metric("loss", higher_is_better=False)


@dataclass(frozen=True, repr=False)
class Split(Brief):
    """Labelled data.

    Images: `inputs` uint8 (N, 3, side, side), `labels` int64 (N,). Text: `inputs` uint8 (N, 128),
    `labels` int64 (N, 128), the next characters. Other tasks use their own formats.
    """

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> "Split":
        """Return at most ``count`` examples, the first ones."""
        return Split(self.inputs[:count], self.labels[:count])


@dataclass(frozen=True, repr=False)
class Task(Brief):
    """A task; label k means ``class_names[k]``.

    Attributes:
        name: of the task.
        class_names: one per class; a single one for a regression.
        train: labelled data to train on.
        validation: labelled data to choose hyperparameters by.
        test: labelled data to evaluate on.
        transform: from a batch of stored inputs to the model's.
        loss: what training minimises.
        metric: what the task is evaluated by.
    """

    name: str
    class_names: tuple[str, ...]
    train: Split
    validation: Split
    test: Split
    transform: Transform = as_stored
    loss: Loss = cross_entropy
    metric: Metric = ACCURACY

    def sha256(self) -> str:
        """Return the hexadecimal SHA-256 of all its data."""
        splits = (self.train, self.validation, self.test)
        return digest(tensor for split in splits for tensor in (split.inputs, split.labels))


@dataclass(frozen=True, repr=False)
class Suite(Brief):
    """Tasks by name. `sources` maps each data file or renderer to a SHA-256 of its output."""

    name: str
    seed: int
    tasks: dict[str, Task]
    sources: dict[str, str]

    @property
    def transforms(self) -> dict[str, Transform]:
        """Each task's transform, as `adapt` accepts them."""
        return {name: task.transform for name, task in self.tasks.items()}

    @property
    def metric(self) -> Metric:
        """The suite's metric: the common metric of its tasks, or their scores.

        Raises:
            ValueError: larger is better in some tasks' metrics and worse in others'.
        """
        metrics = {task.metric for task in self.tasks.values()}
        if len(metrics) == 1:
            return metrics.pop()
        if len({metric.higher_is_better for metric in metrics}) > 1:
            names = ", ".join(f"{name}: {task.metric.name}" for name, task in self.tasks.items())
            raise ValueError(
                f"suite {self.name!r} has no common direction, its tasks' metrics are {names}"
            )
        return Metric("score", higher_is_better=metrics.pop().higher_is_better)
