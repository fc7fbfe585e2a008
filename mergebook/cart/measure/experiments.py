"""Studies of CART: rules and compressions against it, ranks, AdaMerging on it, and BatchNorm.

Rows of ``test`` have ``method``, ``task``, ``accuracy`` (0..1) and ``loss`` (nats), those of
``chosen`` ``method`` and ``settings``, and what the study says besides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import pandas as pd
import torch

from mergebook.cart.theory import interference_curves
from mergebook.lab import comparison as lab
from mergebook.lab.experts import judge_merges
from mergebook.lab.grids import ADAPTED, FIRST_GRIDS, SUBSET_GRIDS
from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.suites.types import Zoo
from mergelib.compression import Compressed, compress
from mergelib.evaluation.loops import evaluate
from mergelib.procedures.common import unlabelled
from mergelib.registry import get_method
from mergelib.statedict import StateDict, flatten
from mergelib.tuning import Grid

RANK_RATIOS = (0.0, 0.01, 0.02, 0.04, 0.08, 0.12, 0.16, 0.24, 0.32, 0.5, 0.75, 1.0)
COUNTS = (2, 4, 8, 12, 16, 20)


@study()
def baselines(
    zoo: Zoo, *, methods: str | Sequence[str] | None = None, grids: Mapping[str, Grid] = FIRST_GRIDS
) -> Tables:
    """Rules with hyperparameters chosen on validation data, judged on test data.

    ``chosen``: one row of all settings; ``validation``: each grid point; ``test``: rows of
    `compare`.
    """
    settings, searched = {}, []
    methods = [methods] if isinstance(methods, str) else methods or tuple(grids)
    for method in methods:
        get_method(method)  # an unknown method fails before any work
        if method not in grids:
            raise ValueError(f"no grid for {method!r}; there are: {', '.join(grids)}")
    for method in methods:
        settings[method], table = lab.choose_wide(zoo, method, grids[method])
        searched += lab.records(table.assign(method=method))
    columns = ["method", "task", "accuracy", "normalised", "loss", "correct", "n"]
    test = lab.records(lab.compare(zoo, settings)[columns])
    chosen = {"zoo": zoo.fingerprint, "settings": settings}
    return {"chosen": [chosen], "validation": searched, "test": test}


@study()
def larv(zoo: Zoo, *, grids: Mapping[str, Grid]) -> Tables:
    """`baselines` with LARV's scales on the layers of every expert's task vector."""
    return baselines(lab.scaled_by_larv(zoo), grids=grids)


@study()
def ranks(
    zoo: Zoo,
    *,
    rank_ratios: Sequence[float] = RANK_RATIOS,
    scales: Sequence[float] = (1.0, 2.0, 3.0),
    uncentred_scales: Sequence[float] = (0.3, 1.0),
) -> Tables:
    """``test``: rows of ``method``, ``scale``, ``rank_ratio``, ``task``, ``accuracy``, ``loss``."""
    grid: list[dict[str, Any]] = [
        {"method": method, "scale": scale, "rank_ratio": ratio}
        for method, own in (("cart", scales), ("low_rank_task_arithmetic", uncentred_scales))
        for scale in own
        for ratio in rank_ratios
    ]
    merges = ((i, lab.merge_zoo(zoo=zoo, **point)) for i, point in enumerate(grid))
    return {"test": [{**grid[i], **row} for i, row in judge_merges(zoo, merges)]}


@study()
def task_counts(
    zoo: Zoo, *, counts: Sequence[int] = COUNTS, subsets: int = 5, pictures: int = 500
) -> Tables:
    """Normalised accuracy against the number of merged tasks, as in appendix D of CART's paper.

    ``test``: by ``count``, ``subset`` and ``method`` the means ``accuracy`` and ``normalised``;
    ``bounds``: for each task the accuracies between which the paper's Eq. 11 sees a mean vary,
    ``pretrained`` and ``individual``; ``chosen``: settings by count, subset and method.
    """
    zoo = lab.cut(zoo, pictures)
    own = lab.individual(zoo, autocast=True).set_index("task")["accuracy"]
    base = lab.accuracies(zoo, {"pretrained": zoo.pretrained}, autocast=True).T["pretrained"]
    generator = torch.Generator().manual_seed(zoo.suite.seed)
    names = list(zoo.suite.tasks)
    rows, chosen = [], []
    for count in counts:
        for subset in range(1 if count == len(names) else subsets):
            order = torch.randperm(len(names), generator=generator)[:count]
            tasks = [names[i] for i in sorted(order.tolist())]
            part = lab.sub_zoo(zoo, tasks)
            for label, (method, grid) in SUBSET_GRIDS.items():
                best = lab.best_of(part, method, grid)
                chosen += lab.choices({label: best}, count=count, subset=subset)
                merged = lab.merge_zoo(method, part, **best)
                accuracy = lab.accuracies(part, {label: merged}, autocast=True).T[label]
                row = {"count": count, "subset": subset, "method": label}
                share = float((accuracy / own[tasks]).mean())
                rows.append({**row, "accuracy": float(accuracy.mean()), "normalised": share})
    bounds = pd.DataFrame({"pretrained": base, "individual": own}).reset_index()
    return {"test": rows, "bounds": lab.records(bounds), "chosen": chosen}


@study()
def interference(zoo: Zoo, *, rank_ratios: Sequence[float] = RANK_RATIOS) -> Tables:
    """Interference and reconstruction error of every matrix, see `interference_curves`."""
    curves = interference_curves(zoo.experts, zoo.pretrained, rank_ratios, is_matrix=zoo.is_matrix)
    return {"curves": lab.records(curves)}


@study()
def compression(
    zoo: Zoo,
    *,
    rank_ratios: Sequence[float] = (0.02, 0.04, 0.08, 0.16),
    mask_scales: Sequence[float] = (0.2, 0.3, 0.4, 0.5, 0.6),
) -> Tables:
    """Experts given back by each compression, judged on their own tasks, and their storage.

    TALL masks get each task's ``mask_scale`` from validation data, by accuracy, or for texts by
    loss. ``test`` and ``storage`` have ``setting`` and ``rest``, which is empty but for
    CART-Indexing; results from before there was ``rest`` have the average.
    """
    settings: list[tuple[str, str, dict[str, Any]]] = [("emr", "", {})]
    masks = {base: _best_masks(zoo, base, mask_scales) for base in ("task_arithmetic", "ties")}
    settings += [("tall_masks", f"base={base}", options) for base, options in masks.items()]
    settings += [
        ("cart_indexing", f"rank_ratio={ratio}", {"rank_ratio": ratio, "rest": rest})
        for rest, ratio in product(("own", "average"), rank_ratios)
    ]
    rows, storage = lab.judged_alone(zoo, setting="", rest=""), []
    for method, setting, options in settings:
        parts = _compress(zoo, method, options)
        named = {"method": method, "setting": setting, "rest": options.get("rest", "")}
        own = replace(zoo, experts={task: parts.expert(task) for task in parts.tasks})
        rows += [{**row, **named} for row in lab.judged_alone(own)]
        bits = 8 * sum(map(parts.task_nbytes, parts.tasks)) / len(parts.tasks)
        size = {"shared_bytes": parts.shared_nbytes, "parameters": flatten(zoo.pretrained).numel()}
        storage.append({**named, "bits_per_task": bits, **size})
    chosen = [row for options in masks.values() for row in lab.choices({"tall_masks": options})]
    return {"test": rows, "storage": storage, "chosen": chosen}


@study()
def adaptation(
    zoo: Zoo,
    *,
    grids: Mapping[str, Grid] = ADAPTED,
    bases: Sequence[str] | None = None,
    granularities: Sequence[Literal["layer", "task"]] = ("layer",),
    steps: int = 300,
    learning_rate: float = 1e-3,
    batch_size: int = 16,
    adarank: bool = False,
) -> Tables:
    """AdaMerging on test inputs, from data-free methods at settings chosen on validation data.

    ``test``: rows of ``method`` (a base, or ``adamerging+`` and a base), ``granularity`` (empty for
    a base; "layer" in older results without it), ``task``, ``accuracy``; ``chosen``: settings. With
    ``adarank``, AdaRank too, and ``ranks``: rows of ``base``, ``expert``, ``matrix`` and ``rank``.
    """
    data = unlabelled(lab.examples_of(zoo, None, "test"))
    rows, chosen, ranks = [], [], []
    fixed = {"steps": steps, "learning_rate": learning_rate, "batch_size": batch_size}
    for base in grids if bases is None else bases:
        best = lab.choose_wide(zoo, base, grids[base])[0]
        chosen += lab.choices({base: best})
        options = {"init": best["scale"], "rank_ratio": best.get("rank_ratio", 1.0), **fixed}
        states: dict[tuple[str, str], StateDict] = {(base, ""): lab.merge_zoo(base, zoo, **best)}
        for fine in granularities:
            result = lab.adapted(zoo, "adamerging", data, base=base, granularity=fine, **options)
            states[f"adamerging+{base}", fine] = result.state
        if adarank:
            result = lab.adapted(zoo, "adarank", data, base=base, **options)
            states[f"adarank+{base}", "layer"] = result.state
            kept = result.ranks.rename_axis("expert").reset_index()
            ranks += lab.records(kept.melt("expert", None, "matrix", "rank").assign(base=base))
        for (method, kind), state in states.items():
            table = evaluate(zoo.model, state, zoo.heads, zoo.suite)[["task", "accuracy"]]
            rows += lab.records(table.assign(method=method, granularity=kind))
    return {"test": rows, "chosen": chosen} | ({"ranks": ranks} if adarank else {})


@study()
def coefficients(zoo: Zoo, *, rates: Sequence[float] = (1e-3, 1e-2), steps: int = 300) -> Tables:
    """CART with coefficients of AdaMerging: learned by entropy of test inputs, and from labels.

    ``method`` is ``cart``, or the loss; the learning ``rate`` is 0 for CART.
    """
    best = lab.choose_wide(zoo, "cart", ADAPTED["cart"])[0]
    merged = lab.merge_zoo("cart", zoo, **best)
    rows = [{"rate": 0, **row} for row in lab.judged(zoo, "cart", merged)]
    splits: dict[str, Mapping[str, Any]] = {
        "entropy": unlabelled(lab.examples_of(zoo, None, "test")),
        "cross_entropy": lab.examples_of(zoo, None),
    }
    options = {"base": "cart", "init": best["scale"], "rank_ratio": best["rank_ratio"]}
    for loss, data in splits.items():
        for rate in rates:
            result = lab.adapted(
                zoo, "adamerging", data, loss=loss, learning_rate=rate, steps=steps, **options
            )
            rows += [{**row, "rate": rate} for row in lab.judged(zoo, loss, result)]
    return {"test": rows, "chosen": lab.choices({"cart": best})}


@study()
def batch_norm(
    zoo: Zoo,
    *,
    methods: Sequence[str] = ("average", "task_arithmetic", "cart"),
    examples: int = 100,
) -> Tables:
    """Merged networks with "merged" and with "measured" ``statistics`` of BatchNorm."""
    rows = lab.judged_alone(zoo, statistics="merged")
    chosen = []
    for method in methods:
        best = lab.choose_wide(zoo, method, FIRST_GRIDS[method])[0]
        chosen += lab.choices({method: best})
        merged = lab.merge_zoo(method, zoo, **best)
        rows += lab.judged(zoo, method, merged, statistics="merged")
        measured = lab.measured_anew(zoo, merged, examples)
        rows += lab.judged(zoo, method, measured, statistics="measured")
    return {"test": rows, "chosen": chosen}


def _compress(zoo: Zoo, method: str, options: Mapping[str, Any]) -> Compressed:
    base = zoo.pretrained if get_method(method, "compression").needs_pretrained else None
    return compress(method, zoo.experts, pretrained=base, is_matrix=zoo.is_matrix, **options)


def _best_masks(zoo: Zoo, base: str, scales: Sequence[float]) -> dict[str, Any]:
    """TALL masks' options, with the scale that is best for every task on validation data."""
    scores = {}
    for scale in scales:
        parts = _compress(zoo, "tall_masks", {"base": base, "mask_scale": scale})
        own = replace(zoo, experts={task: parts.expert(task) for task in parts.tasks})
        table = lab.individual(own, "validation", autocast=True)
        scores[scale] = lab.merits(zoo, table.set_index("task"))
    best = pd.DataFrame(scores).idxmax(axis=1)
    return {"base": base, "mask_scale": {str(task): float(scale) for task, scale in best.items()}}
