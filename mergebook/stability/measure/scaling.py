"""How merges depend on their experts' training: steps, rate, batch, data, and number of tasks.

Li et al. (2026, Figures 1 to 9), on training examples as well. Rates are constant, so one training
serves every K and merge; heads, test examples and groups are the same in all settings of a seed.
`repeats` is the control to V-B5: does merging more experts hurt by itself?
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from mergebook.lab import comparison as lab
from mergebook.lab.experts import train_experts
from mergebook.lab.results import Rows, Tables
from mergebook.lab.runner import beginning_of, study
from mergebook.suites.training import checkpoints
from mergebook.suites.types import Zoo
from mergelib.evaluation.loops import SplitName
from mergelib.evaluation.tasks import Split
from mergelib.hashing import stable_seed
from mergelib.procedures.common import unlabelled
from mergelib.statedict import StateDict

Checkpoints = Mapping[int, Mapping[str, dict[str, Tensor]]]  # by number of steps, then by task

ADAPTING: dict[str, Any] = {"steps": 50, "learning_rate": 0.01}  # AdaMerging, by layer
JOINT = 16  # examples of each task in a step of multi-task training
TOTALS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)  # sums of the T scales that tuning tries


def _scaled(zoo: Zoo, *, method: str, total: float | None = None, **settings: Any) -> StateDict:
    """A merging method on a zoo of T experts, at the scale ``total`` / T or at its default."""
    scale = {} if total is None else {"scale": total / len(zoo.experts)}
    return lab.merge_zoo(method, zoo, **scale, **settings)


def _adamerging(zoo: Zoo) -> StateDict:
    inputs = unlabelled(lab.examples_of(zoo, None, "validation"))
    return lab.adapted(zoo, "adamerging", inputs, **ADAPTING).state


def _tuned(zoo: Zoo) -> StateDict:
    grid = {"scale": [total / len(zoo.experts) for total in TOTALS]}
    return lab.merge_zoo("task_arithmetic", zoo, **lab.best_of(zoo, "task_arithmetic", grid))


# Every method at one scale, but for the tuned one, whose scale is chosen by validation accuracy for
# each merge. The printed ones are Σ λ M(Δ) with λ = 1/T; AdaMerging learns from the inputs of
# validation examples; the recalibrated average has BatchNorm measured on training ones.
RULES: dict[str, Callable[[Zoo], StateDict]] = {
    "average": partial(_scaled, method="average"),
    "task_arithmetic": partial(_scaled, method="task_arithmetic", total=2),
    "task_arithmetic_tuned": _tuned,
    "ties": partial(_scaled, method="ties"),
    "dare": partial(_scaled, method="dare", total=2),
    "cart": partial(_scaled, method="cart"),
    "ties_printed": partial(_scaled, method="ties", total=1, reduce="sum"),
    "dare_printed": partial(_scaled, method="dare", total=1),
    "adamerging": _adamerging,
    "average_recalibrated": lambda zoo: lab.measured_anew(zoo, lab.merge_zoo("average", zoo)),
}


@dataclass(frozen=True)
class Sweep:
    """The settings of the study `scaling`."""

    learning_rate: float = 4e-4  # η, constant
    batch_size: int = 32  # b
    share: float = 1.0  # α, of the training rows, from the first on; above 0 and at most 1
    steps: Sequence[int] = (25, 50, 100, 200, 400)  # numbers K to judge after, ascending
    optimiser: str = "adam"  # or "sgd", without decay or momentum
    groups: int = 7  # of tasks to average, drawn by the seed
    size: int = 8  # tasks of a group
    rivals: Sequence[str] = ("task_arithmetic", "ties", "dare")  # other names of `RULES`
    compared: int = 2  # of the groups, to merge by these
    counts: Sequence[int] = ()  # of tasks to merge by all rules: the first of a drawn order
    counted: Sequence[int] = (400,)  # the K after which to do so
    joint: int = 0  # steps on all tasks together, with `JOINT` examples of each in a step
    pictures: int = 200  # test and validation examples of each task, at most
    seen: int = 100  # of the examples that were trained on, at most

    def check(self, tasks: int) -> None:
        """Refuse what cannot be merged, before anything is trained."""
        for rule in self.rivals:
            if rule not in RULES:
                raise ValueError(f"unknown rule {rule!r}; known: {', '.join(RULES)}")
        if max(self.counts, default=0) > tasks:
            raise ValueError(f"{max(self.counts)} tasks to merge, but there are {tasks}")
        if self.counts and not {*self.counted} <= {*self.steps}:
            both = f"counted after {self.counted} steps, but judged after {self.steps}"
            raise ValueError(f"tasks are {both}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}, expected a number above 0 and at most 1")


@study(load=beginning_of, settings=Sweep)
def scaling(zoo: Zoo, **settings: Any) -> Tables:
    """Experts and merges of one setting, after several numbers of steps; settings: `Sweep`.

    By setting, ``steps`` and ``task``, ``accuracy`` (0..1) and ``loss`` (nats) on test examples,
    ``train_…`` and in ``experts`` (0 steps: the pretrained model), ``merged`` and ``joint``
    (`multitask`) validation columns. ``merged`` is by ``method`` and ``group``, ``counts`` by
    ``method`` and ``count``, with ``distance`` ‖θ − θ_0‖. ``stopped``: averages of experts that
    each stopped at least validation loss; ``steps`` is the task's own.
    """
    plan, names = Sweep(**settings), list(zoo.suite.tasks)
    plan.check(len(names))
    teams = draw_groups(names, plan.groups, plan.size, zoo.suite.seed)

    sizes = {name: len(task.train) for name, task in zoo.suite.tasks.items()}
    shares = {name: max(1, round(plan.share * size)) for name, size in sizes.items()}
    trained = lab.first(zoo.suite, train=shares)
    shown = {"train": plan.seen, "validation": plan.pictures, "test": plan.pictures}
    judged = replace(zoo, suite=lab.first(trained, **shown))
    where = {"learning_rate": plan.learning_rate, "batch_size": plan.batch_size}
    whole = replace(zoo, suite=trained)
    kept = trained_checkpoints(whole, plan.steps, optimiser=plan.optimiser, **where)
    models = [(0, names, zoo.pretrained)]
    for count, states in kept.items():
        models += [(count, [name], state) for name, state in states.items()]
    experts = [
        {"steps": count, **row}
        for count, tasks, state in models
        for row in _scores(judged, state, tasks, ALL)
    ]
    rules = {"average": plan.groups, **dict.fromkeys(plan.rivals, plan.compared)}
    joint: Rows = []  # of one model trained on all tasks, as a floor of the training loss
    if plan.joint:
        last = replace(whole, experts=dict(kept[max(plan.steps)]))
        data = lab.examples_of(whole, None)
        state = lab.adapted(last, "multitask", data, steps=plan.joint, batch_size=JOINT).state
        joint = [{"steps": plan.joint, **row} for row in _scores(judged, state, names, ALL)]
        for row in joint:
            del row["distance"]
    tables = {
        "experts": experts,
        "merged": _merged(judged, kept, teams, rules),
        "counts": _counts(judged, kept, plan),
        "stopped": _stopped(judged, kept, teams, experts),
        "joint": joint,
    }
    where["share"] = plan.share
    return {table: [{**where, **row} for row in rows] for table, rows in tables.items()}


def trained_checkpoints(zoo: Zoo, steps: Sequence[int], **training: Any) -> Checkpoints:
    """The expert of each task after several numbers of steps at a constant rate."""
    found = train_experts(zoo, checkpoints, steps=steps, **training)
    return {count: {name: kept[count] for name, kept in found.items()} for count in steps}


def draw_groups(names: Sequence[str], count: int, size: int, seed: int) -> list[list[str]]:
    """Random groups, each of the tasks that were taken least before, by chance among equals."""
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


BOTH: dict[str, SplitName] = {"": "test", "train_": "train"}
ALL: dict[str, SplitName] = {**BOTH, "validation_": "validation"}


def _merged(
    zoo: Zoo, kept: Checkpoints, teams: Sequence[Sequence[str]], rules: Mapping[str, int]
) -> Rows:
    return [
        {"method": rule, "group": group, "steps": count, **row}
        for rule, many in rules.items()
        for group, team in enumerate(teams[:many])
        for count, states in kept.items()
        for row in _judged(zoo, rule, {name: states[name] for name in team}, ALL)
    ]


def _counts(zoo: Zoo, kept: Checkpoints, plan: Sweep) -> Rows:
    """Nested sets of tasks by every rule: the first of an order."""
    generator = torch.Generator().manual_seed(stable_seed("order", zoo.suite.seed))
    names = list(zoo.suite.tasks)
    order = [names[i] for i in torch.randperm(len(names), generator=generator).tolist()]
    return [
        {"method": rule, "count": many, "steps": count, **row}
        for rule in ("average", *plan.rivals)
        for many in plan.counts
        for count in plan.counted
        for row in _judged(zoo, rule, {name: kept[count][name] for name in order[:many]})
    ]


def _stopped(zoo: Zoo, kept: Checkpoints, teams: Sequence[Sequence[str]], experts: Rows) -> Rows:
    trained = [row for row in experts[::-1] if row["steps"]]
    falling = sorted(trained, key=lambda row: -row["validation_loss"])
    best = {row["task"]: row["steps"] for row in falling}  # the first of the least
    return [
        {"group": group, "steps": best[row["task"]], **row}
        for group, team in enumerate(teams)
        for row in _judged(zoo, "average", {name: kept[best[name]][name] for name in team})
    ]


def _judged(
    zoo: Zoo,
    rule: str,
    states: Mapping[str, dict[str, Tensor]],
    splits: Mapping[str, SplitName] = BOTH,
) -> Iterator[dict[str, Any]]:
    part = replace(zoo, suite=lab.only(zoo.suite, list(states)), experts=dict(states))
    yield from _scores(part, RULES[rule](part), list(states), splits)


def _scores(
    zoo: Zoo, state: StateDict, tasks: Sequence[str], splits: Mapping[str, SplitName]
) -> Iterator[dict[str, Any]]:
    """`distance` to four digits, and `scores` to four decimals."""
    far = float(f"{lab.distance(zoo, state):.4g}")
    for row in lab.scores(zoo, state, zoo.heads, tasks, splits):
        task = row.pop("task")
        rounded = {name: round(value, 4) for name, value in row.items()}
        yield {"distance": far, "task": task, **rounded}


@study(load=beginning_of)
def repeats(
    zoo: Zoo,
    *,
    tasks: int = 3,  # the first ones are judged
    counts: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8),  # of experts to average
    share: float = 0.5,  # of a task's training rows, drawn again for each expert
    steps: int = 100,
    learning_rate: float = 4e-4,  # of Adam, constant, without decay
    batch_size: int = 32,
) -> Tables:
    """Averages of ever more experts of one task, and of different tasks, judged on that task.

    ``test``: accuracy (0..1) and loss (nats) by ``task``, ``count`` and ``kind`` (``same`` or
    ``different`` tasks; the judged task's expert is in both).
    """
    names = list(zoo.suite.tasks)
    if max(counts) > len(names):
        raise ValueError(f"{max(counts)} experts to merge, but there are {len(names)} tasks")
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}, expected a number above 0 and at most 1")
    training = {"learning_rate": learning_rate, "batch_size": batch_size, "optimiser": "adam"}

    def trained(name: str, number: int) -> dict[str, Tensor]:
        train = zoo.suite.tasks[name].train
        seed = stable_seed("repeats", name, number, zoo.suite.seed)
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
        rows = order[: max(1, round(share * len(order)))]
        options = {"split": Split(train.inputs[rows], train.labels[rows]), "steps": [steps]}
        found = train_experts(zoo, checkpoints, [name], seed=lambda _: seed, **options, **training)
        return found[name][steps]

    own = {name: trained(name, 0) for name in names}
    table: Rows = []
    for place, name in enumerate(names[:tasks]):
        kinds = {
            "same": [own[name], *(trained(name, number) for number in range(1, max(counts)))],
            "different": [own[other] for other in [*names[place:], *names[:place]]],
        }
        for (kind, experts), count in product(kinds.items(), counts):
            named = {str(number): expert for number, expert in enumerate(experts[:count])}
            state = lab.merge_zoo("average", replace(zoo, experts=named))
            for row in lab.scores(zoo, state, zoo.heads, [name], {"": "test"}):
                table.append({"kind": kind, "count": count, **row})
    return {"test": table}
