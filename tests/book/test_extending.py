"""CONTRIBUTING's examples of a new study and a new claim, step by step, on a copy."""

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


def example(title: str) -> list[tuple[str, str]]:
    """A section's files and what CONTRIBUTING writes into them."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition(title)[2].partition("\n## ")[0]
    steps = r"^\d\. `(mergebook/[\w/.]+)`[^`]*```(?:python|toml)\n(.*?)```"
    found = re.findall(steps, section, flags=re.DOTALL | re.MULTILINE)
    return [(name, re.sub(r"^   ", "", text, flags=re.MULTILINE)) for name, text in found]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package in ("mergelib", "mergebook"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    (tmp_path / "results").symlink_to(ROOT / "results")
    return tmp_path


def python(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


QUICK = """
from dataclasses import replace
from mergebook import cli
from mergebook.suites.families import FAMILIES
from mergebook.suites.training import Recipe

FAMILIES["digits"] = replace(FAMILIES["digits"], recipe=Recipe(epochs=1))
cli.main()
"""


def test_a_new_study_is_a_file_and_an_entry(copy: Path) -> None:
    files = example("## Add a study")
    assert len(files) == 2
    for name, text in files:
        with (copy / name).open("a") as file:
            file.write("\n" + text)
    output = copy / "smoke.json"
    options = ("--profile", "smoke", "--seeds", "1", "-o", str(output))
    python(copy, "-c", QUICK, "measure", "digits2-distances", *options)
    made = read_result(output)
    assert made["provenance"]["settings"] == {"order": 1.0}
    table = pd.DataFrame(made["test"]).set_index(["seed", "task"])
    assert [*table.index] == [(0, "digits_low"), (0, "digits_high")]
    assert (table["distance"] > 1).all(), "a sum of absolute values of a whole network's weights"


def test_a_new_claim_is_a_text_and_a_function(copy: Path) -> None:
    (text, written), (code, function) = example("## Add a claim")
    with (copy / text).open("a") as file:
        file.write("\n" + written)
    old = (copy / code).read_text()
    before, tests, after = old.partition("TESTS = (")
    after = after.replace("text),", "text, trimmed),", 1)
    (copy / code).write_text(before + function + "\n\n" + tests + after)
    use = """
from mergebook import ledger
from mergebook.cart.claims import CLAIMS

table, checks = ledger.judge(CLAIMS[-1:])
print(*table.loc[0, ["claim", "statement"]], sep=": ")
print(checks.loc[0, "id"])
"""
    claim, name = python(copy, "-c", use).splitlines()
    assert claim == "C11: TIES is above weight averaging with 8 tasks"
    assert name == "C11/vision8/ties/average"
