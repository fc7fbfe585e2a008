"""Studies: one measurement on a zoo, repeated over seeds, with its provenance.

Every file in ``results/`` that tells about a suite is written by `measure_study`. A study is a
function of a zoo that returns tables, lists of rows; the loop over seeds adds the seed to every
row, keeps each seed's part in the cache as soon as it is measured, so that a killed run resumes,
and notes what the numbers were made from. Studies that draw their own networks are functions of
the seed, and `measure_pairs` does the same for them.
"""

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from mergelib.activations import layer_inputs
from mergelib.compress import Compressed, compress
from mergelib.io import cache_folder
from mergelib.progress import progress
from mergelib.provenance import provenance, write_result
from mergelib.registry import get_method
from mergelib.statedict import flatten
from mergelib.testbed.cogram_studies import SOURCES, fusion, pair_sources, thresholds, tuning
from mergelib.testbed.comparison import (
    GRIDS,
    Grid,
    choose,
    compare,
    cut,
    individual,
    merge_zoo,
    records,
    sub_zoo,
)
from mergelib.testbed.data_studies import (
    POOL_GRIDS,
    Tables,
    adaptation,
    calibration,
    granular,
    irrelevant,
    language,
    procedures,
    relevant,
)
from mergelib.testbed.evaluation import SplitName, evaluate, evaluate_many
from mergelib.testbed.models import normalise
from mergelib.testbed.suites import load_suite, usual_model
from mergelib.testbed.training import Recipe, usual_recipe
from mergelib.testbed.zoo import Zoo, load_zoo
from mergelib.theory.interference import interference_curves, output_interference

Study = Callable[..., Tables]

RANK_RATIOS = (0.0, 0.01, 0.02, 0.04, 0.08, 0.12, 0.16, 0.24, 0.32, 0.5, 0.75, 1.0)
COUNTS = (2, 4, 8, 12, 16, 20)

# What the paper's appendix D searches for every subset of tasks, and CART with its scale searched.
SUBSET_GRIDS: dict[str, tuple[str, Grid]] = {
    **{name: (name, grid) for name, grid in POOL_GRIDS.items()},
    "cart, scale searched": ("cart", {"rank_ratio": [0.08, 0.16], "scale": [1.0, 2.0, 3.0]}),
}


