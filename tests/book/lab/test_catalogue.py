"""Every result is as its entry says."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mergebook.lab.catalogue import entries, planned
from mergebook.lab.measuring import Measurement
from mergebook.lab.results import read_result
from mergelib.hashing import plain
from tests.book.lab.test_sweep import cloudpickle

ROOT = Path(__file__).parents[3]
RESULTS = {file.stem: file for file in (ROOT / "results").glob("*.json")}


def differences(plan: Measurement, made: Mapping[str, Any]) -> str:
    """In what a result's provenance differs from its entry; settings that it lacks do not count."""
    runs = plan.runs()
    first = runs[0]
    asked = {"study": first.study.name, "suite": first.suite, "seeds": [*plan.seeds]}
    wrong = [name for name, value in asked.items() if made.get(name) != value]
    usual = {"model": first.model, "recipe": first.recipe and asdict(first.recipe)}
    wrong += [n for n, value in usual.items() if value and made.get(n) not in (None, value)]
    planned = [run.settings for run in runs if run.seed == first.seed]
    measured = [{**made["settings"], **point} for point in made.get("points", [{}])]
    if len(measured) != len(planned):
        wrong.append("the number of points")
    for ours, theirs in zip(planned, measured, strict=False):
        wrong += [f"setting {n!r}" for n in theirs if n in ours and plain(ours[n]) != theirs[n]]
    return f"its entry differs in {', '.join(dict.fromkeys(wrong))}" if wrong else ""


def test_every_result_has_an_entry() -> None:
    assert set(RESULTS) <= set(entries())


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_what_its_entry_says(name: str) -> None:
    made, table = read_result(RESULTS[name])["provenance"], entries()[name]
    if "study" not in table:
        assert made.get("command", table["command"]) == table["command"]
        return
    assert not differences(planned(name), made)
    if {"sizes", "sources"} <= set(made):
        sizes = made["sizes"].get("0", made["sizes"])
        assert table.get("tasks", [*sizes]) == [*sizes]
    commands = [made["command"]] if isinstance(made.get("command"), str) else []
    for words in map(shlex.split, commands):
        assert name in words or ("--tasks" in words) == ("tasks" in table)


def test_every_entry_can_be_measured() -> None:
    """By another process as well, which gets its runs pickled."""
    for name, table in entries().items():
        assert ("study" in table) != ("command" in table), name
        if "study" in table:
            runs = planned(name).runs()
            assert runs, name
            sent = cloudpickle.loads(cloudpickle.dumps(runs))
            assert [run.name for run in sent] == [run.name for run in runs]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({}, ""),
        ({"study": "phrenology"}, "its entry differs in study"),
        ({"seeds": [0, 1]}, "its entry differs in seeds"),
        ({"model": "vit"}, "its entry differs in model"),
        ({"settings": {"pictures": 3}}, "its entry differs in setting 'pictures'"),
        ({"settings": {"bumps": 3}}, ""),
        ({"points": [{}, {}]}, "its entry differs in the number of points"),
    ],
)
def test_a_difference_from_the_entry_is_named(made: dict[str, Any], reason: str) -> None:
    name = "sentences8-surface"  # all settings as usual
    kept = read_result(RESULTS[name])["provenance"]
    assert differences(planned(name), {**kept, **made}) == reason


def test_benchmarks_have_no_study() -> None:
    with pytest.raises(ValueError, match=r"it is made by python -m benchmarks\.cogram"):
        planned("cogram-speed")
