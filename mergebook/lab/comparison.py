"""Compare merging methods on one zoo: choose hyperparameters on validation data, judge on test."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor, nn

from mergebook.lab.results import Rows
from mergebook.suites.types import Zoo
from mergelib.activations import recalibrate_batchnorm
from mergelib.evaluation.cost import measured
from mergelib.evaluation.loops import SplitName, evaluate, evaluate_many, normalised_accuracy
from mergelib.evaluation.tasks import Suite
from mergelib.layers import larv_scales
from mergelib.merging import merge
from mergelib.problems.examples import Examples
from mergelib.problems.problem import Problem
from mergelib.procedures import Adapted, adapt
from mergelib.registry import get_method
from mergelib.statedict import StateDict, flatten
from mergelib.tuning import Grid, merged_grid, points, widened

Data = dict[str, tuple[Tensor, Tensor]]

# Frank-Wolfe's four kinds.
KINDS: dict[str, dict[str, Any]] = {
    f"{variant}, by {granularity}": {"variant": variant, "granularity": granularity}
    for variant in ("hard", "soft")
    for granularity in ("task", "layer")
}

COLUMNS = ["task", "accuracy", "loss"]
TOLERANCE = 0.05  # nats: Frank-Wolfe stops at a gap of that; the first ones are above 1


def merge_zoo(method: str, zoo: Zoo, **hyperparameters: Any) -> dict[str, Tensor]:
    """`merge` on a zoo: its experts, backbone and matrices, and its suite's seed."""
    hyperparameters = {"is_matrix": zoo.is_matrix, **hyperparameters}
    if get_method(method).draws:
        hyperparameters = {"seed": zoo.suite.seed, **hyperparameters}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "not factorised")
        return merge(method, zoo.experts, pretrained=zoo.pretrained, **hyperparameters)


def scaled_by_larv(zoo: Zoo) -> Zoo:
    """The zoo with LARV's scales on the layers of every expert's task vector."""
    experts = {}
    for task, own in zoo.experts.items():
        scales = larv_scales(own, zoo.pretrained, is_matrix=zoo.is_matrix)
        experts[task] = merge_zoo("task_arithmetic", sub_zoo(zoo, [task]), scale=scales)
    return replace(zoo, experts=experts)


def score_grid(zoo: Zoo, method: str, grid: Grid, *, autocast: bool = False) -> pd.DataFrame:
    """The suite's metric at every point of a grid, mean over tasks; ``autocast`` takes bfloat16."""
    chosen = points(grid)
    candidates = merged_grid(partial(merge_zoo, method, zoo), method, grid)
    judge = partial(evaluate_many, zoo.model, candidates, zoo.heads, zoo.suite)
    table = judge(split="validation", autocast=autocast)
    column = zoo.suite.metric.column
    means = table.groupby("candidate")[column].mean()
    return pd.DataFrame([{**point, column: means[i]} for i, point in enumerate(chosen)])


def best_of(zoo: Zoo, method: str, grid: Grid, *, autocast: bool = True) -> dict[str, Any]:
    """The grid's best point on validation data by the suite's metric."""
    if not grid:
        return {}
    table = score_grid(zoo, method, grid, autocast=autocast)
    return points(grid)[int(merits(zoo, table).argmax())]


def choose_wide(zoo: Zoo, method: str, grid: Grid) -> tuple[dict[str, Any], pd.DataFrame]:
    """`best_of` and its table, of a grid that is continued where it ends at its best point."""
    if not grid:
        return {}, pd.DataFrame()
    score = partial(score_grid, zoo, method, autocast=True)
    table = widened(grid, score, lambda found: [int(merits(zoo, found).argmax())])
    best = int(merits(zoo, table).argmax())
    return {name: table[name].tolist()[best] for name in grid}, table


def merits(zoo: Zoo, table: pd.DataFrame) -> "pd.Series[float]":
    """What is to be high in a table of a zoo's results: e.g. accuracies, or negative losses."""
    metric = zoo.suite.metric
    return table[metric.column] if metric.higher_is_better else -table[metric.column]


def individual(zoo: Zoo, split: SplitName = "test", *, autocast: bool = False) -> pd.DataFrame:
    """Each expert on its own task: what merging tries to reach."""
    judge = partial(evaluate, heads=zoo.heads, suite=zoo.suite, split=split, autocast=autocast)
    experts = zoo.experts.items()
    tables = [judge(model=zoo.model, state=expert, tasks=[task]) for task, expert in experts]
    return pd.concat(tables, ignore_index=True)


def only(suite: Suite, tasks: Sequence[str]) -> Suite:
    """The suite cut down to some of its tasks."""
    return replace(suite, tasks={task: suite.tasks[task] for task in tasks})


