"""Studies of networks with convolutions and BatchNorm.

Each is a function of a zoo that returns tables, lists of rows. See `mergebook.lab.runner`.
"""

from collections.abc import Mapping, Sequence

from mergebook.lab.comparison import (
    best_of,
    choices,
    choose_wide,
    judged,
    judged_alone,
    measured_anew,
    merge_zoo,
)
from mergebook.lab.grids import FIRST_GRIDS, KERNEL_GRIDS, Grid
from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.suites.types import Zoo
from mergelib.statedict import is_kernel


@study()
def kernels(zoo: Zoo, *, grids: Mapping[str, Grid] = KERNEL_GRIDS) -> Tables:
    """Methods on a convolutional network, low-rank ones with its convolutions folded to matrices.

    Unfolded, these methods average every tensor that is not a matrix: the whole network.

    Returns:
        ``test``: rows of ``method``, ``task``, ``accuracy`` and ``loss``, at hyperparameters chosen
        on validation data; ``chosen``: rows of ``method`` and these.
    """
    rows = judged_alone(zoo)
    states = {"pretrained": zoo.pretrained}
    chosen = []
    for method, grid in grids.items():
        best = best_of(zoo, method, {**grid, "is_matrix": [is_kernel]})
        states[method] = merge_zoo(method, zoo, **best)
        chosen.append({"method": method, **{key: best[key] for key in grid}})
    for method, state in states.items():
        rows += judged(zoo, method, state)
    return {"test": rows, "chosen": chosen}


@study()
def batch_norm(
    zoo: Zoo,
    *,
    methods: Sequence[str] = ("average", "task_arithmetic", "cart"),
    examples: int = 100,
) -> Tables:
    """Merged networks as they are, and with recalibrated BatchNorm statistics.

    Returns:
        ``test``: rows of ``method``, ``statistics`` (``"merged"`` or ``"measured"``), ``task``,
        ``accuracy`` and ``loss``; ``chosen``: rows of ``method`` and ``settings``.
    """
    rows = judged_alone(zoo, statistics="merged")
    chosen = []
    for method in methods:
        best = choose_wide(zoo, method, FIRST_GRIDS[method])[0]
        chosen += choices({method: best})
        merged = merge_zoo(method, zoo, **best)
        rows += judged(zoo, method, merged, statistics="merged")
        measured = measured_anew(zoo, merged, examples)
        rows += judged(zoo, method, measured, statistics="measured")
    return {"test": rows, "chosen": chosen}
