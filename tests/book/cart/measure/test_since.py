"""WUDI's path from the sum to the closed form, and what is tuned on validation data."""

import json
from typing import Any

import pandas as pd
import pytest

from mergebook.cart.measure.since import descent, tuned
from mergebook.lab.comparison import adapted, cut, examples_of, judged, merge_zoo
from mergebook.suites.types import Zoo
from mergelib.evaluation.loops import evaluate
from mergelib.procedures.common import unlabelled
from mergelib.tuning import points


def test_descent_goes_from_the_sum_to_the_closed_form(tiny_zoo: Zoo) -> None:
    counts = (1, 20, 6000)
    tables = descent(tiny_zoo, rates=(2e-3,), steps=counts, ridges=(0.0, 10.0), scales=(1.0, 0.3))
    gaps = {(row["method"], row["value"], row["steps"]): row["gap"] for row in tables["path"]}
    falling = [gaps["adam", 0.0, 0], *(gaps["adam", 2e-3, count] for count in counts)]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] == 1
    assert falling[-1] < 0.01
    assert gaps["closed", 0.0, 0] == 0 < gaps["closed", 10.0, 0]
    lengths = [row["length"] for row in tables["path"]]
    assert lengths[0] == 1
    assert lengths[2] < 0.5, "a strong ridge"


def test_descent_judges_what_merge_makes(tiny_zoo: Zoo) -> None:
    zoo = cut(tiny_zoo, 60)
    tables = descent(zoo, rates=(), steps=(1,), ridges=(0.1,), scales=(0.7, 0.3), pictures=60)
    rows = [row for row in tables["test"] if row["method"] == "closed"]
    assert [row["scale"] for row in rows if not row["chosen"]] == [1.0, 1.0]
    for row in rows:
        state = merge_zoo("wudi", zoo, ridge=0.1, scale=row["scale"])
        expected = {own["task"]: own["accuracy"] for own in judged(zoo, "closed", state)}
        assert row["accuracy"] == expected[row["task"]]


@pytest.mark.parametrize(
    ("method", "grid", "split"),
    [
        ("esm", {"scale": [0.0, 1.0], "polarise": [True, False]}, "train"),
        ("symerge", {"learning_rate": [1e-2, 0.3], "steps": [4]}, "test"),
        ("surgery", {"steps": [3]}, "test"),
    ],
)
def test_the_best_on_validation_data_is_judged(
    tiny_zoo: Zoo, method: str, grid: dict[str, list[Any]], split: Any
) -> None:
    rules = {"task_arithmetic": {"scale": [0.3]}}
    tables = tuned(tiny_zoo, grids={method: grid}, rules=rules, examples=5, split=split)
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    table = pd.DataFrame(tables["validation"])
    data = unlabelled(examples_of(tiny_zoo, 5, split))
    scores, results = [], []
    for point in (tried := points(grid)):
        results.append(adapted(tiny_zoo, method, data, **point))
        heads = {**tiny_zoo.heads, **results[-1].heads}
        model, state = tiny_zoo.model, results[-1].state
        judge = evaluate(model, state, heads, tiny_zoo.suite, split="validation", autocast=True)
        scores.append(judge["accuracy"].mean())
    assert table["accuracy"].tolist() == pytest.approx(scores)
    best = int(table["accuracy"].argmax())
    settings = {row["method"]: row["settings"] for row in tables["chosen"]}
    assert settings[method] == tried[best]
    assert table[list(grid)].to_dict("records") == tried
    rows = [row for row in tables["test"] if row["method"] == method]
    assert rows == judged(tiny_zoo, method, results[best])
    methods = {row["method"] for row in tables["test"]}
    assert methods == {"pretrained", "individual", "task_arithmetic", method}
