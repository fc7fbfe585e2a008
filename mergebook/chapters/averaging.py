"""What chapter 02 tries: straight lines between networks, and rules of thumb for a merge's scale.

The loss barrier of a line is the height above the chord (Entezari et al., 2022).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from mergebook.lab.results import load_table
from mergebook.suites.models import Head
from mergebook.suites.training import Recipe, fine_tune
from mergelib.evaluation.loops import SplitName, evaluate_many
from mergelib.evaluation.tasks import Suite
from mergelib.statedict import StateDict, lerp
from mergelib.training import seeded

POSITIONS = tuple(np.linspace(0, 1, 9).tolist())
WIDTH = 128

# Records of `baselines` that hold task arithmetic's validation accuracy by scale, and their tasks.
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
    split: SplitName = "test",
) -> pd.DataFrame:
    """Accuracy (0..1) and loss (nats) at points (1 − α)·start + α·end of a line, on every task."""
    points = ((position, lerp(start, end, position)) for position in positions)
    table = evaluate_many(model, points, heads, suite, split=split)
    table = table.rename(columns={"candidate": "position"})
    return table[["position", "task", "accuracy", "loss"]]


def loss_barrier(path: pd.DataFrame) -> float:
    """How far the loss of one task rises above the chord between the ends of its line, in nats."""
    position, loss = path["position"].to_numpy(float), path["loss"].to_numpy(float)
    if (position[0], position[-1]) != (0.0, 1.0):
        raise ValueError(f"the line runs from {position[0]} to {position[-1]}, expected 0 to 1")
    return float((loss - ((1 - position) * loss[0] + position * loss[-1])).max())


@dataclass(frozen=True)
class Trio:
    """Three perceptrons of one task and one frozen random head."""

    suite: Suite  # with the one task
    model: nn.Module
    heads: dict[str, nn.Module]
    one: StateDict  # from random weights
    sibling: StateDict  # from the same random weights, trained in another order of the pictures
    stranger: StateDict | None  # from other random weights and in another order

    def walk(self, end: StateDict) -> pd.DataFrame:
        """From ``one`` to another network, on test pictures; see `walk`."""
        return walk(self.model, self.one, end, self.heads, self.suite)


def train_trio(
    suite: Suite,
    recipe: Recipe,
    *,
    draw: int = 0,
    stranger: bool = True,
    device: torch.device | str = "cpu",
) -> Trio:
    """Train perceptrons with one hidden layer that a frozen head does not see.

    Pictures are averaged to half their side first, so that training takes seconds. Their last layer
    ends at the head, which all share, so only the units of the first can be in another order.
    """
    name, task = next(iter(suite.tasks.items()))
    generator = torch.Generator().manual_seed(draw)
    head = Head(torch.randn(len(task.class_names), WIDTH, generator=generator)).to(device)
    states = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small lose more to threads than they gain
    try:
        for start, order in ((1, 1), (1, 2), (2, 2))[: 3 if stranger else 2]:
            network = _perceptron(1000 * draw + start).to(device)
            seed = 1000 * draw + order
            states.append(
                fine_tune(network, head, task.train, recipe, transform=task.transform, seed=seed)
            )
    finally:
        torch.set_num_threads(threads)
    one, sibling, *rest = states
    model = _perceptron(0).to(device)
    return Trio(suite, model, {name: head}, one, sibling, rest[0] if rest else None)


def _perceptron(seed: int) -> nn.Module:
    """768 averaged pixels, two hidden layers; torch's own start, drawn by the seed."""
    with seeded(seed):
        return nn.Sequential(
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(3 * 16 * 16, WIDTH),
            nn.GELU(),
            nn.Linear(WIDTH, WIDTH),
            nn.GELU(),
        )


def recorded_sweeps(records: Mapping[str, int] | None = None) -> pd.DataFrame:
    """Validation accuracy of task arithmetic by scale, from the records; a run is a seed."""
    tables = []
    for suite, count in (records or RECORDED).items():
        table = load_table(f"{suite}-baselines", "validation").query("method == 'task_arithmetic'")
        table = table.rename(columns={"seed": "run"})[["run", "scale", "accuracy"]]
        tables.append(table.assign(suite=suite, tasks=count))
    return pd.concat(tables, ignore_index=True)


def cost_of_rules(sweeps: pd.DataFrame, rules: Mapping[str, float | str]) -> pd.DataFrame:
    """What it costs to take a scale by a rule of thumb in place of the best one of a grid.

    The cost is accuracy lost, in points; between two scales it is read from the straight line that
    joins them, and NaN outside the grid. The best scale is that of the highest accuracy.
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
