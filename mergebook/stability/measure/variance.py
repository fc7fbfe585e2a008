"""Does less variance of task vectors go with a better merge? (Li et al., 2026, Corollary 1)."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mergebook.lab.comparison import cut
from mergebook.lab.experts import judge_merges
from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.stability.theory import variance as masks
from mergebook.suites.types import Zoo
from mergelib.rules.sparse import drop_and_rescale
from mergelib.statedict import StateDict, flatten, is_statistic, unflatten

DENSITIES = (0.5, 0.2, 0.1, 0.05)
MULTIPLES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6)
CONTROLS = ("elect the minority", "shrink")
PIECE = 2**15  # coordinates at a time, so that they stay in the cache

Point = tuple[str, float]


@study()
def variance(
    zoo: Zoo,
    *,
    densities: Sequence[float] = DENSITIES,  # shares that trimming and dropping keep, in (0, 1]
    multiples: Sequence[float] = MULTIPLES,  # of the average's projection; none: only λ = 1/T
    pictures: int = 200,  # test examples of each task, at most, and half as many for validation
) -> Tables:
    """What masks do to the variance of task vectors, and to the loss of the merge.

    The merge is θ_0 + λ Σ_t M(Δ_t), at λ = 1/T, and at a scale by validation loss, given by the
    step's projection on that of the average, so that all operators search one range. M are "none";
    "trim"; "elect", with T equal votes; "trim, elect" of TIES; "drop", DARE; at 1/T only "elect the
    minority", of the wrong sign, and "shrink" by the density. ``variance``: by ``operator`` and
    ``density``, ``raw``, the summed variance over that of the task vectors, ``relative``
    (`relative_variance`), and shares of ``experts`` with δ_t > 0, over all entries and over
    ``experts_zeroed`` (Eq. 10). ``test``: also ``scale`` (``printed``, ``chosen``), ``projection``,
    ``task``, ``accuracy``, ``loss`` (nats).
    """
    zoo = cut(zoo, pictures)
    kept = {key: value for key, value in zoo.pretrained.items() if not is_statistic(key)}
    start = flatten(kept)
    rows = torch.stack([flatten({k: e[k] for k in kept}) for e in zoo.experts.values()]) - start
    mean = rows.mean(0)
    steps: dict[Point, Tensor] = {}
    projections: dict[Point, float] = {}
    tables: Tables = {"variance": [], "test": []}
    for operator, density, after in masked(rows, densities, zoo.suite.seed):
        point = operator, density
        steps[point] = after.mean(0)
        projections[point] = float(steps[point] @ mean / (mean @ mean))
        row = {"operator": operator, "density": density, **changes(rows, after)}
        tables["variance"].append(row)

    def merge(point: Point, projection: float) -> StateDict:
        vector = start + projection / projections[point] * steps[point]
        return {**zoo.pretrained, **unflatten(vector, kept)}

    chosen = {}
    for point in (each for each in steps if multiples and each[0] not in CONTROLS):
        losses = dict.fromkeys(multiples, 0.0)
        tried = ((multiple, merge(point, multiple)) for multiple in multiples)
        for multiple, row in judge_merges(zoo, tried, "validation"):
            losses[multiple] += row["loss"]
        chosen[point] = min(losses, key=lambda multiple: losses[multiple])
    for scale, places in {"printed": projections, "chosen": chosen}.items():
        merges = ((point, merge(point, projection)) for point, projection in places.items())
        for point, row in judge_merges(zoo, merges) if places else ():
            named = {"operator": point[0], "density": point[1], "projection": places[point]}
            tables["test"].append({"scale": scale, **named, **row})
    return tables


def masked(
    rows: Tensor, densities: Sequence[float], seed: int
) -> Iterator[tuple[str, float, Tensor]]:
    """Every operator of `variance` and its density, with the rows that it makes, ``(T, n)``."""
    generator = torch.Generator().manual_seed(seed)
    yield "none", 1.0, rows
    yield "elect", 1.0, masks.elect_rows(rows)
    yield "elect the minority", 1.0, masks.elect_rows(rows, minority=True)
    for density in densities:
        trimmed = masks.trim_rows(rows, density)
        yield "trim", density, trimmed
        yield "trim, elect", density, masks.elect_rows(trimmed)
        draws = [drop_and_rescale(row, 1 - density, generator) for row in rows]
        yield "drop", density, torch.stack(draws)
        yield "shrink", density, density * rows


def changes(before: Tensor, after: Tensor) -> dict[str, Any]:
    """The columns of `variance`'s table, but for the operator, with equal weights."""
    experts = torch.zeros(2, len(before), dtype=torch.float64)
    raw = torch.zeros(2, dtype=torch.float64)
    for old, new in zip(before.split(PIECE, dim=1), after.split(PIECE, dim=1), strict=True):
        fallen, zeroed = masks.reduction(old, new), (old != 0) & (new == 0)
        sums = [fallen.sum(1, dtype=torch.float64), (fallen * zeroed).sum(1, dtype=torch.float64)]
        experts += torch.stack(sums).cpu()
        variances = [masks.task_variance(part) for part in (old, new)]
        raw += torch.stack([part.sum(dtype=torch.float64) for part in variances]).cpu()
    apart, zeroed = (experts > 0).double().mean(1).tolist()
    shares = {"experts": apart, "experts_zeroed": zeroed}
    return {"raw": float(raw[1] / raw[0]), "relative": masks.relative_variance(after), **shares}
