"""Merges of experts trained in different ways: against the rule, and merges made by hand."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

from mergebook.lab.comparison import cut
from mergebook.stability.measure.uneven import Plan, contrasts, draw_halves, rescaled, uneven
from mergebook.suites.training import checkpoints
from mergebook.suites.types import (
    Zoo,
)
from mergelib import flatten, merge
from mergelib.evaluation.loops import evaluate


def test_every_second_half_is_the_complement() -> None:
    names = list("abcdef")
    halves = draw_halves(names, 4, seed=0)
    assert [len(half) for half in halves] == [3] * 4
    assert halves[0] | halves[1] == halves[2] | halves[3] == {*names}
    assert halves == draw_halves(names, 4, seed=0)
    assert len({frozenset(draw_halves(names, 2, seed)[0]) for seed in range(8)}) > 3


def test_rescaled_experts_average_to_fednova(tiny_zoo: Zoo) -> None:
    steps = dict(zip(tiny_zoo.experts, (30, 200), strict=True))
    average = merge("average", rescaled(tiny_zoo, steps).experts)
    rule = merge(
        "fednova", tiny_zoo.experts, pretrained=tiny_zoo.pretrained, steps=[*steps.values()]
    )
    assert torch.allclose(flatten(average), flatten(rule), atol=1e-6)
    plain = merge("average", tiny_zoo.experts)
    assert not torch.allclose(flatten(plain), flatten(rule), atol=1e-3)


def test_rescaled_by_their_lengths_they_are_equally_long(tiny_zoo: Zoo) -> None:
    start = flatten(tiny_zoo.pretrained)
    lengths = {n: float((flatten(e) - start).norm()) for n, e in tiny_zoo.experts.items()}
    after = [(flatten(e) - start).norm() for e in rescaled(tiny_zoo, lengths).experts.values()]
    assert [float(length) for length in after] == pytest.approx(
        [sum(lengths.values()) / 2] * 2, rel=1e-5
    )


def test_amounts_are_what_a_constant_gradient_moves() -> None:
    """By hand, step by step, on the loss θ: its gradient is 1 everywhere."""
    for plan in (
        Plan("sgd", 0.1, 5),
        Plan("sgd", 0.1, 5, momentum=0.9),
        Plan("sgd", 0.1, 5, pull=2.0),
    ):
        place = speed = 0.0
        for _ in range(plan.steps):
            speed = plan.momentum * speed + 1.0 + plan.pull * place
            place -= plan.learning_rate * speed
        assert plan.amount == pytest.approx(-place)


def test_steps_and_rates_keep_their_mean() -> None:
    pairs = contrasts({"adam": 1e-3, "sgd": 0.1}, 40, 3.0)
    for name in ("adam", "sgd"):
        assert [plan.steps for plan in pairs[f"{name}, steps"]] == [20, 60]
        slow, fast = (plan.learning_rate for plan in pairs[f"{name}, rates"])
        assert fast == pytest.approx(3 * slow)
        assert slow + fast == pytest.approx(2 * {"adam": 1e-3, "sgd": 0.1}[name])
    assert {plan.optimiser for plan in pairs["both optimisers"]} == {"adam", "sgd"}
    assert set(contrasts({"adam": 1e-3}, 40, 3.0)) == {"adam, steps", "adam, rates"}


def test_study_merges_experts_of_both_kinds(tiny_zoo: Zoo) -> None:
    tables = uneven(
        tiny_zoo, rates={"sgd": 0.05}, steps=4, ratio=3.0, batch_size=4, rivals=("ties",)
    )
    merged = pd.DataFrame(tables["merged"])
    for (kind, _, way), rows in merged.groupby(["kind", "method", "way"]):
        drawn = way in ("as they are", "per step", "per length")
        assert len(rows) == len(tiny_zoo.suite.tasks) * (2 if drawn else 1)
        if drawn:
            both = rows.groupby("task")["second"].agg(set)
            assert all(found == {False, True} for found in both), "of each kind in one draw"
        assert way != "equal" or str(kind).endswith(("steps", "rates"))
    zoo = cut(tiny_zoo, 200)

    def expert(task: str, plan: Plan) -> dict[str, torch.Tensor]:
        part, steps = zoo.suite.tasks[task], plan.steps
        return checkpoints(
            zoo.model,
            zoo.heads[task],
            part.train,
            (steps,),
            optimiser=plan.optimiser,
            learning_rate=plan.learning_rate,
            batch_size=4,
            transform=part.transform,
            momentum=plan.momentum,
            pull=plan.pull,
            seed=zoo.suite.seed,
        )[steps]

    plain = Plan("sgd", 0.05, 4)
    by_hand = {
        "sgd, steps": (replace(plain, steps=2), replace(plain, steps=6)),
        "sgd, rates": (Plan("sgd", 0.025, 4), Plan("sgd", 0.075, 4)),
        "sgd, momentum": (plain, Plan("sgd", 0.005, 4, momentum=0.9)),
        "sgd, proximal": (plain, replace(plain, pull=0.5)),
    }
    average = merged[(merged["method"] == "average") & (merged["draw"] == 0)]
    assert set(average["kind"]) == set(by_hand)
    for kind, sides in by_hand.items():
        own = average[(average["kind"] == kind) & (average["way"] == "as they are")]
        taken = zip(own["task"], own["second"], strict=True)
        trained = {task: expert(task, sides[second]) for task, second in taken}
        table = evaluate(zoo.model, merge("average", trained), zoo.heads, zoo.suite, autocast=True)
        assert own["loss"].tolist() == pytest.approx(table["loss"].tolist(), rel=1e-3)
    experts = pd.DataFrame(tables["experts"])
    usual = experts[(experts["momentum"] == 0) & (experts["learning_rate"] == 0.05)]
    free = usual[usual["pull"] == 0].sort_values("steps")
    assert free["steps"].unique().tolist() == [2, 4, 6]
    assert free.groupby("task")["distance"].apply(lambda d: d.is_monotonic_increasing).all()


def test_a_pull_holds_an_expert_back(tiny_zoo: Zoo) -> None:
    (task, part), *_ = tiny_zoo.suite.tasks.items()
    start = flatten(tiny_zoo.pretrained)

    def moved(pull: float) -> float:
        state = checkpoints(
            tiny_zoo.model,
            tiny_zoo.heads[task],
            part.train,
            (20,),
            optimiser="sgd",
            learning_rate=0.05,
            batch_size=4,
            transform=part.transform,
            pull=pull,
        )[20]
        return float((flatten(state) - start).norm())

    assert moved(10.0) < 0.5 * moved(0.0)


def test_draws_come_in_pairs(tiny_zoo: Zoo) -> None:
    with pytest.raises(ValueError, match="draws is 3"):
        uneven(replace(tiny_zoo, experts={}), draws=3)
