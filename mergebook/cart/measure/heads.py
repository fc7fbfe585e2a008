"""Merged models under heads that are fitted to their own features, beside the frozen heads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from mergebook.lab import comparison as lab
from mergebook.lab.experts import train_experts
from mergebook.lab.grids import GRIDS
from mergebook.lab.heads import accuracy_of, features_of, judged_under_heads, labelled, ridge
from mergebook.lab.results import Tables
from mergebook.lab.runner import beginning_of, study
from mergebook.suites.training import checkpoints
from mergebook.suites.types import Zoo
from mergelib.procedures.common import unlabelled
from mergelib.statedict import StateDict
from mergelib.tuning import Grid, merged_grid, points, widened

States = dict[tuple[str, str], StateDict]  # by method and what its settings were chosen by
SCALES = [0.5, 0.7, 1.0, 1.4, 2.0]
JUDGED: dict[str, Grid] = {
    "average": {},
    "task_arithmetic": {"scale": [0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0]},
    "ties": {"density": [0.1, 0.2, 0.5], "scale": [*SCALES, 2.8]},
    "consensus": GRIDS["consensus"],
    "cart": {"rank_ratio": [0.04, 0.08, 0.16, 0.32], "scale": [1.0, 1.5, 2.2, 3.2]},
    **{name: {"scale": SCALES} for name in ("tsv", "iso_c", "iso_cts")},
}


def _candidates(zoo: Zoo, method: str, grid: Grid) -> Iterator[tuple[int, StateDict]]:
    """Yield the merges by a rule, or by a procedure on each task's first unlabelled examples."""
    if "examples" in grid:
        for i, point in enumerate(points(grid)):
            data = unlabelled(lab.examples_of(zoo, point.pop("examples")))
            yield i, lab.adapted(zoo, method, data, **point).state
        return
    zoo = lab.scaled_by_larv(zoo) if method.endswith("+larv") else zoo
    rule = method.removesuffix("+larv").removesuffix("+lines")  # these differ in scales alone
    yield from merged_grid(partial(lab.merge_zoo, rule, zoo), rule, grid)


def _validated(zoo: Zoo, method: str, grid: Grid) -> pd.DataFrame:
    """Return mean accuracy on validation data under frozen heads and, left out, under new ones."""
    rows = points(grid)
    for i, state in _candidates(zoo, method, grid):
        frozen, fresh = [], []
        for name, task in zoo.suite.tasks.items():
            pair = features_of(zoo, state, name, task.validation)
            frozen.append(accuracy_of(zoo.heads[name], pair))
            fresh.append(ridge(*pair, len(task.class_names))[1])
        rows[i] |= {"frozen": sum(frozen) / len(frozen), "fresh": sum(fresh) / len(fresh)}
    return pd.DataFrame(rows)


def _bests(table: pd.DataFrame) -> list[int]:
    return [int(table[column].argmax()) for column in ("frozen", "fresh")]


def _chosen(zoo: Zoo, grids: Mapping[str, Grid]) -> tuple[Tables, States]:
    tables: Tables = {"chosen": [], "validation": []}
    states: States = {("pretrained", ""): zoo.pretrained}
    for method, grid in grids.items():
        table = widened(grid, partial(_validated, zoo, method), _bests)
        tables["validation"] += lab.records(table.assign(method=method))
        for place, by in zip(_bests(table), ("frozen", "fresh"), strict=True):
            best = {name: table[name].tolist()[place] for name in grid}
            tables["chosen"] += lab.choices({method: best}, by=by)
            ((_, states[method, by]),) = _candidates(zoo, method, {k: [v] for k, v in best.items()})
    return tables, states


