"""Records of one study with different seeds, put together."""

import copy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mergebook.cart.measure.experiments import baselines
from mergebook.lab.joining import join
from mergebook.lab.results import read_result, write_result
from mergebook.lab.runner import measure_study
from mergebook.suites.training import Recipe
from mergelib.cli import app


@pytest.fixture
def records(tiny: str) -> list[dict[str, Any]]:
    """Of seeds 0 and 1 together, and of each; runs stay in the cache."""
    return [
        measure_study(
            baselines,
            "digits2",
            seeds,
            settings={"grids": {"average": {}}},
            model=tiny,
            recipe=Recipe(epochs=1),
            profile="smoke",
        )
        for seeds in ([0, 1], [0], [1])
    ]


def test_joined_records_are_those_of_all_seeds(records: list[dict[str, Any]]) -> None:
    both, *each = copy.deepcopy(records)
    joined = join(each)
    assert joined["provenance"].pop("command") == [both["provenance"].pop("command")] * 2
    assert joined == both
    assert {row["seed"] for row in joined["test"]} == {0, 1}


def test_three_records_join_in_any_steps(records: list[dict[str, Any]]) -> None:
    _, first, second = records
    third = copy.deepcopy(second)
    third["provenance"]["seeds"] = [2]
    for name in ("sources", "zoo"):
        third["provenance"][name] = {"2": third["provenance"][name]["1"]}
    third["provenance"]["date"] = "another"
    at_once = join([first, second, third])
    assert at_once["provenance"]["date"]["2"] == "another"
    stepwise = join([join([first, second]), third])
    assert stepwise["provenance"].pop("command")[1] == at_once["provenance"].pop("command")[2]
    assert stepwise == at_once


def test_what_does_not_belong_together_is_refused(records: list[dict[str, Any]]) -> None:
    _, first, second = records
    with pytest.raises(ValueError, match="no records"):
        join([])
    with pytest.raises(ValueError, match="two records have seed 0"):
        join([first, first])
    for name, value in {"suite": "vision8", "code": "other", "settings": {"a": 1}}.items():
        other = copy.deepcopy(second)
        other["provenance"][name] = value
        with pytest.raises(ValueError, match=f"records differ in {name}"):
            join([first, other])


def test_the_command(records: list[dict[str, Any]], tmp_path: Path) -> None:
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    for file, record in zip(files, records[1:], strict=True):
        write_result(file, record)
    found = CliRunner().invoke(app, ["join", *map(str, files), "-o", str(tmp_path / "both.json")])
    assert found.exit_code == 0, found.output
    assert read_result(tmp_path / "both.json")["test"] == records[0]["test"]


def test_code_that_differs_is_told(records: list[dict[str, Any]]) -> None:
    _, first, second = copy.deepcopy(records)
    second["provenance"]["code"] = "another"
    with pytest.raises(ValueError, match="records differ in code"):
        join([first, second])
    joined = join([first, second], any_code=True)
    assert joined["provenance"]["code"] == {"0": first["provenance"]["code"], "1": "another"}
    assert {row["seed"] for row in joined["test"]} == {0, 1}
