"""Methods since CART: WUDI's loss by gradient descent, and procedures tuned on validation data."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import pandas as pd
import torch
from torch import Tensor

from mergebook.lab import comparison as lab
from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.suites.types import Zoo
from mergelib.evaluation.loops import evaluate
from mergelib.procedures.common import unlabelled
from mergelib.rules.regression import normal_equations
from mergelib.tuning import Grid, points


@study()
def descent(
    zoo: Zoo,
    *,
    rates: Sequence[float] = (1e-5, 1e-4, 1e-3),
    steps: Sequence[int] = (30, 300, 3000),
    ridges: Sequence[float] = (0.0, 1e-2, 1e-1),
    scales: Sequence[float] = (0.2, 0.3, 0.45, 0.7, 1.0, 1.4),
    pictures: int = 400,
) -> Tables:
    """WUDI's task matrices by Adam from their sum (0 steps), and in closed form with ridges.

    ``gap``: the loss above its minimum, as a fraction of the sum's; ``value``: a rate or a ridge.
    """
    zoo = lab.cut(zoo, pictures)
    base, rest = zoo.pretrained, lab.merge_zoo("average", zoo)
    keys = [key for key, value in base.items() if zoo.is_matrix(key, value)]
    systems = [normal_equations([e[k] for e in zoo.experts.values()], base[k]) for k in keys]

    def moved(method: str, **options: float) -> list[Tensor]:
        merged = lab.merge_zoo(method, zoo, **options)
        return [(merged[key] - base[key]).double() for key in keys]

    total, best = moved("task_arithmetic", scale=1.0), moved("wudi")

    def candidates() -> Iterator[tuple[str, float, int, list[Tensor]]]:
        yield "adam", 0.0, 0, total
        yield from (("closed", ridge, 0, moved("wudi", ridge=ridge)) for ridge in ridges)
        for rate in rates:
            point = [matrix.clone() for matrix in total]
            optimiser = torch.optim.Adam(point, lr=rate)
            for step in range(1, max(steps) + 1):
                for matrix, (products, gram) in zip(point, systems, strict=True):
                    matrix.grad = 2 * (matrix @ gram - products)
                optimiser.step()
                if step in steps:
                    yield "adam", rate, step, point

    def sizes(point: list[Tensor]) -> tuple[float, float]:
        offs = [(a - b, gram) for a, b, (_, gram) in zip(point, best, systems, strict=True)]
        gap = sum(float((off @ gram * off).sum()) for off, gram in offs)
        return gap, sum(float(matrix.square().sum()) for matrix in point) ** 0.5

    tables: Tables = {"test": [], "path": []}
    for method, value, count, point in candidates():
        gap, length = (own / whole for own, whole in zip(sizes(point), sizes(total), strict=True))
        at = {"value": value, "steps": count}
        tables["path"].append({"method": method, **at, "gap": gap, "length": length})
        deltas = {k: matrix.to(base[k]) for k, matrix in zip(keys, point, strict=True)}
        merged = {s: rest | {k: base[k] + s * d for k, d in deltas.items()} for s in (1.0, *scales)}
        scores = lab.accuracies(zoo, merged, "validation", autocast=True).mean(axis=1)
        for chosen, scale in ((False, 1.0), (True, list(merged)[int(scores.argmax())])):
            tables["test"] += lab.judged(
                zoo, method, merged[scale], **at, scale=scale, chosen=chosen
            )
    return tables


@study()
def tuned(
    zoo: Zoo,
    *,
    grids: Mapping[str, Grid],
    rules: Mapping[str, Grid],
    examples: int = 32,
    split: Literal["train", "test"] = "train",
) -> Tables:
    """Procedures on unlabelled inputs (the first of each task, all if 0 ``examples``) and rules.

    Tables ``test``, ``chosen`` (on validation data), and ``validation``: the procedures' grids.
    """
    data = unlabelled(lab.examples_of(zoo, examples or None, split))
    chosen = {name: lab.choose_wide(zoo, name, grid)[0] for name, grid in rules.items()}
    made = {name: lab.merge_zoo(name, zoo, **best) for name, best in chosen.items()}
    test = lab.judged(zoo, "pretrained", zoo.pretrained) + lab.judged_alone(zoo)
    test += [row for name, state in made.items() for row in lab.judged(zoo, name, state)]
    judge = partial(evaluate, zoo.model, suite=zoo.suite, split="validation", autocast=True)
    validation = []
    for method, grid in grids.items():
        results = [lab.adapted(zoo, method, data, **point) for point in points(grid)]
        scores = [
            judge(state=each.state, heads={**zoo.heads, **each.heads})[["accuracy", "loss"]].mean()
            for each in results
        ]
        table = pd.DataFrame(points(grid)).join(pd.DataFrame(scores).reset_index(drop=True))
        best = int(lab.merits(zoo, table).argmax())
        test += lab.judged(zoo, method, results[best])
        validation += lab.records(table.assign(method=method))
        chosen[method] = points(grid)[best]
    return {"test": test, "chosen": lab.choices(chosen), "validation": validation}
