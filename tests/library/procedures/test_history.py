"""The history of a procedure with steps: a table with the same columns, however long."""

from typing import Any

import pytest


@pytest.mark.parametrize(
    "method",
    ["adamerging", "adarank", "concrete", "frank_wolfe", "multitask", "surgery", "symerge"],
)
def test_no_steps_have_a_history_without_rows(case: Any, method: str) -> None:
    none, two = (case.adapt(method, steps=steps).history for steps in (0, 2))
    assert none.empty
    assert none.columns.tolist() == two.columns.tolist()
    assert none.columns[0] == "step"
