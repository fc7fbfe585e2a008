"""How merges depend on their experts' training: steps, rate, batch, data, and number of tasks.

The measurements of the stability framework (Li et al., 2026, "A Unified Generalization Framework
for Model Merging", Figures 1 to 9), on training examples as well, so that optimisation and
generalisation can be told apart. Experts are trained at a constant rate, so that a checkpoint after
K steps is the expert of a training of K steps, and one training serves every K, every group of
tasks and every method. A run is one setting with one seed; heads, test examples and groups are the
same in all settings of a seed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mergebook.lab.comparison import (
    adapted,
    best_of,
    distance,
    examples_of,
    measured_anew,
    merge_zoo,
    only,
    scores,
)
from mergebook.lab.results import Rows, Tables
from mergebook.lab.runner import beginning_of, study
from mergebook.suites.training import checkpoints
from mergebook.suites.types import (
    Zoo,
)
from mergelib.evaluation.loops import SplitName
from mergelib.evaluation.tasks import (
    Suite,
    Task,
)
from mergelib.hashing import stable_seed
from mergelib.procedures.common import unlabelled
from mergelib.statedict import StateDict

Checkpoints = Mapping[int, Mapping[str, dict[str, Tensor]]]  # by number of steps, then by task

Rule = Callable[[Zoo], StateDict]

ADAPTING: dict[str, Any] = {"steps": 50, "learning_rate": 0.01}  # AdaMerging, by layer
JOINT = 16  # examples of each task in a step of multi-task training
TOTALS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)  # sums of the T scales that tuning tries


def _scaled(method: str, total: float | None = None, **settings: Any) -> Rule:
    """A merging method on a zoo of T experts, at the scale ``total`` / T or at its default."""

    def merged(zoo: Zoo) -> StateDict:
        scale = {} if total is None else {"scale": total / len(zoo.experts)}
        return merge_zoo(method, zoo, **scale, **settings)

    return merged


def _adamerging(zoo: Zoo) -> StateDict:
    inputs = unlabelled(examples_of(zoo, None, "validation"))
    return adapted(zoo, "adamerging", inputs, **ADAPTING).state


def _recalibrated(zoo: Zoo) -> StateDict:
    return measured_anew(zoo, merge_zoo("average", zoo))


def _tuned(zoo: Zoo) -> StateDict:
    grid = {"scale": [total / len(zoo.experts) for total in TOTALS]}
    return merge_zoo("task_arithmetic", zoo, **best_of(zoo, "task_arithmetic", grid))


# Every method at one scale, but for the tuned one, whose scale is chosen by validation accuracy for
# each merge. The printed ones are Σ λ M(Δ) with λ = 1/T; AdaMerging learns from the inputs of
# validation examples; the recalibrated average has BatchNorm measured on training ones.
RULES: dict[str, Rule] = {
    "average": _scaled("average"),
    "task_arithmetic": _scaled("task_arithmetic", 2),
    "task_arithmetic_tuned": _tuned,
    "ties": _scaled("ties"),
    "dare": _scaled("dare", 2),
    "cart": _scaled("cart"),
    "ties_printed": _scaled("ties", 1, reduce="sum"),
    "dare_printed": _scaled("dare", 1),
    "adamerging": _adamerging,
    "average_recalibrated": _recalibrated,
}


@study(load=beginning_of)
def scaling(
    zoo: Zoo,
    *,
    learning_rate: float = 4e-4,
    batch_size: int = 32,
    share: float = 1.0,
    steps: Sequence[int] = (25, 50, 100, 200, 400),
    optimiser: str = "adam",
    groups: int = 7,
    size: int = 8,
    rivals: Sequence[str] = ("task_arithmetic", "ties", "dare"),
    compared: int = 2,
    counts: Sequence[int] = (),
    counted: Sequence[int] = (400,),
    joint: int = 0,
    pictures: int = 200,
    seen: int = 100,
) -> Tables:
    """Experts and merges of one setting, after several numbers of steps.

    Args:
        zoo: backbone and heads; experts are trained here.
        learning_rate: η, constant.
        batch_size: b.
        share: α, of the training rows, from the first on; in 0..1.
        steps: numbers K to judge after, ascending.
        optimiser: ``"adam"`` or ``"sgd"``, without decay or momentum.
        groups: how many groups of tasks to average, drawn by the seed.
        size: tasks of a group.
        rivals: other names of `RULES`.
        compared: how many of the groups to merge by these.
        counts: numbers of tasks to merge by all rules: the first of an order that the seed draws.
        counted: the K after which to do so.
        joint: steps of a training on all tasks together, with `JOINT` examples of each in a step.
        pictures: at most so many test and validation examples of each task are judged.
        seen: at most so many of the examples that were trained on.

    Returns:
        Rows with the setting's ``learning_rate``, ``batch_size`` and ``share``, with ``steps``,
        ``task``, and on test examples ``accuracy`` (0..1) and ``loss`` (nats), likewise
        ``train_accuracy`` and ``train_loss``. ``experts`` (of 0 steps: the pretrained model, on
        every task), ``merged`` and ``joint``, what `multitask` reaches, have validation columns,
        too. ``merged`` have ``method`` and ``group``, ``counts`` have ``method`` and ``count``;
        both have ``distance``, ‖θ − θ_0‖, as experts have. ``stopped`` are averages of experts
        that each stopped at the checkpoint with its least validation loss; ``steps`` is of the
        task's own.

    Raises:
        ValueError: a share out of range, an unknown rule, groups or counts larger than the suite,
            or ``counted`` steps that are no ``steps``; all before anything is trained.
    """
    names = list(zoo.suite.tasks)
    _check(len(names), rivals, counts, steps, counted if counts else ())
    teams = draw_groups(names, groups, size, zoo.suite.seed)
    trained = _trained_on(zoo.suite, share)
    judged = replace(zoo, suite=_judged_on(trained, pictures, seen))
    kept = trained_checkpoints(
        replace(zoo, suite=trained),
        steps,
        optimiser=optimiser,
        learning_rate=learning_rate,
        batch_size=batch_size,
    )
    where = {"learning_rate": learning_rate, "batch_size": batch_size, "share": share}
    experts = _experts(judged, kept)
    tables = {
        "experts": experts,
        "merged": _merged(
            judged, kept, teams, {"average": groups, **dict.fromkeys(rivals, compared)}
        ),
        "counts": _counts(judged, kept, counts, counted, ("average", *rivals)),
        "stopped": _stopped(judged, kept, teams, experts),
        "joint": _joint(replace(zoo, suite=trained), judged, kept[max(steps)], joint),
    }
    return {table: [{**where, **row} for row in rows] for table, rows in tables.items()}


def trained_checkpoints(zoo: Zoo, steps: Sequence[int], **training: Any) -> Checkpoints:
    """The expert of each task after several numbers of steps, see `checkpoints`.

    Args:
        zoo: whose backbone is fine-tuned, under its heads.
        steps: numbers of steps to keep.
        **training: ``optimiser``, ``learning_rate``, ``batch_size``, and what else `checkpoints`
            takes.
    """
    found = {
        name: checkpoints(
            zoo.model,
            zoo.heads[name],
            task.train,
            steps,
            transform=task.transform,
            loss=task.loss,
            seed=zoo.suite.seed,
            **training,
        )
        for name, task in zoo.suite.tasks.items()
    }
    return {count: {name: kept[count] for name, kept in found.items()} for count in steps}


def _check(
    tasks: int,
    rivals: Sequence[str],
    counts: Sequence[int],
    steps: Sequence[int],
    counted: Sequence[int],
) -> None:
    for rule in rivals:
        if rule not in RULES:
            raise ValueError(f"unknown rule {rule!r}; known: {', '.join(RULES)}")
    if max(counts, default=0) > tasks:
        raise ValueError(f"{max(counts)} tasks to merge, but there are {tasks}")
    if not {*counted} <= {*steps}:
        raise ValueError(f"tasks are counted after {counted} steps, but judged after {steps}")


def draw_groups(names: Sequence[str], count: int, size: int, seed: int) -> list[list[str]]:
    """Random groups of tasks in which every task occurs as often as any other, or once more.

    Each group takes the tasks that were taken least before, by chance among equals.

    Raises:
        ValueError: for groups larger than the suite.
    """
    if size > len(names):
        raise ValueError(f"groups of {size} tasks, but there are {len(names)}")
    generator = torch.Generator().manual_seed(stable_seed("groups", seed))
    taken = torch.zeros(len(names))
    found = []
    for _ in range(count):
        chosen = (taken + torch.rand(len(names), generator=generator)).argsort()[:size]
        taken[chosen] += 1
        found.append([names[i] for i in sorted(chosen.tolist())])
    return found


def _trained_on(suite: Suite, share: float) -> Suite:
    """The suite with the first rows of every training split; all else is as it was."""
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}, expected a number above 0 and at most 1")

    def cut(task: Task) -> Task:
        return replace(task, train=task.train.first(max(1, round(share * len(task.train)))))

    return replace(suite, tasks={name: cut(task) for name, task in suite.tasks.items()})


def _judged_on(suite: Suite, pictures: int, seen: int) -> Suite:
    """The suite with the first rows of each split; splits are in random order."""

    def cut(task: Task) -> Task:
        validation, test = task.validation.first(pictures), task.test.first(pictures)
        return replace(task, train=task.train.first(seen), validation=validation, test=test)

    return replace(suite, tasks={name: cut(task) for name, task in suite.tasks.items()})


BOTH: dict[str, SplitName] = {"": "test", "train_": "train"}
ALL: dict[str, SplitName] = {**BOTH, "validation_": "validation"}


def _experts(zoo: Zoo, kept: Checkpoints) -> Rows:
    rows = [
        {"steps": 0, "distance": 0.0, **row}
        for row in _scores(zoo, zoo.pretrained, list(zoo.suite.tasks), ALL)
    ]
    for count, states in kept.items():
        for name, state in states.items():
            (row,) = _scores(zoo, state, [name], ALL)
            rows.append({"steps": count, "distance": _distance(zoo, state), **row})
    return rows


def _merged(
    zoo: Zoo, kept: Checkpoints, teams: Sequence[Sequence[str]], rules: Mapping[str, int]
) -> Rows:
    """Rules at every checkpoint, each on so many of the groups."""
    return [
        {"method": rule, "group": group, "steps": count, **row}
        for rule, many in rules.items()
        for group, team in enumerate(teams[:many])
        for count, states in kept.items()
        for row in _judged(zoo, rule, {name: states[name] for name in team}, ALL)
    ]


def _counts(
    zoo: Zoo, kept: Checkpoints, counts: Sequence[int], counted: Sequence[int], rules: Sequence[str]
) -> Rows:
    """Nested sets of tasks by every rule: the first of an order."""
    generator = torch.Generator().manual_seed(stable_seed("order", zoo.suite.seed))
    names = list(zoo.suite.tasks)
    order = [names[i] for i in torch.randperm(len(names), generator=generator).tolist()]
    return [
        {"method": rule, "count": many, "steps": count, **row}
        for rule in rules
        for many in counts
        for count in counted
        for row in _judged(zoo, rule, {name: kept[count][name] for name in order[:many]})
    ]


def _stopped(zoo: Zoo, kept: Checkpoints, teams: Sequence[Sequence[str]], experts: Rows) -> Rows:
    best: dict[str, dict[str, Any]] = {}
    for row in experts:
        if row["steps"]:
            before = best.get(row["task"], row)
            best[row["task"]] = min(before, row, key=lambda one: one["validation_loss"])
    return [
        {"group": group, "steps": best[row["task"]]["steps"], **row}
        for group, team in enumerate(teams)
        for row in _judged(zoo, "average", {name: kept[best[name]["steps"]][name] for name in team})
    ]


def _joint(
    zoo: Zoo, judged: Zoo, experts: Mapping[str, dict[str, Tensor]], steps: int
) -> Iterator[dict[str, Any]]:
    """One model trained on all tasks, as a floor of the training loss."""
    if steps:
        zoo, data = replace(zoo, experts=dict(experts)), examples_of(zoo, None, "train")
        state = adapted(zoo, "multitask", data, steps=steps, batch_size=JOINT).state
        for row in _scores(judged, state, list(zoo.suite.tasks), ALL):
            yield {"steps": steps, **row}


def _judged(
    zoo: Zoo,
    rule: str,
    states: Mapping[str, dict[str, Tensor]],
    splits: Mapping[str, SplitName] = BOTH,
) -> Iterator[dict[str, Any]]:
    """What a rule makes of these experts, one row per task."""
    part = replace(zoo, suite=only(zoo.suite, list(states)), experts=dict(states))
    state = RULES[rule](part)
    far = _distance(zoo, state)
    for row in _scores(part, state, list(states), splits):
        yield {"distance": far, **row}


def _scores(
    zoo: Zoo, state: StateDict, tasks: Sequence[str], splits: Mapping[str, SplitName]
) -> Iterator[dict[str, Any]]:
    """`scores` to four decimals."""
    for row in scores(zoo, state, zoo.heads, tasks, splits):
        task = row.pop("task")
        yield {"task": task} | {name: round(value, 4) for name, value in row.items()}


def _distance(zoo: Zoo, state: StateDict) -> float:
    """`distance` to four digits."""
    return float(f"{distance(zoo, state):.4g}")
