"""The study that checks the bound of a merge's generalisation error, on the tiny zoo."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from mergebook.stability.measure.retraining import merge_stability
from mergebook.suites.types import (
    Zoo,
)
from mergelib.evaluation.tasks import (
    Split,
)

QUICK: dict[str, Any] = {
    "tasks": 2,
    "pairs": 2,
    "steps": (2, 4),
    "examples": 16,
    "fresh": 8,
    "singles": 1,
    "products": 2,
}


def test_a_merge_moves_once_it_is_trained(tiny_zoo: Zoo) -> None:
    merged = pd.DataFrame(merge_stability(tiny_zoo, **QUICK)["merged"]).set_index("steps")
    assert merged.index.tolist() == [0, 2, 4]
    assert merged.loc[0, "stability"] == 0
    assert (merged.loc[[2, 4], "stability"] > 0).all()
    assert (merged["second_moment"] >= merged["squared"]).all()
    assert (merged["smoothness"] > 0).all()


def test_fresh_examples_are_neither_trained_on_nor_put_in(tiny_zoo: Zoo) -> None:
    """With labels of the fresh rows changed, only the fresh loss differs."""

    def relabelled(start: int, end: int | None) -> pd.DataFrame:
        tasks = {}
        for name, task in tiny_zoo.suite.tasks.items():
            labels = task.train.labels.clone()
            labels[start:end] = (labels[start:end] + 1) % len(task.class_names)
            tasks[name] = replace(task, train=Split(task.train.inputs, labels))
        zoo = replace(tiny_zoo, suite=replace(tiny_zoo.suite, tasks=tasks))
        return pd.DataFrame(merge_stability(zoo, **QUICK)["merged"])

    plain, changed = relabelled(0, 0), relabelled(16 + 2, 16 + 2 + 8)
    differ = {name for name in plain if not plain[name].equals(changed[name])}
    assert differ == {"fresh_loss"}
    assert plain.equals(relabelled(16 + 2 + 8, None))
    replaced = relabelled(16, 16 + 2)
    assert {name for name in plain if not plain[name].equals(replaced[name])} == {"stability"}


def test_too_few_examples_are_refused(tiny_zoo: Zoo) -> None:
    rows = min(len(task.train) for task in tiny_zoo.suite.tasks.values())
    with pytest.raises(ValueError, match="at least one fresh example"):
        merge_stability(tiny_zoo, **{**QUICK, "examples": rows - 2})
