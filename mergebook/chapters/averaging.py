"""Losses on straight lines between networks, their barriers (Entezari et al., 2022), and scales."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from mergebook.lab.results import load_table
from mergebook.suites.models import Head
from mergebook.suites.training import Recipe, fine_tune
from mergelib.evaluation.loops import evaluate_many
from mergelib.evaluation.tasks import Split, Suite
from mergelib.statedict import StateDict, lerp
from mergelib.training import seeded

POSITIONS = tuple(np.linspace(0, 1, 9).tolist())
WIDTH = 128

# Stored results with task arithmetic's validation accuracy for each scale, and numbers of tasks.
RECORDED = {f"{family}{count}": count for family in ("glyphs", "vision") for count in (8, 14, 20)}
REAL = {"imagenet8": 8, "imagenet14": 14, "imagenet20": 20, "lite8": 8, "sentences8": 8}


def walk(
    model: nn.Module,
    start: StateDict,
    end: StateDict,
    heads: Mapping[str, nn.Module],
    suite: Suite,
    *,
    positions: Sequence[float] = POSITIONS,
) -> pd.DataFrame:
    """Return test accuracy (0..1) and loss (nats) per task at points (1 − α)·start + α·end."""
    points = ((position, lerp(start, end, position)) for position in positions)
    table = evaluate_many(model, points, heads, suite)
    table = table.rename(columns={"candidate": "position"})
    return table[["position", "task", "accuracy", "loss"]]


def loss_barrier(path: pd.DataFrame) -> float:
    """Return how far one task's loss rises above the chord between its ends, in nats."""
    position, loss = path["position"].to_numpy(float), path["loss"].to_numpy(float)
    if (position[0], position[-1]) != (0.0, 1.0):
        raise ValueError(f"the line runs from {position[0]} to {position[-1]}, expected 0 to 1")
    return float((loss - ((1 - position) * loss[0] + position * loss[-1])).max())


@dataclass(frozen=True)
class Perceptrons:
    """Three perceptrons of one task and their common frozen random head."""

    suite: Suite  # with the one task, and inputs as the networks take them
    model: nn.Module
    heads: dict[str, nn.Module]
    first: StateDict
    same: StateDict  # from the same initial weights, trained on the images in another order
    separate: StateDict | None  # from other initial weights, and in another order

    def walk(self, end: StateDict) -> pd.DataFrame:
        """Evaluate the line from ``first`` to another network on test images; see `walk`."""
        return walk(self.model, self.first, end, self.heads, self.suite)


def train_perceptrons(
    suite: Suite,
    recipe: Recipe,
    *,
    draw: int = 0,
    separate: bool = True,
    device: torch.device | str = "cpu",
) -> Perceptrons:
    """Perceptrons with one hidden layer and one frozen head, on images of half the side."""
    name, task = next(iter(suite.tasks.items()))
    parts = {split: getattr(task, split) for split in ("train", "validation", "test")}
    for split, part in parts.items():
        parts[split] = Split(nn.functional.avg_pool2d(task.transform(part.inputs), 2), part.labels)
    task = replace(task, transform=nn.Identity(), **parts)
    suite = replace(suite, tasks={name: task})
    generator = torch.Generator().manual_seed(draw)
    head = Head(torch.randn(len(task.class_names), WIDTH, generator=generator)).to(device)
    states = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small lose more to threads than they gain
    try:
        for initial, order in ((1, 1), (1, 2), (2, 2))[: 3 if separate else 2]:
            network = _perceptron(1000 * draw + initial).to(device)
            seed = 1000 * draw + order
            states.append(
                fine_tune(network, head, task.train, recipe, transform=task.transform, seed=seed)
            )
    finally:
        torch.set_num_threads(threads)
    first, same, *rest = states
    model = _perceptron(0).to(device)
    return Perceptrons(suite, model, {name: head}, first, same, rest[0] if rest else None)


def _perceptron(seed: int) -> nn.Module:
    """Return an untrained network: 768 averaged pixels, two linear layers, PyTorch's defaults."""
    with seeded(seed):
        layers = [nn.Linear(3 * 16 * 16, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU()]
        return nn.Sequential(nn.Flatten(), *layers)


def recorded_sweeps(records: Mapping[str, int] | None = None) -> pd.DataFrame:
    """Return stored validation accuracies of task arithmetic for each scale; a run is a seed."""
    tables = []
    for suite, count in (records or RECORDED).items():
        table = load_table(f"{suite}-baselines", "validation").query("method == 'task_arithmetic'")
        table = table.rename(columns={"seed": "run"})[["run", "scale", "accuracy"]]
        tables.append(table.assign(suite=suite, tasks=count))
    return pd.concat(tables, ignore_index=True)


def cost_of_rules(sweeps: pd.DataFrame, rules: Mapping[str, float | str]) -> pd.DataFrame:
    """Return the points that rules for the scale lose to a grid's best; NaN outside the grid."""
    keys = [str(key) for key in sweeps if key not in ("scale", "accuracy", "loss")]
    rows = []
    for values, sweep in sweeps.groupby(keys, sort=False):
        curve = sweep.set_index("scale")["accuracy"].sort_index()
        known: dict[str, Any] = dict(zip(keys, values, strict=True))
        for rule, scale in rules.items():
            tasks = known["tasks"]
            chosen = float(scale.removesuffix("/T")) / tasks if isinstance(scale, str) else scale
            inside = curve.index[0] <= chosen <= curve.index[-1]
            at = np.interp(chosen, curve.index, curve) if inside else np.nan
            cost = 100 * (curve.max() - at)
            best = curve.index[int(curve.argmax())]
            rows.append({**known, "best": best, "rule": rule, "scale": chosen, "cost": cost})
    return pd.DataFrame(rows)