def measure_study(
    study: Study,
    suite_name: str,
    seeds: Sequence[int],
    *,
    model: str | None = None,
    recipe: Recipe | None = None,
    device: torch.device | str = "cpu",
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """A study over several seeds, as a JSON-ready record.

    A seed draws the data splits, the heads' examples, the order of training, and all that methods
    and studies draw.

    Args:
        study: one of this module's functions, or any other of a zoo.
        suite_name: a suite of `load_suite`.
        seeds: what to repeat over.
        model: backbone of the zoo; by default the suite's usual one.
        recipe: how experts are fine-tuned.
        device: where to train and evaluate.
        settings: the study's own keyword arguments.
        **options: further arguments of `load_suite`, e.g. ``profile``.

    Returns:
        The study's tables by name, each row with its ``seed``, and ``provenance``.

    Raises:
        ValueError: an unknown suite or model, or what the study refuses.
    """
    recipe = recipe or usual_recipe(suite_name)
    settings = {**_defaults(study), **(settings or {})}
    tables: Tables = {}
    sources = {}
    for seed in progress(seeds, desc="seeds"):
        suite = load_suite(suite_name, seed=seed, **options)
        zoo = load_zoo(suite, model=model, recipe=recipe, device=device)
        for name, rows in _measure_seed(study, zoo, settings).items():
            tables.setdefault(name, []).extend({"seed": seed, **row} for row in rows)
        sources[str(seed)] = suite.sources
    made = provenance(
        study=study.__name__,
        settings=settings,
        suite=suite_name,
        model=model or usual_model(suite_name),
        seeds=list(seeds),
        recipe=None if suite_name.startswith("clip") else asdict(recipe),
        sources=sources,
        device=device,
    )
    return {"provenance": made, **tables}


def _defaults(study: Study) -> dict[str, Any]:
    parameters = inspect.signature(study).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def measure_pairs(study: Study, seeds: Sequence[int], source: str) -> dict[str, Any]:
    """A study of pairs of networks over several seeds, as `measure_study` gives it.

    Args:
        study: one of `PAIR_STUDIES`.
        seeds: what to repeat over.
        source: of the pairs' data, see `mergelib.testbed.cogram_studies.SOURCES`.

    Raises:
        ValueError: an unknown source, or data that cannot be had.
    """
    if source not in SOURCES:
        raise ValueError(f"unknown source {source!r}; known: {', '.join(SOURCES)}")
    settings = {**_defaults(study), "source": source}
    tables: Tables = {}
    for seed in progress(seeds, desc="seeds"):
        measure = partial(study, seed, **settings)
        for name, rows in _kept(f"{source}-{study.__name__}", [settings, seed], measure).items():
            tables.setdefault(name, []).extend({"seed": seed, **row} for row in rows)
    made = provenance(
        study=study.__name__,
        settings=settings,
        suite=source,
        seeds=list(seeds),
        sources=pair_sources(source),
    )
    return {"provenance": made, **tables}


def _measure_seed(study: Study, zoo: Zoo, settings: Mapping[str, Any]) -> Tables:
    """The study's tables on one zoo; from the cache if they are there."""
    suite = zoo.suite
    sizes = {name: (len(task.validation), len(task.test)) for name, task in suite.tasks.items()}
    inputs = [zoo.fingerprint, settings, suite.seed, suite.sources, sizes]
    return _kept(f"{suite.name}-{study.__name__}", inputs, partial(study, zoo, **settings))


def _kept(name: str, inputs: Sequence[Any], measure: Callable[[], Tables]) -> Tables:
    """What a measurement gives; from the cache if the same was measured by the same code."""
    key = [name, provenance()["commit"], *inputs]
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    file = cache_folder() / "studies" / f"{name}-{digest}.json"
    if not file.exists():
        write_result(file, measure())
    kept: Tables = json.loads(file.read_text())
    return kept


def baselines(zoo: Zoo, *, grids: Mapping[str, Grid] = GRIDS) -> Tables:
    """Every method with hyperparameters chosen on validation data, judged on test data.

    Args:
        zoo: experts and their suite.
        grids: method to what is searched; on validation data in bfloat16, see `sweep`.

    Returns:
        ``chosen`` (one row: the zoo's fingerprint and every method's settings), ``validation``
        (a row a grid point) and ``test`` (a row a method and task, as `compare` gives it).

    Raises:
        ValueError: an unknown method.
    """
    settings, searched = {}, []
    for method in grids:
        get_method(method)  # an unknown one shall fail before any work
    for method, grid in grids.items():
        settings[method], table = choose(zoo, method, grid, autocast=True)
        searched += records(table.assign(method=method))
    columns = ["method", "task", "accuracy", "normalised", "loss", "correct", "n"]
    test = records(compare(zoo, settings)[columns])
    chosen = {"zoo": zoo.fingerprint, "settings": settings}
    return {"chosen": [chosen], "validation": searched, "test": test}


def ranks(
    zoo: Zoo,
    *,
    rank_ratios: Sequence[float] = RANK_RATIOS,
    scales: Sequence[float] = (1.0, 2.0, 3.0),
    uncentred_scales: Sequence[float] = (0.3, 1.0),
) -> Tables:
    """What merging keeps and where it goes, against the rank: centred (CART) and uncentred.

    Returns:
        ``test``: rows of ``method``, ``scale``, ``rank_ratio``, ``task``, ``accuracy``, ``loss``,
        on test data; and ``path``: rows of ``method``, ``scale``, ``rank_ratio``, and ``distance``,
        ‖θ − θ_avg‖ over the mean ‖θ_t − θ_avg‖.
    """
    centre = flatten(merge_zoo("average", zoo))
    spread = float(
        torch.stack([(flatten(expert) - centre).norm() for expert in zoo.experts.values()]).mean()
    )
    grid: list[dict[str, Any]] = [
        {"method": method, "scale": scale, "rank_ratio": ratio}
        for method, many in (("cart", scales), ("low_rank_task_arithmetic", uncentred_scales))
        for scale in many
        for ratio in rank_ratios
    ]
    path = []

    def candidates() -> Iterator[tuple[int, dict[str, Tensor]]]:
        for i, point in enumerate(grid):
            merged = merge_zoo(zoo=zoo, **point)
            path.append({**point, "distance": float((flatten(merged) - centre).norm()) / spread})
            yield i, merged

    table = evaluate_many(zoo.model, candidates(), zoo.heads, zoo.suite, autocast=True)
    rows = [
        {**grid[row.pop("candidate")], **row}
        for row in records(table[["candidate", "task", "accuracy", "loss"]])
    ]
    return {"test": rows, "path": path}


def task_counts(
    zoo: Zoo, *, counts: Sequence[int] = COUNTS, subsets: int = 5, pictures: int = 500
) -> Tables:
    """Normalised accuracy against the number of merged tasks, as in appendix D of CART's paper.

    For every count, random subsets of the suite's tasks are merged by every method of
    `SUBSET_GRIDS`, with hyperparameters chosen for the subset on validation data.

    Args:
        zoo: of the largest suite.
        counts: how many tasks to merge, each at most as many as there are.
        subsets: how many random subsets of a count; the only one, where it is all tasks.
        pictures: at most so many test pictures of a task, and half as many for validation.

    Returns:
        ``test``: rows of ``count``, ``subset``, ``method``, ``accuracy`` and ``normalised``, means
        over the subset's tasks; and ``bounds``: for each task the accuracies between which the
        paper's Eq. 11 sees a mean vary, ``pretrained`` and ``individual``.
    """
    zoo = cut(zoo, pictures)
    own = individual(zoo, autocast=True).set_index("task")["accuracy"]
    base = evaluate(zoo.model, zoo.pretrained, zoo.heads, zoo.suite, autocast=True).set_index(
        "task"
    )["accuracy"]
    generator = torch.Generator().manual_seed(zoo.suite.seed)
    names = list(zoo.suite.tasks)
    rows = []
    for count in counts:
        for subset in range(1 if count == len(names) else subsets):
            order = torch.randperm(len(names), generator=generator)[:count]
            tasks = [names[i] for i in sorted(order.tolist())]
            part = sub_zoo(zoo, tasks)
            for label, (method, grid) in SUBSET_GRIDS.items():
                best, _ = choose(part, method, grid, autocast=True)
                merged = merge_zoo(method, part, **best)
                table = evaluate(zoo.model, merged, zoo.heads, part.suite, autocast=True)
                accuracy = table.set_index("task")["accuracy"]
                row = {"count": count, "subset": subset, "method": label}
                share = float((accuracy / own[tasks]).mean())
                rows.append({**row, "accuracy": float(accuracy.mean()), "normalised": share})
    bounds = pd.DataFrame({"pretrained": base, "individual": own}).reset_index()
    return {"test": rows, "bounds": records(bounds)}


def interference(
    zoo: Zoo, *, rank_ratios: Sequence[float] = RANK_RATIOS, pictures: int = 60
) -> Tables:
    """Interference and reconstruction error of every matrix.

    Returns:
        ``curves``, see `interference_curves`; and ``outputs``, see `output_interference`, on what
        the layers of the average get to see of so many validation pictures of each task.
    """
    device = next(zoo.model.parameters()).device
    average = merge_zoo("average", zoo)
    inputs = {
        name: layer_inputs(
            zoo.model, normalise(task.validation.inputs[:pictures].to(device)), average
        )
        for name, task in zoo.suite.tasks.items()
    }
    positive = [ratio for ratio in rank_ratios if ratio > 0]
    outputs = output_interference(zoo.experts, zoo.pretrained, inputs, positive)
    curves = interference_curves(zoo.experts, zoo.pretrained, rank_ratios)
    return {"curves": records(curves), "outputs": records(outputs)}


def compression(
    zoo: Zoo,
    *,
    rank_ratios: Sequence[float] = (0.02, 0.04, 0.08, 0.16),
    mask_scales: Sequence[float] = (0.2, 0.3, 0.4, 0.5, 0.6),
) -> Tables:
    """Experts given back by each compression, judged on their own tasks, and their storage.

    TALL masks get their ``mask_scale`` for every task from validation data.

    Returns:
        ``test``: rows of ``method``, ``setting``, ``task``, ``accuracy``; ``storage``: rows of
        ``method``, ``setting``, ``bits_per_task`` and ``shared_bytes``, with the ``parameters``.
    """
    settings: list[tuple[str, str, dict[str, Any]]] = [("emr", "", {})]
    settings += [
        ("tall_masks", f"base={base}", _best_masks(zoo, base, mask_scales))
        for base in ("task_arithmetic", "ties")
    ]
    settings += [
        ("cart_indexing", f"rank_ratio={ratio}", {"rank_ratio": ratio}) for ratio in rank_ratios
    ]
    rows = [{"method": "individual", "setting": "", **row} for row in _judged(zoo, zoo.experts)]
    storage = []
    for method, setting, options in settings:
        parts = _compress(zoo, method, options)
        named = {"method": method, "setting": setting}
        judged = _judged(zoo, {task: parts.expert(task) for task in parts.tasks})
        rows += [{**named, **row} for row in judged]
        bits = 8 * sum(map(parts.task_nbytes, parts.tasks)) / len(parts.tasks)
        storage.append({**named, "bits_per_task": bits, "shared_bytes": parts.shared_nbytes})
    count = flatten(zoo.pretrained).numel()
    return {"test": rows, "storage": [{**row, "parameters": count} for row in storage]}


def _compress(zoo: Zoo, method: str, options: Mapping[str, Any]) -> Compressed:
    base = zoo.pretrained if get_method(method, "compression").needs_pretrained else None
    return compress(method, zoo.experts, pretrained=base, **options)


def _best_masks(zoo: Zoo, base: str, scales: Sequence[float]) -> dict[str, Any]:
    """TALL masks' options, with the scale that is best for every task on validation data."""
    accuracies = {}
    for scale in scales:
        parts = _compress(zoo, "tall_masks", {"base": base, "mask_scale": scale})
        judged = _judged(zoo, {task: parts.expert(task) for task in parts.tasks}, "validation")
        accuracies[scale] = {row["task"]: row["accuracy"] for row in judged}
    best = pd.DataFrame(accuracies).idxmax(axis=1)
    return {"base": base, "mask_scale": {str(task): float(scale) for task, scale in best.items()}}


def _judged(
    zoo: Zoo, states: dict[str, dict[str, Tensor]], split: SplitName = "test"
) -> list[dict[str, Any]]:
    """Accuracy of every task under a state dict of its own."""
    table = individual(replace(zoo, experts=states), split, autocast=True)
    return records(table[["task", "accuracy"]])


STUDIES: dict[str, Study] = {
    each.__name__: each
    for each in (
        baselines,
        ranks,
        task_counts,
        interference,
        compression,
        adaptation,
        procedures,
        language,
        calibration,
        granular,
        irrelevant,
        relevant,
    )
}
PAIR_STUDIES: dict[str, Study] = {each.__name__: each for each in (fusion, thresholds, tuning)}