def compare(zoo: Zoo, settings: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Judge the backbone, every merging method with its hyperparameters, and the experts.

    A row per ``method`` and ``task``: ``accuracy`` (0..1), ``normalised`` (over the expert's own),
    ``loss``, ``correct``, ``n``, and what merging took: ``seconds`` and ``peak_bytes``.
    """
    experts = individual(zoo).assign(method="individual")
    base = evaluate(zoo.model, zoo.pretrained, zoo.heads, zoo.suite)
    tables = [base.assign(method="pretrained")]
    device = next(iter(zoo.pretrained.values())).device
    for method, hyperparameters in settings.items():
        with measured(device) as cost:
            merged = merge_zoo(method, zoo, **hyperparameters)
        table = evaluate(zoo.model, merged, zoo.heads, zoo.suite)
        peak = math.nan if cost.peak_bytes is None else cost.peak_bytes
        tables.append(table.assign(method=method, seconds=cost.seconds, peak_bytes=peak))
    whole = pd.concat([*tables, experts], ignore_index=True)
    return whole.assign(normalised=normalised_accuracy(whole, experts))


def sub_zoo(zoo: Zoo, tasks: Sequence[str]) -> Zoo:
    """The zoo cut down to some of its tasks, experts and all."""
    experts = {task: zoo.experts[task] for task in tasks}
    return replace(zoo, suite=only(zoo.suite, tasks), experts=experts)


def accuracies(
    zoo: Zoo,
    candidates: Mapping[Any, StateDict] | Iterable[tuple[Any, StateDict]],
    split: SplitName = "test",
    **options: Any,
) -> pd.DataFrame:
    """Accuracies (0..1) of labelled state dicts: one row each, in order, one column per task."""
    table = evaluate_many(zoo.model, candidates, zoo.heads, zoo.suite, split=split, **options)
    wide = table.set_index(["candidate", "task"])["accuracy"].unstack("task")
    return wide.loc[list(dict.fromkeys(table["candidate"])), list(zoo.suite.tasks)]


def cut(zoo: Zoo, pictures: int) -> Zoo:
    """The zoo with at most `pictures` test images per task, and half as many for validation."""
    return replace(zoo, suite=first(zoo.suite, validation=pictures // 2, test=pictures))


def first(suite: Suite, **counts: int | Mapping[str, int]) -> Suite:
    """The suite with the first rows of some splits, by task where they differ; order is random."""
    tasks = {}
    for name, task in suite.tasks.items():
        sizes = {split: n if isinstance(n, int) else n[name] for split, n in counts.items()}
        parts = {split: getattr(task, split).first(n) for split, n in sizes.items()}
        tasks[name] = replace(task, **parts)
    return replace(suite, tasks=tasks)


def records(table: pd.DataFrame) -> Rows:
    """A table as JSON-ready rows, None where a value is missing."""
    known = table.astype(object).where(table.notna(), None)
    return [{str(key): value for key, value in row.items()} for row in known.to_dict("records")]


def adapted(zoo: Zoo, method: str, data: Mapping[str, Any], **options: Any) -> Adapted:
    """`adapt` on a zoo; the suite's seed decides what a procedure draws, unless one is given."""
    if "seed" in get_method(method, "procedure").hyperparameters:
        options = {"seed": zoo.suite.seed, **options}
    return adapt(method, zoo.experts, data=data, **_around(zoo), **options)


def _around(zoo: Zoo) -> dict[str, Any]:
    known = {"pretrained": zoo.pretrained, "model": zoo.model, "heads": zoo.heads}
    return known | {"transform": zoo.suite.transforms, "is_matrix": zoo.is_matrix}


def choices(settings: Mapping[str, Mapping[str, Any]], **where: Any) -> Rows:
    """What was chosen on validation data: rows of ``method``, ``settings`` and `where` it was."""
    return [{**where, "method": name, "settings": dict(own)} for name, own in settings.items()]


def judged(zoo: Zoo, method: str, made: Adapted | StateDict, **named: Any) -> Rows:
    """Test accuracy and loss (nats) of every task, one row each, with the method's name."""
    state, own = (made.state, made.heads) if isinstance(made, Adapted) else (made, {})
    table = evaluate(zoo.model, state, {**zoo.heads, **own}, zoo.suite, autocast=True)
    return records(table[COLUMNS].assign(method=method, **named))


def judged_alone(zoo: Zoo, *, autocast: bool = True, **named: Any) -> Rows:
    """`individual` in rows like those of `judged`."""
    return records(individual(zoo, autocast=autocast)[COLUMNS].assign(method="individual", **named))


def scores(
    zoo: Zoo,
    state: StateDict,
    heads: Mapping[str, nn.Module],
    tasks: Sequence[str],
    splits: Mapping[str, SplitName],
) -> Iterator[dict[str, Any]]:
    """Accuracy and loss (nats) of each task on each split, whose key begins the columns' names."""
    judge = partial(evaluate, zoo.model, state, heads, zoo.suite, tasks=tasks, autocast=True)
    found = {prefix: judge(split=split).set_index("task") for prefix, split in splits.items()}
    for task in tasks:
        yield {"task": task} | {
            f"{prefix}{column}": float(table[column][task])
            for prefix, table in found.items()
            for column in ("accuracy", "loss")
        }


def distance(zoo: Zoo, state: StateDict) -> float:
    """‖θ − θ_0‖ from the pretrained model."""
    return float((flatten(state) - flatten(zoo.pretrained)).norm())


def problem_of(zoo: Zoo, count: int) -> Problem:
    """The first training examples of every task, in the form that procedures take."""
    data = {name: Examples(*pair) for name, pair in examples_of(zoo, count).items()}
    return Problem(zoo.experts, data=data, **_around(zoo))


def examples_of(zoo: Zoo, count: int | None, split: SplitName | Literal["train"] = "train") -> Data:
    """The first examples of every task, or all of them: name to inputs and labels."""
    parts = {name: getattr(task, split) for name, task in zoo.suite.tasks.items()}
    return {name: (part.inputs[:count], part.labels[:count]) for name, part in parts.items()}


def measured_anew(zoo: Zoo, state: StateDict, examples: int = 100) -> dict[str, Tensor]:
    """A state with statistics of every task's first training inputs, shuffled, 200 a batch."""
    parts = [task.transform(task.train.inputs[:examples]) for task in zoo.suite.tasks.values()]
    generator = torch.Generator().manual_seed(zoo.suite.seed)
    inputs = torch.cat(parts)
    inputs = inputs[torch.randperm(len(inputs), generator=generator)]
    return recalibrate_batchnorm(zoo.model, state, inputs.split(200))
