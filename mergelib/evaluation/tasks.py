"""Tasks and suites: data, transform, loss and metric, wherever they come from."""

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from mergelib.hashing import digest
from mergelib.messages.brief import Brief

Transform = Callable[[Tensor], Tensor]
# Of outputs and labels: a scalar with a gradient, with ``reduction=`` the ``"mean"`` over all
# labels (by default) or their ``"sum"``.
Loss = Callable[..., Tensor]


def as_stored(inputs: Tensor) -> Tensor:
    """Return inputs unchanged."""
    return inputs


def cross_entropy(outputs: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy in nats of logits ``(..., classes)`` and int64 labels ``(...)``."""
    return F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), reduction=reduction)


@dataclass(frozen=True)
class Metric:
    """The number by which a task is evaluated."""

    name: str  # "accuracy" and "loss" are columns of every evaluation; others need a score
    score: Callable[[Tensor, Tensor], float] | None = None  # of all outputs and labels, on the CPU
    higher_is_better: bool = True
    of_classes: bool = True  # the largest output is the predicted class; False for regression

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
    """A task; label k means ``class_names[k]``."""

    name: str
    class_names: tuple[str, ...]  # a single one for a regression
    train: Split
    validation: Split  # to choose hyperparameters by
    test: Split
    transform: Transform = as_stored  # from a batch of stored inputs to the model's
    loss: Loss = cross_entropy  # what training minimises
    metric: Metric = ACCURACY  # what the task is evaluated by

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
        """The common metric of the suite's tasks, or their scores.

        Raises:
            ValueError: larger is better in some tasks' metrics and worse in others'.
        """
        metrics = {task.metric for task in self.tasks.values()}
        if len(metrics) == 1:
            return metrics.pop()
        if len({metric.higher_is_better for metric in metrics}) > 1:
            names = ", ".join(f"{name}: {task.metric.name}" for name, task in self.tasks.items())
            raise ValueError(
                f"suite {self.name!r} has no common metric, because larger is better for some of "
                f"its tasks only: {names}"
            )
        return Metric("score", higher_is_better=metrics.pop().higher_is_better)
