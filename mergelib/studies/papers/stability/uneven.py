"""Merges of experts that were trained for different numbers of steps (Li et al., 2026).

The framework's title case, which its experiments leave out. With χ² > 0 its bound of the average
has a term χ² κ², which merging task vectors per step removes (FedNova, Wang et al., 2020).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mergelib.hashing import stable_seed
from mergelib.records.results import Tables
from mergelib.statedict import lerp
from mergelib.studies.comparison import cut, distance, individual, records
from mergelib.studies.papers.stability.scaling import RULES, trained_checkpoints
from mergelib.studies.runner import beginning_of, study
from mergelib.testbed.evaluation import evaluate
from mergelib.testbed.tasks import Zoo

Checkpoints = Mapping[str, Mapping[int, dict[str, Tensor]]]  # by task, then by number of steps

COLUMNS = ["task", "accuracy", "loss"]


@study(methods=["average", "task_arithmetic", "ties"], load=beginning_of)
def uneven(
    zoo: Zoo,
    *,
    lengths: Sequence[Sequence[int]] = ((100, 800), (25, 200)),
    rates: Mapping[str, float] = {"adam": 2e-4, "sgd": 0.02},
    batch_size: int = 8,
    draws: int = 4,
    rivals: Sequence[str] = ("task_arithmetic", "ties"),
    pictures: int = 200,
) -> Tables:
    """Half of the experts train for few steps and half for many, drawn at random.

    Experts train at a constant rate without momentum or decay, so all draws take checkpoints of the
    same trainings. Before a rule merges them, task vectors stay as they are, or are brought to
    equal steps, or to equal lengths: each is multiplied by the mean over the experts and divided by
    its own. The control merges experts that all took the mean number of steps.

    Args:
        zoo: a suite, its backbone and heads; experts play no part.
        lengths: few and many steps, one or more pairs.
        rates: optimiser, ``"adam"`` or ``"sgd"``, to its rate.
        batch_size: examples of a step.
        draws: of the experts that take many steps, an even number; every second draw is the
            complement of the one before, so each task takes few as often as many.
        rivals: names in `mergelib.studies.papers.stability.scaling.RULES`, beside the average, for
            the first pair of lengths.
        pictures: at most so many test examples of each task are judged.

    Returns:
        ``experts``: rows of ``optimiser``, ``task``, ``steps``, ``distance`` ‖θ_t − θ_0‖,
        ``accuracy`` (0..1) and ``loss`` (nats), on the expert's own task. ``merged``: rows of
        ``optimiser``, ``few``, ``many``, ``draw``, ``method``, ``way`` (``"as they are"``,
        ``"per step"``, ``"per length"``, or ``"equal steps"``, of draw 0 only), ``task``, its
        expert's ``steps``, ``accuracy`` and ``loss``.

    Raises:
        ValueError: an odd number of draws.
    """
    if draws % 2:
        raise ValueError(f"draws is {draws}, expected an even number")
    zoo = cut(zoo, pictures)
    halves = draw_halves([*zoo.suite.tasks], draws, zoo.suite.seed)
    tables: Tables = {"experts": [], "merged": []}
    for optimiser, rate in rates.items():
        wanted = {count for few, many in lengths for count in (few, _middle(few, many), many)}
        kept = trained_checkpoints(
            zoo, sorted(wanted), optimiser=optimiser, learning_rate=rate, batch_size=batch_size
        )
        tables["experts"] += [
            {"optimiser": optimiser, "steps": count, **row}
            for count in sorted(wanted)
            for row in _alone(replace(zoo, experts=_taken(kept, dict.fromkeys(kept, count))))
        ]
        for place, (few, many) in enumerate(lengths):
            own = {"optimiser": optimiser, "few": few, "many": many}
            for rule in ("average", *(rivals if place == 0 else ())):
                rows = _merged(zoo, kept, few, many, halves, rule)
                tables["merged"] += [{**own, **row} for row in rows]
    return tables


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
    """The zoo with every task vector times the mean of the amounts, over its own.

    Its average is what `mergelib.rules.arithmetic.fednova` makes of these amounts as steps.
    """
    mean = sum(amounts.values()) / len(amounts)
    experts = {
        name: lerp(zoo.pretrained, expert, mean / amounts[name])
        for name, expert in zoo.experts.items()
    }
    return replace(zoo, experts=experts)


def _middle(few: int, many: int) -> int:
    return (few + many) // 2


def _taken(kept: Checkpoints, steps: Mapping[str, int]) -> dict[str, dict[str, Tensor]]:
    return {name: kept[name][count] for name, count in steps.items()}


def _alone(zoo: Zoo) -> Iterator[dict[str, Any]]:
    for row in records(individual(zoo, autocast=True)[COLUMNS]):
        yield {"distance": distance(zoo, zoo.experts[row["task"]]), **row}


def _merged(
    zoo: Zoo, kept: Checkpoints, few: int, many: int, halves: Sequence[set[str]], rule: str
) -> Iterator[dict[str, Any]]:
    """One rule on every draw, in every way, and on experts of equal steps."""
    plans = [{name: many if name in half else few for name in kept} for half in halves]
    alike = dict.fromkeys(kept, _middle(few, many))
    for draw, steps in enumerate(plans):
        own = replace(zoo, experts=_taken(kept, steps))
        lengths = {name: distance(zoo, expert) for name, expert in own.experts.items()}
        yield from _judged(own, rule, steps, draw=draw, way="as they are")
        yield from _judged(rescaled(own, steps), rule, steps, draw=draw, way="per step")
        yield from _judged(rescaled(own, lengths), rule, steps, draw=draw, way="per length")
    equal = replace(zoo, experts=_taken(kept, alike))
    yield from _judged(equal, rule, alike, draw=0, way="equal steps")


def _judged(
    zoo: Zoo, rule: str, steps: Mapping[str, int], **named: Any
) -> Iterator[dict[str, Any]]:
    table = evaluate(zoo.model, RULES[rule](zoo), zoo.heads, zoo.suite, autocast=True)
    for row in records(table[COLUMNS]):
        yield {**named, "method": rule, "steps": steps[row["task"]], **row}
