"""CONTRIBUTING's example of a new study, step by step, on a copy of the packages."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from mergebook.lab.results import read_result

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages with the example's code and entry, as they stand in CONTRIBUTING."""
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    section = guide.partition("## Add a study")[2].partition("\n## ")[0]
    (name,) = re.findall(r"`(mergebook/\w+/measure/\w+\.py)`", section)
    code, entry = re.findall(r"```(?:python|toml)\n(.*?)```", section, flags=re.DOTALL)
    for package in ("mergelib", "mergebook"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    (tmp_path / name).write_text(re.sub(r"^   ", "", code, flags=re.MULTILINE))
    with (tmp_path / "mergebook" / "results.toml").open("a") as file:
        file.write("\n" + re.sub(r"^   ", "", entry, flags=re.MULTILINE))
    return tmp_path


def mergebook(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "mergebook", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_new_study_is_a_file_and_an_entry(copy: Path) -> None:
    output = copy / "smoke.json"
    options = ("--profile", "smoke", "--seeds", "1", "-o", str(output))
    mergebook(copy, "measure", "digits2-distances", *options)
    made = read_result(output)
    assert made["provenance"]["settings"] == {"order": 1.0}
    mergebook(copy, "measure", "distances", "--suite", "digits2", *options)
    table = pd.DataFrame(read_result(output)["test"]).set_index(["seed", "task"])
    assert [*table.index] == [(0, "digits_low"), (0, "digits_high")]
    first = pd.DataFrame(made["test"]).set_index(["seed", "task"])
    assert (first["distance"] > table["distance"]).all(), "in the sum norm they are further"
