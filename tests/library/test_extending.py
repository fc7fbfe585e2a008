"""CONTRIBUTING's examples of a new rule and procedure, step by step, on a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mergelib as ml

ROOT = Path(__file__).parents[2]
USE = """
import torch
import mergelib as ml

experts = [{"w": torch.tensor(w)} for w in ([1.0, 5.0], [2.0, 9.0], [6.0, 7.0])]
print(ml.merge("median", experts)["w"].tolist())
for i, expert in enumerate(experts):
    ml.save_state_dict(expert, f"{i}.safetensors")
ml.merge_files("median", [f"{i}.safetensors" for i in range(3)], "out.safetensors")
print(ml.load_state_dict("out.safetensors")["w"].tolist())
print(ml.methods().loc["median", "what it does"])
"""


ADAPT = """
import torch
from torch import nn
import mergelib as ml

model = nn.Linear(1, 2, bias=False)
experts = {"a": {"weight": torch.tensor([[1.0], [-1.0]])}, "b": {"weight": torch.zeros(2, 1)}}
data = {"a": torch.ones(3, 1), "b": torch.ones(3, 1)}
options = {"experts": experts, "model": model, "data": data}
print(ml.adapt("best_expert", **options).state["weight"].flatten().tolist())
try:
    ml.adapt("best_expert", **options, batch_size=0)
except ValueError as error:
    print(error)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package with the examples' files, as they stand in CONTRIBUTING."""
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    example = r"`(mergelib/\w+/\w+\.py)`, found by itself:\n   ```python\n(.*?)```"
    ignored = shutil.ignore_patterns("__pycache__", "results", "assets")
    shutil.copytree(Path(ml.__file__).parent, tmp_path / "mergelib", ignore=ignored)
    for name, code in re.findall(example, guide, flags=re.DOTALL):
        text = re.sub(r"^   ", "", code, flags=re.MULTILINE)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_rule_is_one_file_and_works_everywhere(copy: Path) -> None:
    first, second, summary = run(copy, "-c", USE).splitlines()
    assert first == second == "[2.0, 7.0]"
    assert summary.startswith("The median of every entry over the experts")
    run(
        copy,
        "-m",
        "mergelib",
        "merge",
        "median",
        "0.safetensors",
        "1.safetensors",
        "-o",
        "b.safetensors",
    )
    assert (copy / "b.safetensors").exists()


def test_a_new_procedure_is_one_file(copy: Path) -> None:
    best, refused = run(copy, "-c", ADAPT).splitlines()
    assert best == "[1.0, -1.0]", "of two experts one is sure, the other says one half"
    assert "batch_size" in refused


def test_a_name_is_taken_once(copy: Path) -> None:
    rules = copy / "mergelib" / "rules"
    (rules / "middle.py").write_bytes((rules / "median.py").read_bytes())
    command = [sys.executable, "-c", "import mergelib"]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "a rule named 'median' is registered already, by mergelib.rules.median" in done.stderr
