"""Tasks, suites and zoos: what they hold. Types only; nothing here knows where they come from.

A task carries all that judging a model on it takes: its data, the transform from inputs as they are
stored to what a model takes, its loss and its metric. So nothing is guessed from a tensor's rank or
dtype.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from mergelib.hashing import digest
from mergelib.messages.brief import Brief

Transform = Callable[[Tensor], Tensor]


class Loss(Protocol):
    """From outputs and labels to their loss, a scalar with a gradient."""

    def __call__(self, outputs: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
        """The ``"mean"`` over all labels, or their ``"sum"``."""


def as_stored(inputs: Tensor) -> Tensor:
    """No transform: the model takes inputs as they are stored."""
    return inputs


def cross_entropy(outputs: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats of logits ``(..., classes)`` and int64 labels ``(...)``."""
    return F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), reduction=reduction)


@dataclass(frozen=True)
class Metric:
    """The number that judges a task.

    Attributes:
        name: ``"accuracy"`` and ``"loss"`` are columns of every evaluation; any other metric has
            its own score.
        score: from the outputs of all examples and their labels, both on the CPU, to the score.
        higher_is_better: whether good models have high ones.
        of_classes: whether the largest output is the predicted class, so that accuracy means
            something; False for regression.
    """

    name: str
    score: Callable[[Tensor, Tensor], float] | None = None
    higher_is_better: bool = True
    of_classes: bool = True

    @property
    def column(self) -> str:
        """The column of an evaluation's table in which the metric stands."""
        return self.name if self.score is None else "score"


ACCURACY = Metric("accuracy")
LOSS = Metric("loss", higher_is_better=False)


@dataclass(frozen=True, repr=False)
class Split(Brief):
    """Labelled data.

    Pictures: `inputs` uint8 (N, 3, side, side), `labels` int64 (N,). Text: `inputs` uint8 (N, 128),
    `labels` int64 (N, 128), the characters that come next. Other tasks hold what suits them.
    """

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> "Split":
        """At most so many examples, the first ones."""
        return Split(self.inputs[:count], self.labels[:count])


@dataclass(frozen=True, repr=False)
class Task(Brief):
    """A task; label k means ``class_names[k]``.

    Attributes:
        name: of the task.
        class_names: one for each class; a single one for a regression.
        train: labelled data to train on.
        validation: labelled data to choose hyperparameters by.
        test: labelled data to judge by.
        transform: from inputs as stored, a batch of them, to what the model takes.
        loss: what training lowers.
        metric: what the task is judged by.
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
        """Hexadecimal SHA-256 of all its data."""
        splits = (self.train, self.validation, self.test)
        return digest(tensor for split in splits for tensor in (split.inputs, split.labels))


@dataclass(frozen=True, repr=False)
class Suite(Brief):
    """Tasks by name. `sources` maps each data file or renderer to a SHA-256 of what it gave."""

    name: str
    seed: int
    tasks: dict[str, Task]
    sources: dict[str, str]

    @property
    def transforms(self) -> dict[str, Transform]:
        """Each task's transform, as `adapt` takes them."""
        return {name: task.transform for name, task in self.tasks.items()}

    @property
    def metric(self) -> Metric:
        """What judges the suite as a whole: its tasks' common metric, or their scores.

        Raises:
            ValueError: where high is good in some tasks' metrics and low in others'.
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