@study()
def fresh_heads(
    zoo: Zoo,
    *,
    grids: Mapping[str, Grid] = JUDGED,
    shots: Sequence[int] = (5, 20, 100),
    everything: bool = True,
) -> Tables:
    """Merges, the pretrained model and the experts under frozen heads and under fitted ones.

    Hyperparameters are chosen on validation data ``by`` accuracy under "frozen" heads, and under
    "fresh" ones (`ridge`, leave-one-out). ``chosen``: rows of ``method``, ``settings`` and ``by``;
    ``validation``: the grid's points; ``test``: rows of ``method``, ``by``, ``head`` ("frozen",
    "class means", or what a ridge head saw: "validation", "5 per class", "all"), ``task``,
    ``labels`` that the head was fitted to, and ``accuracy``.
    """
    tables, states = _chosen(zoo, grids)
    tables["test"] = [
        {"method": method, "by": by, **row}
        for (method, by), state in states.items()
        for row in judged_under_heads(zoo, state, shots=shots, everything=everything)
    ] + [
        {"method": "individual", "by": "", **row}
        for name, state in zoo.experts.items()
        for row in judged_under_heads(zoo, state, [name], shots, everything)
    ]
    return tables


@study(load=beginning_of)
def training_length(
    zoo: Zoo,
    *,
    steps: Sequence[int] = (25, 100, 400, 1600),
    learning_rate: float = 4e-4,
    share: float = 1.0,
    methods: Sequence[str] = ("average", "task_arithmetic", "cart"),
    grids: Mapping[str, Grid] = JUDGED,
) -> Tables:
    """`fresh_heads` of experts after several numbers of steps, of 32 examples each.

    Adam trains at a constant rate on the first ``share`` (0..1) of each task's training examples.
    All tables have ``steps``, and ``experts`` has ``task`` and ``distance``, ‖θ_t − θ_0‖.
    """
    sizes = {name: max(1, round(share * len(t.train))) for name, t in zoo.suite.tasks.items()}
    part = replace(zoo, suite=lab.first(zoo.suite, train=sizes))
    training: dict[str, Any] = {"steps": steps, "batch_size": 32, "optimiser": "adam"}
    kept = train_experts(part, checkpoints, learning_rate=learning_rate, **training)
    tables: Tables = {"experts": []}
    for count in steps:
        experts = {name: states[count] for name, states in kept.items()}
        those = {name: grids[name] for name in methods}
        made = fresh_heads(replace(part, experts=experts), grids=those, shots=(), everything=False)
        for table, rows in made.items():
            tables.setdefault(table, []).extend({"steps": count, **row} for row in rows)
        tables["experts"] += [
            {"steps": count, "task": name, "distance": lab.distance(zoo, state)}
            for name, state in experts.items()
        ]
    return tables


@study()
def label_budget(
    zoo: Zoo,
    *,
    budgets: Sequence[int] = (5, 20, 100, 500, 0),
    tuned: int = 500,
    steps: int = 200,
    grid: Grid = JUDGED["cart"],
) -> Tables:
    """What to do with a number of labelled training examples of each task; 0 stands for all.

    At most ``tuned`` of them choose CART's hyperparameters; all train the coefficients of CART's
    task vectors, and one model on all tasks. Tables of `fresh_heads`, with ``budget``.
    """
    tables: Tables = {"chosen": [], "test": []}
    grids: dict[str, Grid] = {"tsv": {}, "cart": grid}
    for budget in budgets:
        part = labelled(zoo, budget or None)
        found, states = _chosen(labelled(zoo, min(budget or tuned, tuned)), grids)
        tables["chosen"] += [{"budget": budget, **row} for row in found["chosen"]]
        by_way = {(row["method"], row["by"]): row["settings"] for row in found["chosen"]}
        best = by_way["cart", "frozen"]
        learned = {"base": "cart", "init": best["scale"], "rank_ratio": best["rank_ratio"]}
        learned |= {"loss": "cross_entropy", "learning_rate": 1e-2}
        data = lab.examples_of(part, None, "validation")
        for name, options in {"adamerging": learned, "multitask": {}}.items():
            states[name, ""] = lab.adapted(part, name, data, steps=steps, **options).state
        tables["test"] += [
            {"budget": budget, "method": method, "by": by, **row}
            for (method, by), state in states.items()
            for row in judged_under_heads(part, state)
        ]
    return tables
