"""Task vectors: how they lie, what they move, which scale they want, and what subtracting costs."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import normalize

from mergebook.chapters import interference
from mergebook.lab.comparison import accuracies, merge_zoo, sub_zoo
from mergebook.lab.results import load_table
from mergebook.suites.heads import features
from mergebook.suites.types import (
    Zoo,
)
from mergelib.evaluation.loops import SplitName, evaluate_many
from mergelib.statedict import StateDict, add, subtract

# Records of `baselines` that hold task arithmetic's validation accuracy by scale, and their tasks.
RECORDED = {f"{family}{count}": count for family in ("glyphs", "vision") for count in (8, 14, 20)}
REAL = {"imagenet8": 8, "imagenet14": 14, "imagenet20": 20, "lite8": 8, "sentences8": 8}


def task_vectors(zoo: Zoo) -> dict[str, dict[str, Tensor]]:
    """Every expert minus the pretrained model, by task."""
    return {name: subtract(expert, zoo.pretrained) for name, expert in zoo.experts.items()}


def cosines(zoo: Zoo) -> pd.DataFrame:
    """Cosines of the angles between task vectors, tasks by tasks."""
    rows = normalize(interference.task_vectors(zoo).double())
    names = list(zoo.experts)
    return pd.DataFrame((rows @ rows.T).cpu().numpy(), names, names)


def disturbance(zoo: Zoo, pictures: int = 50) -> pd.DataFrame:
    """How far the task vector of the row moves the features of the column's pictures.

    Relative to how far the column's own task vector moves them, see chapter 02.
    """
    device = next(iter(zoo.pretrained.values())).device
    tasks = zoo.suite.tasks
    sample = {name: task.validation.inputs[:pictures].to(device) for name, task in tasks.items()}
    network = copy.deepcopy(zoo.model)

    def seen_by(state: StateDict) -> Tensor:
        network.load_state_dict(state)
        seen = [features(network, sample[name], task.transform) for name, task in tasks.items()]
        return torch.stack(seen)

    origin = seen_by(zoo.pretrained)
    moved = torch.stack(
        [(seen_by(expert) - origin).norm(dim=2).sum(1) for expert in zoo.experts.values()]
    )
    names = list(tasks)
    return pd.DataFrame((moved / moved.diagonal()).cpu().numpy(), names, names)


def sweep_scales(
    zoo: Zoo,
    groups: Iterable[Sequence[str]],
    scales: Sequence[float],
    *,
    split: SplitName = "validation",
) -> pd.DataFrame:
    """Task arithmetic on groups of tasks at every scale, judged on the tasks of the group.

    Returns:
        One row per group and scale: ``tasks`` (their number), ``run`` (the group's names),
        ``scale``, and means over the group's tasks of ``accuracy`` (0..1) and ``loss`` (nats).
    """
    tables = []
    for group in groups:
        part = sub_zoo(zoo, group)
        merged = ((scale, merge_zoo("task_arithmetic", part, scale=scale)) for scale in scales)
        table = evaluate_many(part.model, merged, part.heads, part.suite, split=split)
        means = table.groupby("candidate")[["accuracy", "loss"]].mean().reset_index(names="scale")
        tables.append(means.assign(tasks=len(group), run=" ".join(group)))
    return pd.concat(tables, ignore_index=True)[["tasks", "run", "scale", "accuracy", "loss"]]


def lowest(curve: "pd.Series[float]") -> float:
    """Where a curve is least: the vertex of the parabola through the three points around it.

    NaN if the least of its points lies at an end, where nothing says how it goes on.
    """
    middle = int(curve.argmin())
    if not 0 < middle < len(curve) - 1:
        return math.nan
    nearby = curve.iloc[middle - 1 : middle + 2]
    square, linear, _ = np.polyfit(nearby.index.to_numpy(float), nearby.to_numpy(float), 2)
    return float(-linear / (2 * square))


def recorded_sweeps(records: Mapping[str, int] | None = None) -> pd.DataFrame:
    """Validation accuracy of task arithmetic by scale, from the shipped records.

    Returns:
        Columns ``suite``, ``tasks``, ``run`` (the seed), ``scale``, ``accuracy``.
    """
    tables = []
    for suite, count in (records or RECORDED).items():
        table = load_table(f"{suite}-baselines", "validation").query("method == 'task_arithmetic'")
        table = table.rename(columns={"seed": "run"})[["run", "scale", "accuracy"]]
        tables.append(table.assign(suite=suite, tasks=count))
    return pd.concat(tables, ignore_index=True)


def cost_of_rules(sweeps: pd.DataFrame, rules: Mapping[str, float | str]) -> pd.DataFrame:
    """What it costs to take a scale by a rule of thumb in place of the best one of a grid.

    Between two scales of the grid accuracy is read from the straight line that joins them.

    Returns:
        One row per sweep and rule: the columns that tell sweeps apart, ``best`` (the scale of the
        highest accuracy), ``rule``, ``scale``, and ``cost``, accuracy lost, in points (0..100); NaN
        where a rule's scale lies outside the grid.
    """
    keys = [str(key) for key in sweeps if key not in ("scale", "accuracy", "loss")]
    rows = []
    for values, sweep in sweeps.groupby(keys, sort=False):
        curve = sweep.set_index("scale")["accuracy"].sort_index()
        known: dict[str, Any] = dict(zip(keys, values, strict=True))
        for rule, scale in rules.items():
            chosen = _scale(scale, known["tasks"])
            inside = curve.index[0] <= chosen <= curve.index[-1]
            at = np.interp(chosen, curve.index, curve) if inside else np.nan
            cost = 100 * (curve.max() - at)
            best = curve.index[int(curve.argmax())]
            rows.append({**known, "best": best, "rule": rule, "scale": chosen, "cost": cost})
    return pd.DataFrame(rows)


def _scale(rule: float | str, tasks: int) -> float:
    return float(rule.removesuffix("/T")) / tasks if isinstance(rule, str) else rule


def forget(zoo: Zoo, scales: Sequence[float], *, keep: float = 0.95) -> pd.DataFrame:
    """Subtract each task's vector in turn, as far as the other tasks allow on validation pictures.

    Returns:
        One row per forgotten task: ``scale``, and test accuracy (0..1) of the ``target`` and the
        mean of all others, the ``control``, each ``before`` and ``after``.
    """
    vectors, names = task_vectors(zoo), list(zoo.experts)
    whole = accuracies(zoo, {"none": zoo.pretrained}, "validation").loc["none"]
    chosen: dict[str, float] = {}
    for name in names:
        tried = {scale: add(zoo.pretrained, vectors[name], -scale) for scale in scales}
        others = accuracies(zoo, tried, "validation").drop(columns=name).mean(axis=1)
        enough = keep * whole.drop(name).mean()
        chosen[name] = max((s for s in scales if others[s] >= enough), default=0.0)
    models = {name: add(zoo.pretrained, vectors[name], -chosen[name]) for name in names}
    after = accuracies(zoo, models, "test")
    before = accuracies(zoo, {"none": zoo.pretrained}, "test").loc["none"]
    rows = {
        name: {
            "scale": chosen[name],
            "target before": before[name],
            "target after": after.loc[name, name],
            "control before": before.drop(name).mean(),
            "control after": after.loc[name].drop(name).mean(),
        }
        for name in names
    }
    return pd.DataFrame.from_dict(rows, orient="index")
