"""`make table1` measures rules and studies on CLIP; here each of them on a tiny network."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mergebook.lab.catalogue import planned
from mergebook.suites.types import Zoo

MAKEFILE = Path(__file__).parents[3] / "Makefile"
LINES = re.findall(r"^TABLE_1 \+?= (.*)$", MAKEFILE.read_text(encoding="utf-8"), re.MULTILINE)
STUDIES = " ".join(LINES).split()
SMALLER: dict[str, dict[str, Any]] = {
    "adaptation": {"steps": 2},
    "fresh_heads": {"shots": [2]},
    "glyphs8-symerge": {
        "grids": {name: {"steps": [2]} for name in ("adamerging", "surgery", "symerge")}
    },
}  # settings


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_of_table_1_runs_on_any_suite(name: str, tiny_zoo: Zoo) -> None:
    plan = planned(name, "clip8")
    (run, *_) = plan.runs()
    assert run.suite == "clip8"
    tables = run.study.function(tiny_zoo, **{**run.settings, **SMALLER.get(name, {})})
    test = pd.DataFrame(tables["test"])
    assert {*test["task"]} == {*tiny_zoo.suite.tasks}
    assert test["accuracy"].between(0, 1).all()
    later = plan.settings.get("grids", {})
    assert {*later} <= {*test["method"]}
