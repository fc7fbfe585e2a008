"""Studies of procedures on a zoo of toy size: what each method sees, and what is judged."""

import json
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from mergebook.cart.measure.experiments import coefficients
from mergebook.frank_wolfe.measure.experiments import (
    calibration,
    concrete,
    irrelevant,
    language,
    procedures,
    relevant,
)
from mergebook.lab import comparison
from mergebook.suites.zoo import Zoo
from mergelib import merge
from mergelib.evaluation.loops import evaluate
from mergelib.procedures import Adapted, adapt


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every call of `adapt`: its method, its data, its other arguments; with few steps."""
    calls = []

    def watched(method: str, experts: Any, *, data: Any, **options: Any) -> Adapted:
        if "steps" in options:
            options["steps"] = min(options["steps"], 3)
        calls.append((method, data, options))
        return adapt(method, experts, data=data, **options)

    monkeypatch.setattr(comparison, "adapt", watched)
    return calls


@pytest.fixture
def copies(tiny_zoo: Zoo) -> Zoo:
    """Six tasks: three copies of each of the two, with experts that differ a little."""
    tasks, experts, heads = {}, {}, {}
    for i in range(3):
        for name, task in tiny_zoo.suite.tasks.items():
            tasks[f"{name}{i}"] = replace(task, name=f"{name}{i}")
            experts[f"{name}{i}"] = {k: v * (1 + i / 50) for k, v in tiny_zoo.experts[name].items()}
            heads[f"{name}{i}"] = tiny_zoo.heads[name]
    suite = replace(tiny_zoo.suite, tasks=tasks)
    return replace(tiny_zoo, suite=suite, experts=experts, heads=heads)


def test_procedures_see_the_same_examples(tiny_zoo: Zoo, seen: list[Any]) -> None:
    tables = procedures(tiny_zoo, examples=6, steps=2)
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    for method, data, _ in seen:
        for name, task in tiny_zoo.suite.tasks.items():
            given = data[name]
            labels = method in ("greedy_soup", "multitask", "frank_wolfe")
            assert isinstance(given, tuple) == labels, f"{method} and labels"
            inputs = given[0] if labels else given
            assert inputs.equal(task.train.inputs[:6]), method
    test = pd.DataFrame(tables["test"])
    counts = test.groupby("method").size()
    assert (counts == 2).all()
    assert set(pd.DataFrame(tables["cost"])["method"]) < set(counts.index)
    hull = pd.DataFrame(tables["hull"]).set_index("method")
    assert (hull["error"] < 1e-5).all()
    assert (hull.drop("frank_wolfe soft, by task, unconstrained")["smallest"] >= 0).all()
    accuracy = test.set_index(["method", "task"])["accuracy"]
    average = merge("average", tiny_zoo.experts)
    judged = evaluate(tiny_zoo.model, average, tiny_zoo.heads, tiny_zoo.suite, autocast=True)
    assert accuracy["average"].tolist() == judged["accuracy"].tolist()
    starts = [
        options["start"]
        for method, _, options in seen
        if method == "frank_wolfe" and "start" in options
    ]
    assert starts[0] is starts[2], "CART"
    assert starts[1] is starts[3], "AdaMerging"
    assert len({str(each) for each in starts}) == 2


def test_walks_start_only_from_what_was_run(tiny_zoo: Zoo, seen: list[Any]) -> None:
    tables = procedures(tiny_zoo, examples=6, steps=1, only_of=["frank_wolfe"])
    walks = pd.DataFrame(tables["cost"])["method"]
    assert walks.str.endswith("from cart").sum() == 2
    assert not walks.str.contains("adamerging").any()


def test_coefficients_see_labels_only_for_the_cross_entropy(tiny_zoo: Zoo, seen: list[Any]) -> None:
    tables = coefficients(tiny_zoo, rates=(1e-3, 0.1), steps=3)
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    for _, data, options in seen:
        for name, task in tiny_zoo.suite.tasks.items():
            if options["loss"] == "entropy":
                assert data[name].equal(task.test.inputs)
            else:
                assert data[name][1].equal(task.train.labels)
    test = pd.DataFrame(tables["test"])
    assert set(zip(test["method"], test["rate"], strict=True)) == {
        ("cart", 0),
        *((loss, rate) for loss in ("entropy", "cross_entropy") for rate in (1e-3, 0.1)),
    }


def test_concrete_masks_task_arithmetic_by_test_inputs(tiny_zoo: Zoo, seen: list[Any]) -> None:
    tables = concrete(tiny_zoo)
    losses = pd.DataFrame(tables["test"]).set_index(["method", "task"])["loss"]
    assert losses["concrete"].tolist() == pytest.approx(losses["task_arithmetic"], rel=0.05)
    assert losses["concrete"].tolist() != losses["task_arithmetic"].tolist()
    for _, data, options in seen:
        assert "learning_rate" not in options, "the published one"
        assert all(data[t].equal(task.test.inputs) for t, task in tiny_zoo.suite.tasks.items())
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables


def test_calibration_gives_each_size_its_examples(tiny_zoo: Zoo, seen: list[Any]) -> None:
    table = pd.DataFrame(calibration(tiny_zoo, sizes=(3, 9), steps=2)["test"])
    shown = table.groupby("examples")["method"].agg(set).to_dict()
    assert shown[3] == shown[9]
    assert shown[0] == {"multitask", "pretrained", "cart"}
    whole = len(next(iter(tiny_zoo.suite.tasks.values())).train)
    lengths = [
        len(next(iter(data.values()))[0]) for method, data, _ in seen if method == "multitask"
    ]
    assert lengths == [3, 9, whole]


def test_irrelevant_experts_join_and_their_tasks_do_not(copies: Zoo, seen: list[Any]) -> None:
    table = pd.DataFrame(irrelevant(copies, counts=(0, 2), examples=4, steps=2)["test"])
    targets = list(copies.suite.tasks)[:4]
    assert set(table["task"]) == set(targets)
    assert all(list(data) == targets for _, data, _ in seen)
    accuracy = table.set_index(["count", "method", "task"])["accuracy"].sort_index()
    few = merge("average", {name: copies.experts[name] for name in targets})
    everyone = merge("average", copies.experts)
    for count, state in ((0, few), (2, everyone)):
        judged = evaluate(copies.model, state, copies.heads, copies.suite, autocast=True)
        expected = judged.set_index("task")["accuracy"][targets]
        assert accuracy[count, "average"][targets].tolist() == expected.tolist()


def test_relevant_experts_join_and_all_tasks_are_judged(copies: Zoo, seen: list[Any]) -> None:
    table = pd.DataFrame(relevant(copies, counts=(2, 6), examples=4, steps=2)["test"])
    assert table.groupby(["count", "method"])["task"].nunique().eq(6).all()
    assert all(set(data) == set(copies.suite.tasks) for _, data, _ in seen)
    assert all(options.get("loss", "entropy") == "entropy" for _, _, options in seen)


def test_language_leaves_entropy_out(tiny_zoo: Zoo, seen: list[Any]) -> None:
    tables = language(tiny_zoo, examples=5, steps=1)
    called = {method for method, _, _ in seen}
    assert called == {"fisher", "regmean", "greedy_soup", "frank_wolfe", "multitask"}
    assert {row["method"] for row in tables["hull"]} >= {"frank_wolfe soft, by task"}
