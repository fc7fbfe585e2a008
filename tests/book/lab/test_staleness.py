"""Results whose code is not today's are listed, each with the reason."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mergebook.cli import app
from mergebook.lab.catalogue import get_study
from mergebook.lab.results import write_result
from mergebook.lab.staleness import stale_results

STUDY = get_study("interference")
CODE = STUDY.code


def written(folder: Path, **made: Any) -> Path:
    origin = {"study": "interference", "settings": {}, "code": CODE, **made}
    write_result(folder / "a.json", {"provenance": origin, "curves": [{"seed": 0}]})
    return folder


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({}, None),
        ({"settings": {"pictures": 3}}, None),
        ({"code": {"0": CODE, "1": CODE}}, None),
        ({"points": [{"pictures": 3}, {"pictures": 4}]}, None),
        ({"code": [CODE, CODE], "points": [{"pictures": 3}, {"pictures": 4}]}, None),
        ({"code": "0" * 16}, "measured by other code than today's"),
        ({"code": {"0": CODE, "1": "0" * 16}}, "measured by other code than today's (seeds 1)"),
        (
            {"code": [CODE, "0" * 16], "points": [{"pictures": 3}, {"pictures": 4}]},
            "measured by other code than today's",
        ),
        ({"code": None}, "measured before code was recorded"),
        ({"study": "phrenology"}, "unknown study 'phrenology'"),
        ({"settings": {"bumps": 3}}, "interference has no setting 'bumps'"),
    ],
)
def test_older_code_is_seen(made: dict[str, Any], reason: str | None, tmp_path: Path) -> None:
    found = stale_results(written(tmp_path, **made))
    assert list(found) == ([] if reason is None else ["a.json"])
    assert found.get("a.json", "").startswith(reason or "")


def test_a_change_of_a_procedure_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings may name methods, whose code then counts."""
    study = get_study("compression")
    folder = written(tmp_path, study="compression", code=study.code)
    assert not stale_results(folder)
    monkeypatch.setattr("mergebook.lab.runner.code_key", lambda *_: "another")
    assert list(stale_results(folder)) == ["a.json"]


def test_benchmarks_have_no_study(tmp_path: Path) -> None:
    write_result(tmp_path / "speed.json", {"provenance": {"date": "today"}, "times": []})
    assert not stale_results(tmp_path)


def test_the_command_lists_them(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["stale", str(written(tmp_path, code="0" * 16))])
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "a.json: measured by other code than today's",
        "1 of 1 results",
    ]
