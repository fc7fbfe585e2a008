"""Studies of procedures, the methods that look at data: what data buys, and what it costs.

Calibration examples are the first of each task's training split, whose order is random, or of its
test split without labels, where a paper adapts to test inputs. See `mergelib.studies.runner`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from mergelib.measure import measured
from mergelib.procedures import Adapted, adapt
from mergelib.procedures.common import unlabelled
from mergelib.registry import get_method
from mergelib.statedict import StateDict, flatten
from mergelib.studies.comparison import (
    GRIDS,
    Grid,
    choose,
    individual,
    merge_zoo,
    records,
)
from mergelib.testbed.evaluation import SplitName, evaluate
from mergelib.testbed.tasks import Transform
from mergelib.testbed.zoo import Zoo

Tables = dict[str, list[dict[str, Any]]]
Data = dict[str, tuple[Tensor, Tensor]]

# What AdaMerging starts from, and what is searched for the start.
ADAPTED: dict[str, Grid] = {
    "task_arithmetic": {"scale": GRIDS["task_arithmetic"]["scale"]},
    "ties": {"scale": GRIDS["task_arithmetic"]["scale"], "reduce": ["sum"]},
    "cart": {"scale": GRIDS["cart"]["scale"], "rank_ratio": [0.16]},
}

# Data-free methods to compare with, at hyperparameters chosen on validation data.
REFERENCES: dict[str, Grid] = {
    "average": {},
    "task_arithmetic": ADAPTED["task_arithmetic"],
    "cart": ADAPTED["cart"],
}

# What CoGraM starts from.
MERGED: dict[str, Grid] = {"average": {}, **ADAPTED}

# Frank-Wolfe's four kinds.
KINDS: dict[str, dict[str, Any]] = {
    f"{variant}, by {granularity}": {"variant": variant, "granularity": granularity}
    for variant in ("hard", "soft")
    for granularity in ("task", "layer")
}

TOLERANCE = 0.05  # nats: Frank-Wolfe stops at a gap of that; the first ones are above 1


def adaptation(zoo: Zoo, *, grids: Mapping[str, Grid] = ADAPTED, steps: int = 300) -> Tables:
    """AdaMerging on test inputs, from data-free methods at scales chosen on validation data.

    Returns:
        ``test``: rows of ``method`` (a base, or ``adamerging+`` and a base), ``task`` and
        ``accuracy``; ``history``: rows of ``base``, ``step`` and ``entropy``, the sum over tasks.
    """
    data = unlabelled(examples_of(zoo, None, "test"))
    rows, history = [], []
    for base, grid in grids.items():
        best, _ = choose(zoo, base, grid, autocast=True)
        made = adapted(
            zoo,
            "adamerging",
            data,
            base=base,
            init=best["scale"],
            rank_ratio=best.get("rank_ratio", 0.0),
            steps=steps,
        )
        states = {base: merge_zoo(base, zoo, **best), f"adamerging+{base}": made.state}
        for method, state in states.items():
            table = evaluate(zoo.model, state, zoo.heads, zoo.suite)
            rows += [{"method": method, **row} for row in records(table[["task", "accuracy"]])]
        totals = made.history.drop(columns="step").sum(axis=1)[::10]
        history += [{"base": base, "step": i, "entropy": each} for i, each in totals.items()]
    return {"test": rows, "history": history}


def coefficients(zoo: Zoo, *, rates: Sequence[float] = (1e-3, 1e-2), steps: int = 300) -> Tables:
    """What AdaMerging's coefficients on CART could give: the same ones learned from labels.

    By the entropy of the test inputs, as in `adaptation`, and by the cross-entropy of the whole
    labelled training split, from the scale that was chosen on validation data.

    Returns:
        ``test``: rows of ``method`` (``cart``, or the loss), learning ``rate`` (0 for CART),
        ``task``, ``accuracy`` and ``loss``; ``history``: rows of ``method``, ``rate``, ``step`` and
        ``value``, the mean over tasks of what is minimised (nats); ``moved``: rows of ``method``,
        ``rate``, the ``mean`` coefficient relative to the start and their ``spread``.
    """
    best, _ = choose(zoo, "cart", ADAPTED["cart"], autocast=True)
    rows = judged(zoo, "cart", Adapted(merge_zoo("cart", zoo, **best)))
    tables: Tables = {"test": [{"rate": 0, **row} for row in rows], "history": [], "moved": []}
    splits: dict[str, Mapping[str, Any]] = {
        "entropy": unlabelled(examples_of(zoo, None, "test")),
        "cross_entropy": examples_of(zoo, None),
    }
    options = {"base": "cart", "init": best["scale"], "rank_ratio": best["rank_ratio"]}
    for loss, data in splits.items():
        for rate in rates:
            made = adapted(
                zoo, "adamerging", data, loss=loss, learning_rate=rate, steps=steps, **options
            )
            own = {"method": loss, "rate": rate}
            tables["test"] += [{**row, **own} for row in judged(zoo, loss, made)]
            values = made.history.drop(columns="step").mean(axis=1)[::10]
            tables["history"] += [{**own, "step": i, "value": each} for i, each in values.items()]
            share = (made.coefficients / best["scale"]).to_numpy()
            moved = {"mean": float(share.mean()), "spread": float(share.std())}
            tables["moved"].append({**own, **moved})
    return tables


def concrete(zoo: Zoo, *, steps: int = 2000) -> Tables:
    """Concrete as published, on test inputs in small steps, beside the task arithmetic it masks.

    Returns:
        ``test``: rows of ``method``, ``task``, ``accuracy`` and ``loss``; ``history``: rows of
        ``step`` and ``entropy``, the mean over tasks (nats), every tenth step.
    """
    made = adapted(zoo, "concrete", unlabelled(examples_of(zoo, None, "test")), steps=steps)
    start = Adapted(merge_zoo("task_arithmetic", zoo))
    means = made.history.drop(columns="step").mean(axis=1)[::10]
    return {
        "test": judged(zoo, "task_arithmetic", start) + judged(zoo, "concrete", made),
        "history": [{"step": i, "entropy": each} for i, each in means.items()],
    }


def procedures(
    zoo: Zoo, *, examples: int = 100, steps: int = 6, only_of: Sequence[str] = ()
) -> Tables:
    """Every procedure on the same few training examples of each task.

    Frank-Wolfe starts from the pretrained model, and by layer from CART and AdaMerging too; Surgery
    repairs the average and CART. Scales of the data-free methods are chosen on validation data.
    AdaMerging, Concrete and multi-task training take 200 steps, which is a tenth of Concrete's
    default, at ten times its rate.

    Args:
        zoo: experts and their suite.
        examples: of each task; procedures that need no labels do not see them.
        steps: of Frank-Wolfe.
        only_of: the procedures to run; all, where none is named.

    Returns:
        ``test``: rows of ``method``, ``task``, ``accuracy`` and ``loss``; ``cost``: rows of
        ``method``, ``seconds`` and ``peak_bytes``; ``history``: rows of ``method``, ``step``,
        ``loss``, ``gap`` and ``moved``; ``hull``: rows of ``method``, the ``smallest`` coefficient
        and the relative ``error`` of the iterate that the coefficients give back.
    """
    data = examples_of(zoo, examples)
    inputs = unlabelled(data)
    rules = {
        name: merge_zoo(name, zoo, **best_of(zoo, name, grid)) for name, grid in REFERENCES.items()
    }
    runs: dict[str, tuple[str, Mapping[str, Any], dict[str, Any]]] = {
        "fisher": ("fisher", inputs, {}),
        "regmean": ("regmean", inputs, {}),
        "greedy_soup": ("greedy_soup", data, {}),
        "adamerging": ("adamerging", inputs, {"steps": 200}),
        "concrete": ("concrete", inputs, {"steps": 200, "learning_rate": 1e-2}),
        "surgery": ("surgery", inputs, {"start": "average"}),
        "surgery+cart": ("surgery", inputs, {"start": "cart"}),
        "multitask": ("multitask", data, {"steps": 200}),
    }
    for kind, chosen in KINDS.items():
        options = {**chosen, "steps": steps, "tolerance": TOLERANCE}
        runs[f"frank_wolfe {kind}"] = ("frank_wolfe", data, options)
        for start in ("cart", "adamerging") if options["granularity"] == "layer" else ():
            name = f"frank_wolfe {kind}, from {start}"
            runs[name] = ("frank_wolfe", data, {**options, "start": start})
    free = {"constraint": "none", "top_k": len(zoo.experts), "steps": steps}
    runs["frank_wolfe soft, by task, unconstrained"] = ("frank_wolfe", data, free)

    tables: Tables = {"test": [], "cost": [], "history": [], "hull": []}
    for name, state in {"pretrained": zoo.pretrained, **rules}.items():
        tables["test"] += judged(zoo, name, Adapted(dict(state)))
    own = individual(zoo, autocast=True)[["task", "accuracy", "loss"]]
    tables["test"] += records(own.assign(method="individual"))
    starts = {"pretrained": zoo.pretrained, **rules}
    for name, (method, part, options) in runs.items():
        start = options.get("start", "pretrained")
        if (only_of and method not in only_of) or start not in starts:
            continue
        if "start" in options:
            options["start"] = starts[start]
        with measured() as cost:
            made = adapted(zoo, method, part, **options)
        starts[name] = made.state
        peak = {"seconds": cost.seconds, "peak_bytes": cost.peak_bytes}
        tables["cost"].append({"method": name, **peak})
        tables["test"] += judged(zoo, name, made)
        if method == "frank_wolfe":
            history = made.history[["step", "loss", "gap", "moved"]]
            tables["history"] += records(history.assign(method=name))
            proof = _proof(zoo, made, starts[start])
            tables["hull"].append({"method": name, **proof})
    return tables


def language(zoo: Zoo, *, examples: int = 20, steps: int = 4) -> Tables:
    """`procedures` on a few windows of each text, without those that work by entropy.

    To be sure of the next character is no virtue: a text has an entropy of its own.
    """
    chosen = ("fisher", "regmean", "greedy_soup", "frank_wolfe", "multitask")
    return procedures(zoo, examples=examples, steps=steps, only_of=chosen)


def calibration(zoo: Zoo, *, sizes: Sequence[int] = (5, 20, 100), steps: int = 5) -> Tables:
    """Accuracy against the number of labelled examples of each task.

    Frank-Wolfe against multi-task training on the same examples, for as many steps at every size;
    and multi-task training on the whole training split, which has ``examples`` zero.

    Returns:
        ``test``: rows of ``method``, ``examples``, ``task`` and ``accuracy``.
    """
    start = merge_zoo("cart", zoo, **best_of(zoo, "cart", ADAPTED["cart"]))
    soft = {**KINDS["soft, by task"], "steps": steps, "tolerance": TOLERANCE}
    hard = {**KINDS["hard, by layer"], "steps": steps, "tolerance": TOLERANCE, "start": start}
    rows = []
    for size in sizes:
        data = examples_of(zoo, size)
        for name, method, options in (
            ("frank_wolfe soft", "frank_wolfe", soft),
            ("frank_wolfe hard, from cart", "frank_wolfe", hard),
            ("regmean", "regmean", {}),
            ("multitask", "multitask", {"steps": 200}),
        ):
            part = unlabelled(data) if method == "regmean" else data
            made = adapted(zoo, method, part, **options)
            rows += [{"examples": size, **row} for row in judged(zoo, name, made)]
    whole = {name: (task.train.inputs, task.train.labels) for name, task in zoo.suite.tasks.items()}
    made = adapted(zoo, "multitask", whole, steps=1250)
    rows += [{"examples": 0, **row} for row in judged(zoo, "multitask", made)]
    for name, state in (("pretrained", zoo.pretrained), ("cart", start)):
        rows += [{"examples": 0, **row} for row in judged(zoo, name, Adapted(dict(state)))]
    return {"test": rows}


def granular(zoo: Zoo, *, examples: int = 10) -> Tables:
    """CoGraM, layer by layer, after data-free merges and after Frank-Wolfe.

    Losses are taken on so many training examples of each task. As the paper has it, and with
    rollback at layers too, which undoes a layer whose mixture raises the loss.

    Returns:
        ``test``: rows of ``base``, ``method`` (``none``, ``cogram``, ``cogram, rolled back``),
        ``task``, ``accuracy`` and ``loss``; ``layers``: rows of ``base``, ``method``, ``layer``,
        ``spread``, ``before``, ``after`` and ``accepted``.
    """
    data = examples_of(zoo, examples)
    bases = {
        name: merge_zoo(name, zoo, **best_of(zoo, name, each)) for name, each in MERGED.items()
    }
    walk = {**KINDS["soft, by task"], "steps": 4, "tolerance": TOLERANCE}
    bases["frank_wolfe"] = adapted(zoo, "frank_wolfe", data, **walk).state
    tables: Tables = {"test": [], "layers": []}
    for base, start in bases.items():
        runs: dict[str, Adapted] = {"none": Adapted(dict(start))}
        for method, rollback in (("cogram", ()), ("cogram, rolled back", ("layer",))):
            runs[method] = adapted(zoo, "cogram", data, start=start, rollback=rollback)
            kept = runs[method].history[["layer", "spread", "before", "after", "accepted"]]
            tables["layers"] += records(kept.assign(base=base, method=method))
        for method, made in runs.items():
            tables["test"] += [{"base": base, **row} for row in judged(zoo, method, made)]
    return tables


def adapted(zoo: Zoo, method: str, data: Mapping[str, Any], **options: Any) -> Adapted:
    """`adapt` on a zoo; the suite's seed decides what a procedure draws."""
    if "seed" in get_method(method, "procedure").hyperparameters:
        options["seed"] = zoo.suite.seed
    return adapt(
        method,
        zoo.experts,
        pretrained=zoo.pretrained,
        model=zoo.model,
        heads=zoo.heads,
        data=data,
        transform=_transform(zoo),
        **options,
    )


