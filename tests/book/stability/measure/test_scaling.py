"""The sweep over how experts are trained: constant rates, prefixes, groups, and what is judged."""

import copy
from collections import Counter
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad

from mergebook.stability.measure.scaling import TOTALS, draw_groups, scaling
from mergebook.suites.training import checkpoints
from mergebook.suites.types import (
    Zoo,
)
from mergelib import flatten, merge
from mergelib.evaluation import loops as evaluation
from mergelib.evaluation.loops import evaluate
from mergelib.evaluation.tasks import (
    Split,
)

QUICK: dict[str, Any] = {
    "learning_rate": 5e-3,
    "steps": [2, 4],
    "groups": 1,
    "size": 2,
    "rivals": (),
    "pictures": 40,
    "seen": 20,
}


def _trained(zoo: Zoo, steps: list[int], **options: Any) -> dict[int, dict[str, Tensor]]:
    task = zoo.suite.tasks["digits_low"]
    settings: dict[str, Any] = {"optimiser": "sgd", "learning_rate": 0.05, "batch_size": 8}
    return checkpoints(
        zoo.model,
        zoo.heads["digits_low"],
        options.pop("split", task.train),
        steps,
        transform=task.transform,
        **{**settings, **options},
    )


def test_the_rate_is_constant_and_sgd_has_no_momentum(tiny_zoo: Zoo) -> None:
    """Against θ ← θ − η ∇f(θ), written out, on batches of all rows."""
    task = tiny_zoo.suite.tasks["digits_low"]
    part = Split(task.train.inputs[:30], task.train.labels[:30])
    head = tiny_zoo.heads["digits_low"]
    model = copy.deepcopy(tiny_zoo.model).train()

    def loss(weights: dict[str, Tensor]) -> Tensor:
        z = functional_call(model, weights, (task.transform(part.inputs),))
        return task.loss(head(z), part.labels)

    weights = {key: value.detach() for key, value in model.named_parameters()}
    for _ in range(6):
        slopes = grad(loss)(weights)
        weights = {key: value - 0.05 * slopes[key] for key, value in weights.items()}
    found = _trained(tiny_zoo, [6], split=part, batch_size=30)[6]
    for key, value in weights.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("optimiser", "rate"), [("sgd", 0.05), ("adam", 1e-3)])
def test_a_checkpoint_is_where_a_shorter_training_ends(
    tiny_zoo: Zoo, optimiser: str, rate: float
) -> None:
    options: dict[str, Any] = {"optimiser": optimiser, "learning_rate": rate}
    long, short = _trained(tiny_zoo, [3, 7], **options), _trained(tiny_zoo, [3], **options)
    assert list(long) == [3, 7]
    assert all(torch.equal(long[3][key], short[3][key]) for key in short[3])
    assert not torch.equal(flatten(long[3]), flatten(long[7]))


def test_groups_hold_every_task_equally_often() -> None:
    names = list("abcdefghijklmn")
    groups = draw_groups(names, 7, 8, seed=0)
    assert Counter(name for group in groups for name in group) == dict.fromkeys(names, 4)
    assert all(len(set(group)) == 8 for group in groups)
    assert groups == draw_groups(names, 7, 8, seed=0) != draw_groups(names, 7, 8, seed=1)
    assert groups[:2] == draw_groups(names, 2, 8, seed=0), "fewer are the first ones"
    with pytest.raises(ValueError, match="groups of 15 tasks, but there are 14"):
        draw_groups(names, 1, 15, seed=0)


def test_merged_are_merges_of_the_checkpoints(
    tiny_zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "has_bfloat16", lambda _: False)  # which some processors have
    tables = scaling(tiny_zoo, **{**QUICK, "rivals": ("task_arithmetic", "ties_printed")})
    experts = {
        name: checkpoints(
            tiny_zoo.model,
            tiny_zoo.heads[name],
            task.train,
            [4],
            optimiser="adam",
            learning_rate=5e-3,
            batch_size=32,
            transform=task.transform,
        )[4]
        for name, task in tiny_zoo.suite.tasks.items()
    }
    merged = pd.DataFrame(tables["merged"]).query("steps == 4").set_index(["method", "task"])
    options: dict[str, dict[str, Any]] = {
        "average": {},
        "task_arithmetic": {"scale": 1.0},
        "ties_printed": {"scale": 0.5, "reduce": "sum"},
    }
    for rule, settings in options.items():
        method = rule.removesuffix("_printed")
        state = merge(method, experts, pretrained=tiny_zoo.pretrained, **settings)
        for split, column, rows in (("test", "loss", 40), ("train", "train_loss", 20)):
            suite = tiny_zoo.suite
            for name, task in suite.tasks.items():
                part: Split = getattr(task, split)
                few = Split(part.inputs[:rows], part.labels[:rows])
                z = functional_call(tiny_zoo.model, state, (task.transform(few.inputs),))
                loss = float(task.loss(tiny_zoo.heads[name](z), few.labels))
                assert merged[column][rule, name] == pytest.approx(loss, abs=1e-4)
        distance = (flatten(state) - flatten(tiny_zoo.pretrained)).norm()
        found = merged["distance"][rule].iloc[0]
        assert found == pytest.approx(float(distance), rel=1e-3)


