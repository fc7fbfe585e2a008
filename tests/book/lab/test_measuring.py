"""Seeds that are added to a record, and tables that are those of all seeds."""

import copy
from typing import Any

import pytest

from mergebook.cart.measure.experiments import baselines
from mergebook.lab.measuring import Measurement, append, measure
from mergebook.suites.training import Recipe


@pytest.fixture
def records(tiny: str) -> list[dict[str, Any]]:
    """Of seeds 0 and 1 together, and of each; runs stay in the cache."""
    return [
        measure(
            Measurement(
                baselines,
                "digits2",
                seeds,
                settings={"grids": {"average": {}}},
                model=tiny,
                recipe=Recipe(epochs=1),
                options={"profile": "smoke"},
            )
        )
        for seeds in ([0, 1], [0], [1])
    ]


def test_added_seeds_give_the_record_of_all(records: list[dict[str, Any]]) -> None:
    both, first, second = copy.deepcopy(records)
    added = append(first, second)
    assert added["provenance"].pop("command") == [both["provenance"].pop("command")] * 2
    assert added == both
    assert {row["seed"] for row in added["test"]} == {0, 1}


def test_seeds_are_added_again_and_again(records: list[dict[str, Any]]) -> None:
    _, first, second = records
    third = copy.deepcopy(second)
    third["provenance"]["seeds"] = [2]
    for name in ("sources", "zoo"):
        third["provenance"][name] = {"2": third["provenance"][name]["1"]}
    third["provenance"]["date"] = "another"
    made = append(append(first, second), third)["provenance"]
    assert made["seeds"] == [0, 1, 2]
    assert len(made["command"]) == 3
    date = first["provenance"]["date"]
    assert made["date"] == {"0": date, "1": date, "2": "another"}


def test_what_does_not_belong_together_is_refused(records: list[dict[str, Any]]) -> None:
    _, first, second = records
    with pytest.raises(ValueError, match="seed 0 has been measured already"):
        append(first, first)
    for name, value in {"suite": "vision8", "code": "other", "settings": {"a": 1}}.items():
        other = copy.deepcopy(second)
        other["provenance"][name] = value
        with pytest.raises(ValueError, match=f"seeds cannot be added, {name} differs"):
            append(first, other)


def test_code_that_differs_is_told(records: list[dict[str, Any]]) -> None:
    _, first, second = copy.deepcopy(records)
    second["provenance"]["code"] = "another"
    added = append(first, second, any_code=True)
    assert added["provenance"]["code"] == {"0": first["provenance"]["code"], "1": "another"}
    assert {row["seed"] for row in added["test"]} == {0, 1}
