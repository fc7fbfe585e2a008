"""Fitted heads against scikit-learn and against leaving one example out by hand."""

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import Ridge

from mergebook.cart.measure.heads import fresh_heads, label_budget, training_length
from mergebook.lab import heads
from mergebook.lab.comparison import adapted, examples_of, merge_zoo, scaled_by_larv
from mergebook.lab.heads import judged_under_heads
from mergebook.suites.types import Zoo
from mergelib.evaluation.loops import evaluate
from mergelib.procedures.common import unlabelled
from mergelib.tuning import Grid


def blobs(count: int = 40, width: int = 6, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    centres = torch.randn(classes, width, generator=generator)
    return centres[labels] + 1.2 * torch.randn(count, width, generator=generator), labels


@pytest.mark.parametrize("width", [6, 60])  # fewer and more than there are examples
def test_ridge_is_scikit_learns(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    features, labels = blobs(width=width)
    monkeypatch.setattr(heads, "PENALTIES", (0.3,))
    head, left_out = heads.ridge(features, labels, 3)
    x, y = features.double().numpy(), F.one_hot(labels, 3).double().numpy()
    size = np.square(np.linalg.svd(x - x.mean(0), compute_uv=False)).mean()
    known = Ridge(alpha=0.3 * size).fit(x, y)
    assert head(features).numpy() == pytest.approx(known.predict(x), abs=1e-5)
    right = []
    for i in range(len(x)):
        rest = np.arange(len(x)) != i
        without = Ridge(alpha=0.3 * size).fit(x[rest], y[rest])
        right.append(without.predict(x[[i]]).argmax() == labels[i].item())
    assert left_out == pytest.approx(np.mean(right))


def test_the_penalty_has_the_best_accuracy_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = blobs()
    best = heads.ridge(features, labels, 3)[1]
    alone = []
    for penalty in heads.PENALTIES:
        monkeypatch.setattr(heads, "PENALTIES", (penalty,))
        alone.append(heads.ridge(features, labels, 3)[1])
    assert best == max(alone) > min(alone)


def test_procedures_and_scales_of_layers_are_judged_as_they_merge(tiny_zoo: Zoo) -> None:
    layers = {"over_layers": [0.2, 0.6], "*": 0.2}
    grids: dict[str, Grid] = {
        "esm": {"examples": [4], "scale": [0.5]},
        "tsv+lines": {"scale": [layers]},
        "tsv+larv": {"scale": [0.5]},
    }
    tables = fresh_heads(tiny_zoo, grids=grids, shots=(), everything=False)
    inputs = unlabelled(examples_of(tiny_zoo, 4))
    expected = {
        "esm": adapted(tiny_zoo, "esm", inputs, scale=0.5).state,
        "tsv+lines": merge_zoo("tsv", tiny_zoo, scale=layers),
        "tsv+larv": merge_zoo("tsv", scaled_by_larv(tiny_zoo), scale=0.5),
    }
    for method, state in expected.items():
        known = [row["accuracy"] for row in judged_under_heads(tiny_zoo, state)]
        for by in ("frozen", "fresh"):
            own = [r for r in tables["test"] if (r["method"], r["by"]) == (method, by)]
            assert [row["accuracy"] for row in own] == known
    chosen = {row["method"]: row["settings"] for row in tables["chosen"]}
    assert chosen["esm"] == {"examples": 4, "scale": 0.5}
    assert chosen["tsv+lines"] == {"scale": layers}


def test_every_candidate_is_judged_under_every_head(tiny_zoo: Zoo) -> None:
    grids = {"average": {}, "task_arithmetic": {"scale": [0.1, 0.5, 2.0]}}
    tables = fresh_heads(tiny_zoo, grids=grids, shots=(1, 2))
    names = {"frozen", "class means", "validation", "all", "1 per class", "2 per class"}
    test, tasks = tables["test"], list(tiny_zoo.suite.tasks)
    assert {row["head"] for row in test} == names
    assert len(test) == len(names) * len(tasks) * (1 + 2 * len(grids) + 1)
    tried = [row for row in tables["validation"] if row["method"] == "task_arithmetic"]
    scales = sorted(row["scale"] for row in tried)
    for column in ("frozen", "fresh"):
        best = max(tried, key=lambda row: row[column])["scale"]
        assert scales[0] < best < scales[-1] or len(tried) == 3 + 4, "the grid goes on"
    (settings,) = (
        row["settings"]
        for row in tables["chosen"]
        if row["method"] == "task_arithmetic" and row["by"] == "frozen"
    )
    state = merge_zoo("task_arithmetic", tiny_zoo, **settings)
    table = evaluate(tiny_zoo.model, state, tiny_zoo.heads, tiny_zoo.suite, autocast=True)
    asked = {"method": "task_arithmetic", "by": "frozen", "head": "frozen"}
    ours = [row["accuracy"] for row in test if asked.items() <= row.items()]
    assert ours == pytest.approx(list(table["accuracy"]))
    for row in test:
        task = tiny_zoo.suite.tasks[row["task"]]
        most = {"frozen": 0, "validation": len(task.validation), "all": len(task.train)}
        most |= {"class means": len(task.validation), "1 per class": len(task.class_names)}
        assert row["labels"] == most.get(row["head"], row["labels"])


def test_longer_training_is_judged_at_every_checkpoint(tiny_zoo: Zoo) -> None:
    methods = ("average", "task_arithmetic")
    tables = training_length(tiny_zoo, steps=(1, 4), methods=methods, share=0.5)
    far = dict.fromkeys((1, 4), 0.0)
    for row in tables["experts"]:
        far[row["steps"]] += row["distance"]
    assert 0 < far[1] < far[4]
    test = pd.DataFrame(tables["test"])
    names = ("pretrained", "individual", *methods)
    pairs = {(count, name) for count in (1, 4) for name in names}
    assert {*zip(test["steps"], test["method"], strict=True)} == pairs
    plain = test[test["method"] == "pretrained"]
    own = [plain.loc[plain["steps"] == count, "accuracy"].tolist() for count in (1, 4)]
    assert own[0] == own[1], "the pretrained model is the same after any number of steps"


def test_a_budget_is_all_that_is_seen(tiny_zoo: Zoo) -> None:
    tables = label_budget(
        tiny_zoo, budgets=(6, 0), steps=2, grid={"rank_ratio": [0.5], "scale": [1.0, 2.0]}
    )
    labels = {
        (row["budget"], row["task"]): row["labels"]
        for row in tables["test"]
        if row["head"] == "validation"
    }
    for name, task in tiny_zoo.suite.tasks.items():
        assert labels[6, name] == 6
        assert labels[0, name] == len(task.train)
    names = {row["method"] for row in tables["test"]}
    assert names == {"pretrained", "tsv", "cart", "adamerging", "multitask"}
    frozen = {
        (row["budget"], row["task"]): row["accuracy"]
        for row in tables["test"]
        if row["method"] == "pretrained" and row["head"] == "frozen"
    }
    assert all(frozen[6, name] == frozen[0, name] for name in tiny_zoo.suite.tasks)