def test_a_tuned_scale_is_the_best_of_the_grid_on_validation_examples(tiny_zoo: Zoo) -> None:
    options = {**QUICK, "rivals": ("task_arithmetic_tuned",), "steps": [8]}
    rows = pd.DataFrame(scaling(tiny_zoo, **options)["merged"]).groupby("method")
    length, right = rows["distance"].mean(), rows["validation_accuracy"].mean()
    scale = length["task_arithmetic_tuned"] / length["average"]  # whose scales sum to 1
    assert min(abs(scale / total - 1) for total in TOTALS) < 1e-2
    assert right["task_arithmetic_tuned"] >= right["average"], "which is a point of the grid"


def test_joint_training_is_judged_beside_merges(tiny_zoo: Zoo) -> None:
    tables = scaling(tiny_zoo, **QUICK, joint=30)
    rows = pd.DataFrame(tables["joint"])
    assert rows["task"].tolist() == list(tiny_zoo.suite.tasks)
    assert rows["train_loss"].mean() < pd.DataFrame(tables["merged"])["train_loss"].mean()
    assert not scaling(tiny_zoo, **QUICK)["joint"]


def test_experts_begin_at_the_pretrained_model(tiny_zoo: Zoo) -> None:
    rows = pd.DataFrame(scaling(tiny_zoo, **QUICK)["experts"]).query("steps == 0")
    table = evaluate(tiny_zoo.model, tiny_zoo.pretrained, tiny_zoo.heads, tiny_zoo.suite)
    assert list(rows["task"]) == list(table["task"])
    assert (rows["distance"] == 0).all()
    whole = scaling(tiny_zoo, **{**QUICK, "pictures": 10_000})["experts"][:2]
    assert [row["accuracy"] for row in whole] == pytest.approx(list(table["accuracy"]), abs=1e-4)


def test_the_share_is_a_prefix_and_changes_nothing_else(
    tiny_zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Split] = []

    def watched(**options: Any) -> Any:
        seen.append(options["split"])
        return checkpoints(**options)

    monkeypatch.setattr("mergebook.stability.measure.scaling.checkpoints", watched)
    half, whole = (scaling(tiny_zoo, **QUICK, share=share) for share in (0.5, 1.0))
    for part, task in zip(seen, tiny_zoo.suite.tasks.values(), strict=False):
        assert len(part) == round(len(task.train) / 2)
        assert torch.equal(part.inputs, task.train.inputs[: len(part)])
    assert [len(part) for part in seen[2:]] == [len(t.train) for t in tiny_zoo.suite.tasks.values()]
    untouched = [
        [{**row, "share": 0} for row in table["experts"] if row["steps"] == 0]
        for table in (half, whole)
    ]
    assert untouched[0] == untouched[1], "heads and test rows are the same"
    assert half["merged"] != whole["merged"]
    with pytest.raises(ValueError, match="share is 0"):
        scaling(tiny_zoo, **QUICK, share=0)


def test_stopped_takes_the_least_validation_loss(tiny_zoo: Zoo) -> None:
    """Of one checkpoint, it is the average there; else each task has its own."""
    one = scaling(tiny_zoo, **{**QUICK, "steps": [3]})
    keys = ["group", "task", "accuracy", "loss", "train_loss", "distance", "steps"]
    merged, stopped = (pd.DataFrame(one[name])[keys] for name in ("merged", "stopped"))
    pd.testing.assert_frame_equal(merged, stopped)
    many = scaling(tiny_zoo, **{**QUICK, "learning_rate": 0.05, "steps": [1, 5, 10]})
    table = pd.DataFrame(many["experts"]).query("steps > 0")
    best = table.loc[table.groupby("task")["validation_loss"].idxmin()]
    expected = best.set_index("task")["steps"].to_dict()
    assert {row["task"]: row["steps"] for row in many["stopped"]} == expected


def test_counts_are_nested(tiny_zoo: Zoo) -> None:
    rows = pd.DataFrame(scaling(tiny_zoo, **QUICK, counts=[1, 2], counted=[4])["counts"])
    tasks = rows.groupby("count")["task"].agg(set)
    assert tasks[1] < tasks[2] == {*tiny_zoo.suite.tasks}
    alone = rows.query("count == 1").iloc[0]
    table = pd.DataFrame(scaling(tiny_zoo, **QUICK)["experts"]).set_index(["steps", "task"])
    assert alone["loss"] == table["loss"][4, alone["task"]], "of one task it is the expert"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rivals": ("slerp",)}, "unknown rule 'slerp'; known: average, task_arith"),
        ({"counts": [2, 3], "counted": [4]}, "3 tasks to merge, but there are 2"),
        ({"counts": [2], "counted": [5]}, "counted after .5. steps, but judged after .2, 4."),
        ({"size": 3}, "groups of 3 tasks, but there are 2"),
    ],
)
def test_what_cannot_be_merged_is_refused_before_any_training(
    tiny_zoo: Zoo, wrong: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mergebook.stability.measure.scaling.checkpoints", pytest.fail)
    with pytest.raises(ValueError, match=message):
        scaling(tiny_zoo, **{**QUICK, **wrong})
