"""Tasks and suites: types only."""

from dataclasses import dataclass

from torch import Tensor

from mergelib.testbed.models import is_text


@dataclass(frozen=True)
class Split:
    """Labelled data.

    Pictures: `inputs` uint8 (N, 3, side, side), `labels` int64 (N,). Text: `inputs` uint8 (N, 128),
    `labels` int64 (N, 128), the characters that come next.
    """

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Task:
    """A task; label k means ``class_names[k]``."""

    name: str
    class_names: tuple[str, ...]
    train: Split
    validation: Split
    test: Split


@dataclass(frozen=True)
class Suite:
    """Tasks by name. `sources` maps each data file or renderer to a SHA-256 of what it gave."""

    name: str
    seed: int
    tasks: dict[str, Task]
    sources: dict[str, str]

    @property
    def is_text(self) -> bool:
        """Whether its tasks are texts, judged by loss, and not pictures, judged by accuracy."""
        return any(is_text(task.test.inputs) for task in self.tasks.values())


@dataclass(frozen=True)
class PretrainingSet:
    """Labelled data for pretraining, never a task of a suite; `sha256` of the source."""

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split
    sha256: str
