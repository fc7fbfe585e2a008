"""Compare merging methods on one zoo: choose hyperparameters on validation data, judge on test.

`compare` is the table of `mergelib demo`; `measure_baselines` repeats it over seeds and is what
writes the files in ``results/``.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from mergelib.io import cache_folder
from mergelib.measure import measured
from mergelib.progress import progress
from mergelib.provenance import provenance, write_result
from mergelib.registry import get_method, merge
from mergelib.testbed.evaluation import SplitName, evaluate, evaluate_many, normalised
from mergelib.testbed.suites import Suite, load_suite
from mergelib.testbed.training import Recipe
from mergelib.testbed.zoo import Zoo, load_zoo

Grid = Mapping[str, Sequence[Any]]

# Searched on validation data. The ranges contain the papers' own and go beyond their ends.
GRIDS: dict[str, Grid] = {
    "average": {},
    "task_arithmetic": {"scale": [round(0.1 * i, 1) for i in range(1, 11)]},
    "ties": {"scale": [0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0]},
    "dare": {"drop_rate": [0.5, 0.9], "scale": [0.1, 0.2, 0.3, 0.4, 0.5]},
    "low_rank_task_arithmetic": {
        "rank_ratio": [0.04, 0.08, 0.16, 0.32],
        "scale": [0.3, 0.5, 0.7, 1.0],
    },
    "cart": {"rank_ratio": [0.04, 0.08, 0.16, 0.32], "scale": [1.0, 1.4, 1.8, 2.2, 2.6, 3.0]},
}


def points(grid: Grid) -> list[dict[str, Any]]:
    """All combinations of a grid's values."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def merge_zoo(method: str, zoo: Zoo, **hyperparameters: Any) -> dict[str, Tensor]:
    """`merge` on a zoo's experts and backbone; the suite's seed decides what a method draws."""
    if get_method(method).draws:
        hyperparameters = {"seed": zoo.suite.seed, **hyperparameters}
    return merge(method, zoo.experts, pretrained=zoo.pretrained, **hyperparameters)


def sweep(zoo: Zoo, method: str, grid: Grid, split: SplitName = "validation") -> pd.DataFrame:
    """Mean accuracy over tasks at every point of a grid: the grid's columns and ``accuracy``."""
    chosen = points(grid)

    def candidates() -> Iterator[tuple[int, dict[str, Tensor]]]:
        for i, point in enumerate(chosen):
            yield i, merge_zoo(method, zoo, **point)

    table = evaluate_many(zoo.model, candidates(), zoo.heads, zoo.suite, split=split)
    means = table.groupby("candidate")["accuracy"].mean()
    return pd.DataFrame([{**point, "accuracy": means[i]} for i, point in enumerate(chosen)])


def choose(zoo: Zoo, method: str, grid: Grid) -> tuple[dict[str, Any], pd.DataFrame]:
    """The grid's best point by mean validation accuracy, and the whole sweep."""
    if not grid:
        return {}, pd.DataFrame()
    table = sweep(zoo, method, grid)
    return points(grid)[int(table["accuracy"].argmax())], table


def individual(zoo: Zoo, split: SplitName = "test") -> pd.DataFrame:
    """Each expert on its own task: what merging tries to reach."""
    tables = [
        evaluate(zoo.model, expert, zoo.heads, only(zoo.suite, task), split=split)
        for task, expert in zoo.experts.items()
    ]
    return pd.concat(tables, ignore_index=True)


def only(suite: Suite, task: str) -> Suite:
    """The suite cut down to one task."""
    return replace(suite, tasks={task: suite.tasks[task]})


