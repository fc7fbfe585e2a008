"""How experts lie in weight space: lengths, angles and spectra of their task vectors.

A function of a zoo that returns tables, lists of rows. See `mergebook.lab.runner`.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from mergebook.cart.measure.surface import RATIOS
from mergebook.lab.comparison import merge_zoo
from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.suites.types import Zoo
from mergelib.rules.low_rank import rank_of
from mergelib.statedict import StateDict, flatten, is_statistic


@study()
def geometry(zoo: Zoo, *, rank_ratios: Sequence[float] = RATIOS) -> Tables:
    """Lengths, angles and spectra of task vectors, uncentred (τ_t = θ_t − θ_0) and centred.

    Statistics of BatchNorm are left out.

    Returns:
        ``tasks``: rows of ``task``, ``parameters`` and ``length``, ‖τ_t‖ / ‖θ_0‖; ``pairs``: rows
        of ``task``, ``other`` and their ``cosine``; ``spectra``: rows of ``task``, ``centred``,
        ``rank_ratio`` and ``kept``, the share of the squared norm of all matrices that is left
        when each is cut to that rank, 0..1.
    """
    weights = {key: value for key, value in zoo.pretrained.items() if not is_statistic(key)}
    start = flatten(weights)
    average = merge_zoo("average", zoo)
    own = {name: {key: e[key] for key in weights} for name, e in zoo.experts.items()}
    vectors = {task: flatten(expert) - start for task, expert in own.items()}
    tables: Tables = {"tasks": [], "pairs": [], "spectra": []}
    for task, vector in vectors.items():
        length = float(vector.norm() / start.norm())
        tables["tasks"].append({"task": task, "parameters": start.numel(), "length": length})
        for other, second in vectors.items():
            if other != task:
                cosine = float(F.cosine_similarity(vector, second, dim=0))
                tables["pairs"].append({"task": task, "other": other, "cosine": cosine})
        for centred, origin in ((False, zoo.pretrained), (True, average)):
            kept = _kept(zoo, zoo.experts[task], origin, rank_ratios)
            for ratio, share in zip(rank_ratios, kept, strict=True):
                row = {"task": task, "centred": centred, "rank_ratio": ratio, "kept": share}
                tables["spectra"].append(row)
    return tables


def _kept(
    zoo: Zoo, expert: StateDict, origin: StateDict, rank_ratios: Sequence[float]
) -> list[float]:
    """Share of the squared norm of all matrices that is left at every rank."""
    left, whole = torch.zeros(len(rank_ratios), dtype=torch.float64), 0.0
    for key, tensor in origin.items():
        if not zoo.is_matrix(key, tensor):
            continue
        energy = torch.linalg.svdvals((expert[key] - tensor).flatten(1)).double().square()
        whole += float(energy.sum())
        for i, ratio in enumerate(rank_ratios):
            left[i] += energy[: rank_of(tensor.flatten(1).shape, ratio, "ceil")].sum()
    return [float(value) / whole for value in left]
