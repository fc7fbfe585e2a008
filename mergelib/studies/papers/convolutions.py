"""Studies of networks with convolutions and BatchNorm.

Each is a function of a zoo that returns tables, lists of rows. See `mergelib.studies.runner`.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mergelib.activations import recalibrate
from mergelib.records.results import Tables
from mergelib.statedict import StateDict, is_kernel
from mergelib.studies.comparison import (
    FIRST_GRIDS,
    Grid,
    best_of,
    choices,
    choose_wide,
    individual,
    merge_zoo,
    records,
)
from mergelib.studies.runner import study
from mergelib.testbed.evaluation import evaluate
from mergelib.testbed.tasks import Zoo

COLUMNS = ["task", "accuracy", "loss"]

# What is searched on a network whose weights are convolutions.
KERNEL_GRIDS: dict[str, Grid] = {
    "average": {},
    "task_arithmetic": {"scale": [0.1, 0.2, 0.3, 0.5]},
    "ties": {"scale": [0.5, 1.0, 1.5]},
    "cart": {"rank_ratio": [0.08, 0.16, 0.32], "scale": [1.0, 2.0, 3.0]},
    **{name: {"scale": [0.5, 1.0, 1.5]} for name in ("tsv", "iso_c")},
}


@study(methods=[])
def kernels(zoo: Zoo, *, grids: Mapping[str, Grid] = KERNEL_GRIDS) -> Tables:
    """Methods on a convolutional network, low-rank ones with its convolutions folded to matrices.

    Unfolded, these average all that is no matrix, and that is the whole network.

    Returns:
        ``test``: rows of ``method``, ``task``, ``accuracy`` and ``loss``, at hyperparameters chosen
        on validation data; ``chosen``: rows of ``method`` and these.
    """
    rows = records(individual(zoo, autocast=True)[COLUMNS].assign(method="individual"))
    states = {"pretrained": zoo.pretrained}
    chosen = []
    for method, grid in grids.items():
        best = best_of(zoo, method, {**grid, "is_matrix": [is_kernel]})
        states[method] = merge_zoo(method, zoo, **best)
        chosen.append({"method": method, **{key: best[key] for key in grid}})
    for method, state in states.items():
        table = evaluate(zoo.model, state, zoo.heads, zoo.suite, autocast=True)
        rows += records(table[COLUMNS].assign(method=method))
    return {"test": rows, "chosen": chosen}


@study(methods=[])
def batch_norm(
    zoo: Zoo,
    *,
    methods: Sequence[str] = ("average", "task_arithmetic", "cart"),
    examples: int = 100,
) -> Tables:
    """Merged networks as they are, and with statistics of BatchNorm measured anew.

    Args:
        zoo: of a network with BatchNorm.
        methods: at settings chosen on validation data.
        examples: training inputs of each task that the statistics are measured on, all together.

    Returns:
        ``test``: rows of ``method``, ``statistics`` (``"merged"`` or ``"measured"``), ``task``,
        ``accuracy`` and ``loss``; ``chosen``: rows of ``method`` and ``settings``.
    """
    rows = records(
        individual(zoo, autocast=True)[COLUMNS].assign(method="individual", statistics="merged")
    )
    chosen = []
    for method in methods:
        best = choose_wide(zoo, method, FIRST_GRIDS[method])[0]
        chosen += choices({method: best})
        merged = merge_zoo(method, zoo, **best)
        measured = measured_anew(zoo, merged, examples)
        for statistics, state in (("merged", merged), ("measured", measured)):
            named = {"method": method, "statistics": statistics}
            table = evaluate(zoo.model, state, zoo.heads, zoo.suite, autocast=True)
            rows += records(table[COLUMNS].assign(**named))
    return {"test": rows, "chosen": chosen}


def measured_anew(zoo: Zoo, state: StateDict, examples: int = 100) -> dict[str, Tensor]:
    """`recalibrate` on the first so many training inputs of every task, mixed, 200 at a time."""
    parts = [task.transform(task.train.inputs[:examples]) for task in zoo.suite.tasks.values()]
    generator = torch.Generator().manual_seed(zoo.suite.seed)
    inputs = torch.cat(parts)
    inputs = inputs[torch.randperm(len(inputs), generator=generator)]
    return recalibrate(zoo.model, state, inputs.split(200))
