"""Averages of experts of one task: what they are made of, and what must not change them."""

import pandas as pd
import pytest

from mergebook.stability.measure.scaling import repeats
from mergebook.suites.types import (
    Zoo,
)


def test_one_expert_is_in_both_kinds_and_others_part_them(tiny_zoo: Zoo) -> None:
    rows = repeats(tiny_zoo, tasks=2, counts=[1, 2], steps=20, learning_rate=5e-3)["test"]
    table = pd.DataFrame(rows).set_index(["kind", "count", "task"])["loss"].sort_index()
    assert len(table) == 8
    assert table["same", 1].equals(table["different", 1])
    assert (table["same", 2] != table["different", 2]).all()


def test_with_all_rows_in_every_batch_experts_of_one_task_are_one(tiny_zoo: Zoo) -> None:
    """Neither the order nor the half differs, so that averaging changes nothing."""
    size = min(len(task.train) for task in tiny_zoo.suite.tasks.values())
    settings = {"share": 1.0, "batch_size": 10 * size, "steps": 3}
    rows = repeats(tiny_zoo, tasks=1, counts=[1, 2], **settings)["test"]  # type: ignore[arg-type]
    same = [row["loss"] for row in rows if row["kind"] == "same"]
    assert same[0] == pytest.approx(same[1], rel=2e-3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"counts": [3]}, "3 experts to merge, but there are 2 tasks"),
        ({"share": 0.0}, "share is 0"),
    ],
)
def test_what_is_refused(tiny_zoo: Zoo, settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        repeats(tiny_zoo, **{"counts": [1], **settings})  # type: ignore[arg-type]
