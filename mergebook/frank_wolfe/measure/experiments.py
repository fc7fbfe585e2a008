"""Studies of FW-Merging: what data buys, what it costs, and pools of experts (appendix C.4).

Rows of ``test`` have ``method``, ``task``, ``accuracy`` (0..1) and ``loss`` (nats), those of
``chosen`` ``method`` and ``settings``, and what the study says besides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from mergebook.lab import comparison as lab
from mergebook.lab.grids import ADAPTED, POOL_GRIDS, REFERENCES
from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.suites.types import Zoo
from mergelib.evaluation.cost import measured
from mergelib.procedures import Adapted
from mergelib.procedures.common import unlabelled
from mergelib.statedict import StateDict, flatten

# The procedures that need labels or no entropy: to be sure of the next character is no virtue.
FOR_TEXTS = ("fisher", "regmean", "greedy_soup", "frank_wolfe", "multitask")

# Where the paper's four targets have counterparts: SUN397, Cars, GTSRB, DTD.
TARGETS = ("scenes15", "cars_body", "gtsrb", "dtd10")


@study()
def concrete(zoo: Zoo, *, steps: int = 2000) -> Tables:
    """Concrete as published, on test inputs in small steps, beside the task arithmetic it masks."""
    inputs = unlabelled(lab.examples_of(zoo, None, "test"))
    result = lab.adapted(zoo, "concrete", inputs, steps=steps)
    start = lab.merge_zoo("task_arithmetic", zoo)
    return {"test": lab.judged(zoo, "task_arithmetic", start) + lab.judged(zoo, "concrete", result)}


@study()
def procedures(
    zoo: Zoo,
    *,
    examples: int = 100,
    steps: int = 6,
    training: int = 200,
    only_of: Sequence[str] = (),
) -> Tables:
    """Every procedure on the same few training examples of each task, and data-free methods.

    AdaMerging's and Concrete's rates let parameters get as far in any number of steps (0.2 and 2).
    ``test``, ``cost`` (``seconds``, ``peak_bytes``), ``history`` (``step``, ``loss``, ``gap``,
    ``moved``), ``hull`` (``smallest`` coefficient, relative ``error`` of the iterate that the
    coefficients give back) and ``chosen`` have a row per ``method``, and per task or step.
    """
    data = lab.examples_of(zoo, examples)
    inputs = unlabelled(data)
    chosen = {name: lab.choose_wide(zoo, name, grid)[0] for name, grid in REFERENCES.items()}
    rules = {name: lab.merge_zoo(name, zoo, **best) for name, best in chosen.items()}
    trained = {"steps": training}
    runs: dict[str, tuple[str, Mapping[str, Any], dict[str, Any]]] = {
        **{name: (name, inputs, {}) for name in ("fisher", "regmean", "regmean_plusplus")},
        "greedy_soup": ("greedy_soup", data, {}),
        "adamerging": ("adamerging", inputs, {"learning_rate": 0.2 / training, **trained}),
        "concrete": ("concrete", inputs, {"learning_rate": 2 / training, **trained}),
        "surgery": ("surgery", inputs, {"start": "average"}),
        "surgery+cart": ("surgery", inputs, {"start": "cart"}),
        "multitask": ("multitask", data, trained),
    }
    for kind, variant in lab.KINDS.items():
        options = {**variant, "steps": steps, "tolerance": lab.TOLERANCE}
        runs[f"frank_wolfe {kind}"] = ("frank_wolfe", data, options)
        for start in ("cart", "adamerging") if options["granularity"] == "layer" else ():
            name = f"frank_wolfe {kind}, from {start}"
            runs[name] = ("frank_wolfe", data, {**options, "start": start})
    free = {"constraint": "none", "top_k": len(zoo.experts), "steps": steps}
    runs["frank_wolfe soft, by task, unconstrained"] = ("frank_wolfe", data, free)

    tables: Tables = {"test": [], "cost": [], "history": [], "hull": []}
    tables["chosen"] = lab.choices(chosen)
    starts = {"pretrained": zoo.pretrained, **rules}
    for name, state in starts.items():
        tables["test"] += lab.judged(zoo, name, state)
    tables["test"] += lab.judged_alone(zoo)
    for name, (method, part, options) in runs.items():
        start = options.get("start", "pretrained")
        if (only_of and method not in only_of) or start not in starts:
            continue
        if "start" in options:
            options["start"] = starts[start]
        with measured(next(iter(zoo.pretrained.values())).device) as cost:
            result = lab.adapted(zoo, method, part, **options)
        starts[name] = result.state
        peak = {"seconds": cost.seconds, "peak_bytes": cost.peak_bytes}
        tables["cost"].append({"method": name, **peak})
        tables["test"] += lab.judged(zoo, name, result)
        if method == "frank_wolfe":
            history = result.history[["step", "loss", "gap", "moved"]]
            tables["history"] += lab.records(history.assign(method=name))
            tables["hull"].append({"method": name, **_proof(zoo, result, starts[start])})
    return tables


@study()
def language(zoo: Zoo, *, examples: int = 20, steps: int = 4) -> Tables:
    """`procedures` on a few windows of each text, without those that work by entropy."""
    return procedures(zoo, examples=examples, steps=steps, only_of=FOR_TEXTS)


@study()
def calibration(zoo: Zoo, *, sizes: Sequence[int] = (5, 20, 100), steps: int = 5) -> Tables:
    """Accuracy by ``examples`` per task, 0 for all, against multi-task training on the same."""
    best = lab.choose_wide(zoo, "cart", ADAPTED["cart"])[0]
    start = lab.merge_zoo("cart", zoo, **best)
    common = {"steps": steps, "tolerance": lab.TOLERANCE}
    soft = {**lab.KINDS["soft, by task"], **common}
    hard = {**lab.KINDS["hard, by layer"], **common, "start": start}
    rows = []
    for size in sizes:
        data = lab.examples_of(zoo, size)
        for name, method, options in (
            ("frank_wolfe soft", "frank_wolfe", soft),
            ("frank_wolfe hard, from cart", "frank_wolfe", hard),
            ("regmean", "regmean", {}),
            ("multitask", "multitask", {"steps": 200}),
        ):
            part = unlabelled(data) if method == "regmean" else data
            result = lab.adapted(zoo, method, part, **options)
            rows += [{"examples": size, **row} for row in lab.judged(zoo, name, result)]
    result = lab.adapted(zoo, "multitask", lab.examples_of(zoo, None), steps=1250)
    rows += [{"examples": 0, **row} for row in lab.judged(zoo, "multitask", result)]
    for name, state in (("pretrained", zoo.pretrained), ("cart", start)):
        rows += [{"examples": 0, **row} for row in lab.judged(zoo, name, state)]
    return {"test": rows, "chosen": lab.choices({"cart": best})}


@study()
def irrelevant(
    zoo: Zoo, *, counts: Sequence[int] = (0, 1, 2, 4, 8, 16), examples: int = 100, steps: int = 5
) -> Tables:
    """A pool of four experts that ``count`` others of other tasks join (appendix C.4)."""
    known = set(TARGETS) <= set(zoo.suite.tasks)
    targets = list(TARGETS if known else list(zoo.suite.tasks)[:4])
    others = [task for task in _shuffled(zoo) if task not in targets]
    pools = {count: [*targets, *others[:count]] for count in counts}
    judge = replace(zoo, suite=lab.only(zoo.suite, targets))
    return _pooled(judge, pools, examples, steps, labels=True)


@study()
def relevant(
    zoo: Zoo,
    *,
    counts: Sequence[int] = (2, 5, 10, 15, 20),
    examples: int = 25,
    steps: int = 5,
    pictures: int = 500,
) -> Tables:
    """A pool that experts of more and more (``count``) of the judged tasks join (appendix C.4)."""
    order = _shuffled(zoo)
    pools = {count: order[:count] for count in counts}
    return _pooled(lab.cut(zoo, pictures), pools, examples, steps)


def _pooled(
    zoo: Zoo, pools: Mapping[int, list[str]], examples: int, steps: int, *, labels: bool = False
) -> Tables:
    """Rules and two procedures on pools of experts, judged on the suite's tasks."""
    tables: Tables = {"test": [], "chosen": []}
    inputs = unlabelled(lab.examples_of(zoo, examples, "test"))
    options: dict[str, Any] = {"steps": steps, "tolerance": lab.TOLERANCE}
    for count, pool in pools.items():
        part = replace(zoo, experts={name: zoo.experts[name] for name in pool})
        chosen = {rule: lab.best_of(part, rule, grid) for rule, grid in POOL_GRIDS.items()}
        made: dict[str, Adapted | StateDict] = {
            rule: lab.merge_zoo(rule, part, **best) for rule, best in chosen.items()
        }
        made["adamerging"] = lab.adapted(part, "adamerging", inputs, steps=150)
        made["frank_wolfe"] = lab.adapted(part, "frank_wolfe", inputs, loss="entropy", **options)
        if labels:
            data = lab.examples_of(zoo, examples)
            made["frank_wolfe, labels"] = lab.adapted(part, "frank_wolfe", data, **options)
        for name, result in made.items():
            tables["test"] += [{"count": count, **row} for row in lab.judged(part, name, result)]
        tables["chosen"] += lab.choices(chosen, count=count)
    return tables


def _shuffled(zoo: Zoo) -> list[str]:
    names = list(zoo.suite.tasks)
    generator = torch.Generator().manual_seed(zoo.suite.seed)
    return [names[i] for i in torch.randperm(len(names), generator=generator).tolist()]


def _proof(zoo: Zoo, result: Adapted, start: StateDict) -> dict[str, float]:
    """How far the coefficients prove that the merged model lies in the hull."""
    table, vertices = result.coefficients, [*zoo.experts.values(), start]
    keys = list(table.columns)
    pairs = {key: zip(table[key], vertices, strict=True) for key in keys}
    rebuilt = {key: sum(weight * each[key] for weight, each in pairs[key]) for key in keys}
    merged = flatten({key: result.state[key] for key in keys})
    error = (flatten(rebuilt) - merged).norm() / merged.norm()
    return {"smallest": float(table.to_numpy().min()), "error": float(error)}