def _transform(zoo: Zoo) -> Transform:
    """The transform that all tasks of a zoo share."""
    transforms = set(zoo.suite.transforms.values())
    if len(transforms) > 1:
        raise ValueError(f"the tasks of {zoo.suite.name} have several transforms, expected one")
    return transforms.pop()


def best_of(zoo: Zoo, method: str, grid: Grid) -> dict[str, Any]:
    """The best of a rule's hyperparameters on validation data."""
    return choose(zoo, method, grid, autocast=True)[0]


def judged(zoo: Zoo, method: str, made: Adapted) -> list[dict[str, Any]]:
    """Test accuracy and loss (nats) of every task, a row each."""
    heads = {**zoo.heads, **made.heads}
    table = evaluate(zoo.model, made.state, heads, zoo.suite, autocast=True)
    return records(table[["task", "accuracy", "loss"]].assign(method=method))


def examples_of(zoo: Zoo, count: int | None, split: SplitName | Literal["train"] = "train") -> Data:
    """The first so many examples of every task, or all: name to inputs and labels."""
    parts = {name: getattr(task, split) for name, task in zoo.suite.tasks.items()}
    return {name: (part.inputs[:count], part.labels[:count]) for name, part in parts.items()}


def _proof(zoo: Zoo, made: Adapted, start: StateDict) -> dict[str, float]:
    """How far the coefficients prove that the merged model lies in the hull."""
    table = made.coefficients
    vertices = [*zoo.experts.values(), start]
    keys = list(table.columns)
    rebuilt = {
        key: sum(weight * vertex[key] for weight, vertex in zip(table[key], vertices, strict=True))
        for key in keys
    }
    found = flatten({key: made.state[key] for key in keys})
    error = (flatten(rebuilt) - found).norm() / found.norm()
    return {"smallest": float(table.to_numpy().min()), "error": float(error)}
