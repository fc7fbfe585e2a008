"""Every result is as its entry says; those whose code is not today's are listed."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mergebook.cli import app
from mergebook.lab.catalogue import differences, entries, get_study, planned, stale_results
from mergebook.lab.results import read_result, write_result
from tests.book.lab.test_sweep import cloudpickle

ROOT = Path(__file__).parents[3]
RESULTS = {file.stem: file for file in (ROOT / "results").glob("*.json")}
STUDY = "sentences8-surface"  # three seeds, all settings as usual
CODE = get_study("surface").code
POINTS = "tinyshakespeare-overlap"  # two points


def written(folder: Path, name: str = STUDY, **made: Any) -> Path:
    """A folder with one result, whose provenance is that of the committed one but for `made`."""
    origin = {**read_result(RESULTS[name])["provenance"], "code": CODE, **made}
    write_result(folder / f"{name}.json", {"provenance": origin, "test": [{"seed": 0}]})
    return folder


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
        ({}, None),
        ({"code": dict.fromkeys("012", CODE)}, None),
        ({"code": "0" * 16}, "measured by other code than today's"),
        (
            {"code": {"0": CODE, "1": "0" * 16}},
            "measured by other code than today's (seeds 1)",
        ),
        ({"code": None}, "measured before code was recorded"),
        ({"study": "phrenology"}, "its entry differs in study"),
        ({"seeds": [0, 1]}, "its entry differs in seeds"),
        ({"model": "vit"}, "its entry differs in model"),
        ({"settings": {"pictures": 3}}, "its entry differs in setting 'pictures'"),
        ({"settings": {"bumps": 3}}, None),
        ({"points": [{}, {}]}, "its entry differs in the number of points"),
    ],
)
def test_older_code_is_seen(made: dict[str, Any], reason: str | None, tmp_path: Path) -> None:
    assert stale_results(written(tmp_path, **made)).get(f"{STUDY}.json") == reason


def test_code_is_compared_at_every_point(tmp_path: Path) -> None:
    code = get_study("overlap").code
    assert not stale_results(written(tmp_path, POINTS, code=[code, code]))
    assert stale_results(written(tmp_path, POINTS, code=[code, "0" * 16]))


def test_results_without_an_entry_are_named(tmp_path: Path) -> None:
    write_result(tmp_path / "unheard.json", {"provenance": {"date": "today"}, "times": []})
    assert "no entry" in stale_results(tmp_path)["unheard.json"]


def test_benchmarks_have_no_study(tmp_path: Path) -> None:
    write_result(tmp_path / "benchmarks.json", {"provenance": {"date": "today"}, "times": []})
    assert not stale_results(tmp_path)
    with pytest.raises(ValueError, match=r"it is made by python -m benchmarks\.cogram"):
        planned("cogram-speed")


def test_the_command_lists_them(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["stale", str(written(tmp_path, code="0" * 16))])
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"{STUDY}.json: measured by other code than today's",
        "1 of 1 results",
    ]
