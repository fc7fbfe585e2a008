"""Train experts, merge them, judge the merges: what the studies of several trainings share."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from mergebook.lab.comparison import records
from mergebook.suites.types import Zoo
from mergelib.evaluation.loops import SplitName, evaluate_many
from mergelib.statedict import StateDict

Made = TypeVar("Made")


def train_experts(
    zoo: Zoo,
    train: Callable[..., Made],  # `fine_tune` or `checkpoints`
    tasks: Sequence[str] = (),  # all by default
    *,
    seed: Callable[[str], int] | None = None,  # of a task; by default the suite's for all
    **options: Any,
) -> dict[str, Made]:
    """What a training makes of every task: of the zoo's model and under its heads."""
    return {
        name: train(
            **{"model": zoo.model, "head": zoo.heads[name], "split": task.train}
            | {"transform": task.transform, "loss": task.loss}
            | {"seed": seed(name) if seed else zoo.suite.seed, **options}
        )
        for name, task in zoo.suite.tasks.items()
        if not tasks or name in tasks
    }


def judge_merges(
    zoo: Zoo,
    merges: Mapping[Any, StateDict] | Iterable[tuple[Any, StateDict]],
    split: SplitName = "test",
    *,
    autocast: bool = True,
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The label of each merge with rows of ``task``, ``accuracy`` (0..1) and ``loss`` (nats)."""
    table = evaluate_many(zoo.model, merges, zoo.heads, zoo.suite, split=split, autocast=autocast)
    for row in records(table[["candidate", "task", "accuracy", "loss"]]):
        yield row.pop("candidate"), row
