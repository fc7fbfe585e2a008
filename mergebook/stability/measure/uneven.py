"""Merges of experts that were trained in different ways, the title case of Li et al. (2026).

Merging per step (FedNova, Wang et al., 2020) removes the term χ² κ² of the bound of the average.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from mergebook.lab.comparison import COLUMNS, cut, distance, individual, records
from mergebook.lab.experts import judge_merges
from mergebook.lab.results import Tables
from mergebook.lab.runner import beginning_of, study
from mergebook.stability.measure.scaling import RULES, trained_checkpoints
from mergebook.stability.theory import steps as vectors
from mergebook.suites.types import Zoo
from mergelib.hashing import stable_seed
from mergelib.statedict import lerp

MOMENTUM, PULL = 0.9, 0.5  # ρ; μ of the proximal term


@dataclass(frozen=True)
class Plan:
    """How an expert is trained, at a constant rate; see `checkpoints` for the attributes."""

    optimiser: str
    learning_rate: float
    steps: int
    momentum: float = 0.0
    pull: float = 0.0

    @property
    def amount(self) -> float:
        """η ‖a‖₁: by how much of a gradient that never changed SGD would move."""
        vector = vectors.sgd(self.steps)
        if self.momentum:
            vector = vectors.momentum(self.steps, self.momentum)
        elif self.pull:
            vector = vectors.proximal(self.steps, self.learning_rate * self.pull)
        return self.learning_rate * float(vector.sum())


Pair = tuple[Plan, Plan]


def contrasts(rates: Mapping[str, float], steps: int, ratio: float) -> dict[str, Pair]:
    """What both halves do, by name: other steps, rates, momentum, a penalty, or optimisers."""
    small, large = 2 / (1 + ratio), 2 * ratio / (1 + ratio)
    usual = {name: Plan(name, rate, steps) for name, rate in rates.items()}
    found: dict[str, Pair] = {}
    for name, plan in usual.items():
        few, many = (replace(plan, steps=round(share * steps)) for share in (small, large))
        rate = plan.learning_rate
        slow, fast = (replace(plan, learning_rate=share * rate) for share in (small, large))
        found |= {f"{name}, steps": (few, many), f"{name}, rates": (slow, fast)}
    if "sgd" in usual:
        plain = usual["sgd"]
        heavy = replace(plain, learning_rate=plain.learning_rate / 10, momentum=MOMENTUM)
        found["sgd, momentum"] = (plain, heavy)
        found["sgd, proximal"] = (plain, replace(plain, pull=PULL))
    if len(usual) == 2:
        found["both optimisers"] = (usual["adam"], usual["sgd"])
    return found


@study(load=beginning_of)
def uneven(
    zoo: Zoo,
    *,
    rates: Mapping[str, float] = {"adam": 2e-4, "sgd": 0.02},  # one or both, to the usual rate
    steps: int = 200,  # the usual number
    ratio: float = 7.0,  # of the larger number of steps, or rate, to the smaller
    batch_size: int = 16,
    draws: int = 2,  # of the experts trained in the second way, even: each with its complement
    rivals: Sequence[str] = ("task_arithmetic", "ties", "cart"),  # of `RULES`, beside the average
    pictures: int = 200,  # test examples of each task, at most
) -> Tables:
    """Half of the experts, drawn at random, are trained in one way and half in another.

    Task vectors are merged as they are, or brought to equal amounts of descent (`Plan.amount`), or
    to equal lengths. ``experts``: attributes of `Plan`, ``task`` and ``distance`` ‖θ_t − θ_0‖.
    ``merged``: rows of ``kind``, of `contrasts`, ``method``, ``way`` (``"as they are"``, ``"per
    step"``, ``"per length"``, and controls: ``"all first"``, ``"all second"``, and ``"equal"``, all
    at the mean), ``draw``, ``task``, and whether it is ``second``.
    """
    if draws % 2:
        raise ValueError(f"draws is {draws}, expected an even number")
    zoo = cut(zoo, pictures)
    halves = draw_halves([*zoo.suite.tasks], draws, zoo.suite.seed)
    usual = {name: Plan(name, rate, steps) for name, rate in rates.items()}
    pairs = contrasts(rates, steps, ratio)
    wanted = [*usual.values(), *(plan for pair in pairs.values() for plan in pair)]
    trainings: dict[Plan, list[int]] = defaultdict(list)
    for plan in dict.fromkeys(wanted):  # those that differ in their steps share a training
        trainings[replace(plan, steps=0)].append(plan.steps)
    trained: dict[Plan, dict[str, dict[str, Tensor]]] = {}
    for training, counts in trainings.items():
        settings = asdict(training) | {"steps": counts, "batch_size": batch_size}
        kept = trained_checkpoints(zoo, **settings)
        trained |= {replace(training, steps=count): {**kept[count]} for count in counts}
    experts = []
    for plan, states in trained.items():
        own = replace(zoo, experts=states)
        for row in records(individual(own, autocast=True)[COLUMNS]):
            far = distance(own, own.experts[row["task"]])
            experts.append({**asdict(plan), "distance": far, **row})
    merged = []
    for kind, pair in pairs.items():
        controls = {"all first": pair[0], "all second": pair[1]}
        if len({replace(plan, steps=0, learning_rate=0.0) for plan in pair}) == 1:
            controls["equal"] = usual[pair[0].optimiser]
        ways: dict[tuple[str, int], Zoo] = {}
        for draw, half in enumerate(halves):
            plans = {name: pair[name in half] for name in zoo.suite.tasks}
            own = replace(zoo, experts={name: trained[plan][name] for name, plan in plans.items()})
            ways["as they are", draw] = own
            if pair[0].optimiser == pair[1].optimiser:
                amounts = {name: plan.amount for name, plan in plans.items()}
                ways["per step", draw] = rescaled(own, amounts)
            lengths = {name: distance(zoo, expert) for name, expert in own.experts.items()}
            ways["per length", draw] = rescaled(own, lengths)
        ways |= {(way, 0): replace(zoo, experts=trained[plan]) for way, plan in controls.items()}
        for rule in ("average", *rivals):
            merges = ((key, RULES[rule](each)) for key, each in ways.items())
            for (way, draw), row in judge_merges(zoo, merges):
                second = way == "all second" if way in controls else row["task"] in halves[draw]
                named = {"kind": kind, "method": rule, "way": way, "draw": draw, "second": second}
                merged.append({**named, **row})
    return {"experts": experts, "merged": merged}


def draw_halves(names: Sequence[str], draws: int, seed: int) -> list[set[str]]:
    """Random halves of some names, each followed by its complement."""
    generator = torch.Generator().manual_seed(stable_seed("halves", seed))
    found = []
    for _ in range(draws // 2):
        order = torch.randperm(len(names), generator=generator).tolist()
        half = {names[i] for i in order[: len(names) // 2]}
        found += [half, {*names} - half]
    return found


def rescaled(zoo: Zoo, amounts: Mapping[str, float]) -> Zoo:
    """The zoo with every task vector times the mean amount over its own, as in `fednova`."""
    mean = sum(amounts.values()) / len(amounts)
    start, own = zoo.pretrained, zoo.experts.items()
    moved = {name: lerp(start, expert, mean / amounts[name]) for name, expert in own}
    return replace(zoo, experts=moved)
