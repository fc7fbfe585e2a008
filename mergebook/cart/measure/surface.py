"""Where the best rank and scale are, what tells it without labels, and how experts lie."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mergebook.lab.comparison import cut, merge_zoo, sub_zoo
from mergebook.lab.results import Rows, Tables
from mergebook.lab.runner import study
from mergebook.suites.types import Zoo
from mergelib.evaluation.loops import evaluate
from mergelib.problems.calling import features
from mergelib.rules.low_rank import rank_of
from mergelib.statedict import StateDict, flatten, is_statistic
from mergelib.tuning import Grid, merged_grid, points

RATIOS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
SCALES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
UNCENTRED: Grid = {"rank_ratio": [0.08, 1.0], "scale": [0.3]}


@study()
def surface(
    zoo: Zoo,
    *,
    rank_ratios: Sequence[float] = RATIOS,
    scales: Sequence[float] = SCALES,
    counts: Sequence[int] = (),
    inputs: int = 40,
    pictures: int = 100,
) -> Tables:
    """Accuracy over rank and scale, centred (CART) and not, and what `told` says without labels.

    ``test``: rows of ``count``, ``method``, ``rank_ratio``, ``scale``, ``task``, ``accuracy``, the
    columns of `told`, and ``distance``, ‖θ − θ_avg‖ over the mean ‖θ_t − θ_avg‖.
    """
    generator = torch.Generator().manual_seed(zoo.suite.seed)
    names = list(zoo.suite.tasks)
    grids: dict[str, Grid] = {
        "cart": {"rank_ratio": list(rank_ratios), "scale": list(scales)},
        "low_rank_task_arithmetic": UNCENTRED,
    }
    rows: Rows = []
    for count in counts or (len(names),):
        order = torch.randperm(len(names), generator=generator)[:count].tolist()
        part = cut(sub_zoo(zoo, [names[i] for i in sorted(order)]), pictures)
        rows += [{"count": count, **row} for row in _plane(part, grids, inputs)]
    return {"test": rows}


def _plane(zoo: Zoo, grids: Mapping[str, Grid], inputs: int) -> Rows:
    average = merge_zoo("average", zoo)
    centre = flatten(average)
    spread = torch.stack([(flatten(e) - centre).norm() for e in zoo.experts.values()]).mean()

    def see(name: str, state: StateDict) -> Tensor:
        task = zoo.suite.tasks[name]
        return features(zoo.model, state, task.validation.inputs[:inputs], transform=task.transform)

    own = {
        name: (see(name, zoo.experts[name]), see(name, zoo.pretrained)) for name in zoo.suite.tasks
    }

    def candidates() -> Iterator[tuple[dict[str, Any], StateDict]]:
        yield {"method": "cart", "rank_ratio": 1.0, "scale": 0.0}, average
        for method, grid in grids.items():
            for i, state in merged_grid(partial(merge_zoo, method, zoo), method, grid):
                yield {"method": method, **points(grid)[i]}, state

    rows = []
    for point, state in candidates():
        distance = float((flatten(state) - centre).norm() / spread)
        table = evaluate(zoo.model, state, zoo.heads, zoo.suite).set_index("task")
        for name, references in own.items():
            seen = told(see(name, state), *references, zoo.heads[name])
            row = {"accuracy": table["accuracy"][name], **seen, "distance": distance}
            rows.append({**point, "task": name, **row})
    return rows


def told(
    merged: Tensor, expert: Tensor, pretrained: Tensor, head: torch.nn.Module
) -> dict[str, float]:
    """What features ``(N, width)`` of the same inputs tell of a merged model, without labels.

    With unit features z, z_0 and z_e of merged model, pretrained one and expert, z − z_0 is
    ``signal`` · (z_e − z_0) + an orthogonal rest, whose length relative to that of z_e − z_0 is
    ``interference``; ``error`` is ‖z − z_e‖² / ‖z_e − z_0‖², ``agreement`` with the expert a share,
    ``entropy`` in nats.
    """
    z, z_expert, z_start = (F.normalize(x, dim=1) for x in (merged, expert, pretrained))
    aim, moved = z_expert - z_start, z - z_start
    length = aim.square().sum()
    signal = (moved * aim).sum() / length
    logits = head(merged)
    shares = logits.log_softmax(1)
    return {
        "signal": float(signal),
        "interference": float(((moved - signal * aim).square().sum() / length).sqrt()),
        "error": float((z - z_expert).square().sum() / length),
        "entropy": float(-(shares.exp() * shares).sum(1).mean()),
        "agreement": float((logits.argmax(1) == head(expert).argmax(1)).float().mean()),
    }


@study()
def geometry(zoo: Zoo, *, rank_ratios: Sequence[float] = RATIOS) -> Tables:
    """Lengths, angles and spectra of task vectors, uncentred (τ_t = θ_t − θ_0) and centred.

    ``tasks``: ``length`` is ‖τ_t‖ / ‖θ_0‖; ``pairs``: the ``cosine`` of ``task`` and ``other``;
    ``spectra``: ``kept`` is the share (0..1) of all matrices' squared norm at a ``rank_ratio``.
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