def compare(
    zoo: Zoo, settings: Mapping[str, Mapping[str, Any]], *, split: SplitName = "test"
) -> pd.DataFrame:
    """Judge the backbone, every merging method and the experts themselves.

    Args:
        zoo: backbone, experts and heads.
        settings: method to hyperparameters.
        split: the part of each task to judge on.

    Returns:
        A row a method and task: ``method``, ``task``, ``accuracy`` (0..1), ``normalised``
        (accuracy over the expert's own), ``loss``, ``correct``, ``n``, and what merging took:
        ``seconds`` and ``peak_bytes``.
    """
    experts = individual(zoo, split).assign(method="individual")
    base = evaluate(zoo.model, zoo.pretrained, zoo.heads, zoo.suite, split=split)
    tables = [base.assign(method="pretrained")]
    device = next(iter(zoo.pretrained.values())).device
    for method, hyperparameters in settings.items():
        with measured(device) as cost:
            merged = merge_zoo(method, zoo, **hyperparameters)
        table = evaluate(zoo.model, merged, zoo.heads, zoo.suite, split=split)
        peak = math.nan if cost.peak_bytes is None else cost.peak_bytes
        tables.append(table.assign(method=method, seconds=cost.seconds, peak_bytes=peak))
    whole = pd.concat([*tables, experts], ignore_index=True)
    return whole.assign(normalised=normalised(whole, experts))


def measure_baselines(
    suite_name: str,
    seeds: Sequence[int],
    *,
    methods: Sequence[str] = tuple(GRIDS),
    model: str = "vit",
    recipe: Recipe | None = None,
    device: torch.device | str = "cpu",
    **options: Any,
) -> dict[str, Any]:
    """The baselines of a suite over several seeds, with provenance, as a JSON-ready record.

    A seed draws the data splits, the heads' examples, the order of training and DARE's masks.
    Hyperparameters come from `GRIDS` by validation accuracy, for every seed anew. Each seed's part
    is kept in the cache as soon as it is measured, so a killed run resumes.

    Args:
        suite_name: a suite of `load_suite`.
        seeds: what to repeat over.
        methods: merging methods to measure.
        model: backbone of the zoo.
        recipe: how experts are fine-tuned.
        device: where to train and evaluate.
        **options: further arguments of `load_suite`, e.g. ``profile``.

    Raises:
        ValueError: an unknown suite or method.
    """
    grids = {method: GRIDS.get(method, {}) for method in methods if get_method(method)}
    recipe = recipe or Recipe()
    record: dict[str, Any] = {"provenance": {}, "chosen": [], "validation": [], "test": []}
    sources = {}
    for seed in progress(seeds, desc="seeds"):
        suite = load_suite(suite_name, seed=seed, **options)
        zoo = load_zoo(suite, model=model, recipe=recipe, device=device)
        part = _measure_seed(zoo, grids)
        record["chosen"].append({"seed": seed, "zoo": zoo.fingerprint, **part["chosen"]})
        for table in ("validation", "test"):
            record[table] += [{"seed": seed, **row} for row in part[table]]
        sources[str(seed)] = suite.sources
    record["provenance"] = provenance(
        suite=suite_name,
        model=model,
        seeds=list(seeds),
        recipe=asdict(recipe),
        sources=sources,
        device=device,
    )
    return record


def _measure_seed(zoo: Zoo, grids: Mapping[str, Grid]) -> dict[str, Any]:
    """Settings, validation sweeps and test table of one zoo; from the cache if they are there."""
    suite = zoo.suite
    sizes = {name: (len(task.validation), len(task.test)) for name, task in suite.tasks.items()}
    code = provenance()["commit"]  # what an earlier state of the code measured does not count
    inputs = [code, zoo.fingerprint, grids, suite.seed, suite.sources, sizes]
    asked = json.dumps(inputs, sort_keys=True)
    digest = hashlib.sha256(asked.encode()).hexdigest()[:16]
    file = cache_folder() / "baselines" / f"{suite.name}-{digest}.json"
    if file.exists():
        kept: dict[str, Any] = json.loads(file.read_text())
        return kept
    settings, searched = {}, []
    for method, grid in grids.items():
        settings[method], table = choose(zoo, method, grid)
        searched += table.assign(method=method).to_dict("records")
    columns = ["method", "task", "accuracy", "normalised", "loss", "correct", "n"]
    test = compare(zoo, settings)[columns].to_dict("records")
    part = {"chosen": {"settings": settings}, "validation": searched, "test": test}
    write_result(file, part)
    return part
