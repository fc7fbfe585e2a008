"""Does merging more experts hurt by itself? The control to a law of Li et al. (2026, V-B5).

Experts of one task, with one head, differ in the order and in the half of the rows that they see:
there is no heterogeneity of tasks among them. Beside them stand experts of different tasks, trained
in the same way, and judged on the same task.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from mergebook.lab.comparison import merge_zoo, scores
from mergebook.lab.experts import train_experts
from mergebook.lab.results import Rows, Tables
from mergebook.lab.runner import beginning_of, study
from mergebook.suites.training import checkpoints
from mergebook.suites.types import Zoo
from mergelib.evaluation.tasks import Split
from mergelib.hashing import stable_seed


@study(load=beginning_of)
def repeats(
    zoo: Zoo,
    *,
    tasks: int = 3,  # the first ones are judged
    counts: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8),  # of experts to average
    share: float = 0.5,  # of a task's training rows, drawn again for each expert
    steps: int = 100,
    learning_rate: float = 4e-4,  # of Adam, constant, without decay
    batch_size: int = 32,
) -> Tables:
    """Averages of ever more experts of one task, and of different tasks, judged on that task.

    Returns:
        ``test``: rows of ``task``, ``kind`` (``same`` or ``different`` tasks; the judged task's
        expert is in both), ``count``, ``accuracy`` (0..1) and ``loss`` (nats).
    """
    names = list(zoo.suite.tasks)
    if max(counts) > len(names):
        raise ValueError(f"{max(counts)} experts to merge, but there are {len(names)} tasks")
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}, expected a number above 0 and at most 1")
    training = {"learning_rate": learning_rate, "batch_size": batch_size, "optimiser": "adam"}

    def trained(name: str, number: int) -> dict[str, Tensor]:
        train = zoo.suite.tasks[name].train
        seed = stable_seed("repeats", name, number, zoo.suite.seed)
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
        rows = order[: max(1, round(share * len(order)))]
        options = {"split": Split(train.inputs[rows], train.labels[rows]), "steps": [steps]}
        found = train_experts(zoo, checkpoints, [name], seed=lambda _: seed, **options, **training)
        return found[name][steps]

    first = {name: trained(name, 0) for name in names}
    table: Rows = []
    for place, name in enumerate(names[:tasks]):
        kinds = {
            "same": [first[name], *(trained(name, number) for number in range(1, max(counts)))],
            "different": [first[other] for other in [*names[place:], *names[:place]]],
        }
        for (kind, experts), count in product(kinds.items(), counts):
            named = {str(number): expert for number, expert in enumerate(experts[:count])}
            state = merge_zoo("average", replace(zoo, experts=named))
            for row in scores(zoo, state, zoo.heads, [name], {"": "test"}):
                table.append({"kind": kind, "count": count, **row})
    return {"test": table}
