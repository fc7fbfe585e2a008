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


RUN = """
import sys
from dataclasses import replace
from mergebook import cli, ledger
from mergebook.cart.claims import CLAIMS
from mergebook.suites.families import FAMILIES
from mergebook.suites.training import Recipe

table, checks = ledger.judge(CLAIMS[-1:])
print(*table.loc[0, ["claim", "statement"]], sep=": ")
print(checks.loc[0, "id"])
FAMILIES["digits"] = replace(FAMILIES["digits"], recipe=Recipe(epochs=1), model="vit_small")
sys.argv = ["mergebook", "measure", "digits2-distances", *sys.argv[1:]]
cli.main()
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """What a copy with both examples prints of the claim, and the file of its new study."""
    copy = tmp_path_factory.mktemp("copy")
    for package in ("mergelib", "mergebook"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, copy / package, ignore=ignored)
    (copy / "results").symlink_to(ROOT / "results")
    files = example("## Add a study")
    assert len(files) == 2
    (text, written), (code, function) = example("## Add a claim")
    for name, added in (*files, (text, written)):
        with (copy / name).open("a") as file:
            file.write("\n" + added)
    before, tests, after = (copy / code).read_text().partition("TESTS = (")
    after = after.replace("text),", "text, trimmed),", 1)
    (copy / code).write_text(before + function + "\n\n" + tests + after)
    output = copy / "smoke.json"
    options = ("--profile", "smoke", "--seeds", "1", "-o", str(output))
    environment = {**os.environ, "PYTHONPATH": str(copy), "MERGELIB_CACHE": str(copy / "cache")}
    command = [sys.executable, "-c", RUN, *options]
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), output


def test_a_new_study_is_a_file_and_an_entry(ran: tuple[list[str], Path]) -> None:
    made = read_result(ran[1])
    assert made["provenance"]["settings"] == {"order": 1.0}
    table = pd.DataFrame(made["test"]).set_index(["seed", "task"])
    assert [*table.index] == [(0, "digits_low"), (0, "digits_high")]
    assert (table["distance"] > 1).all(), "a sum of absolute values of a whole network's weights"


def test_a_new_claim_is_a_text_and_a_function(ran: tuple[list[str], Path]) -> None:
    claim, name, *_ = ran[0]
    assert claim == "C11: TIES is above weight averaging with 8 tasks"
    assert name == "C11/vision8/ties/average"
