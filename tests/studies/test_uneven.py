"""Merges of experts of unequal length: against the rule, and against merges made by hand."""

from dataclasses import replace
from itertools import product

import pandas as pd
import pytest
import torch

from mergelib import flatten, merge
from mergelib.studies.comparison import cut
from mergelib.studies.papers.stability.uneven import draw_halves, rescaled, uneven
from mergelib.testbed.evaluation import evaluate
from mergelib.testbed.tasks import Zoo
from mergelib.testbed.training import checkpoints


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


def test_study_merges_checkpoints(tiny_zoo: Zoo) -> None:
    tables = uneven(
        tiny_zoo,
        lengths=((1, 5),),
        rates={"sgd": 0.05},
        batch_size=4,
        draws=2,
        rivals=("ties",),
        pictures=40,
    )
    merged = pd.DataFrame(tables["merged"])
    unequal = product(range(2), ("as they are", "per step", "per length"))
    expected = [*unequal, (0, "equal steps")]
    for _, rows in merged.groupby("method"):
        assert list(dict.fromkeys(zip(rows["draw"], rows["way"], strict=True))) == expected
        for task, own in rows.groupby("task"):
            both = set(own.loc[own["way"] == "per step", "steps"])
            assert both == {1, 5}, f"{task} takes few steps in one draw, many in the other"
    zoo = cut(tiny_zoo, 40)
    kept = {
        name: checkpoints(
            zoo.model,
            zoo.heads[name],
            task.train,
            (1, 3, 5),
            optimiser="sgd",
            learning_rate=0.05,
            batch_size=4,
            transform=task.transform,
            seed=zoo.suite.seed,
        )
        for name, task in zoo.suite.tasks.items()
    }
    average = merged[merged["method"] == "average"]
    own = average[(average["draw"] == 0) & (average["way"] == "as they are")]
    for rows in (own, average[average["way"] == "equal steps"]):
        taken = zip(rows["task"], rows["steps"], strict=True)
        chosen = {task: kept[task][steps] for task, steps in taken}
        table = evaluate(zoo.model, merge("average", chosen), zoo.heads, zoo.suite, autocast=True)
        assert rows["loss"].tolist() == pytest.approx(table["loss"].tolist(), rel=1e-3)
    experts = pd.DataFrame(tables["experts"])
    assert sorted(experts["steps"].unique()) == [1, 3, 5]
    assert experts.groupby("task")["distance"].apply(lambda d: d.is_monotonic_increasing).all()


def test_draws_come_in_pairs(tiny_zoo: Zoo) -> None:
    with pytest.raises(ValueError, match="draws is 3"):
        uneven(replace(tiny_zoo, experts={}), draws=3)
