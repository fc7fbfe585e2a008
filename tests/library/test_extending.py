"""CONTRIBUTING's examples of a new rule and procedure, step by step, on a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import mergelib as ml
from mergelib.rules import spectral

ROOT = Path(__file__).parents[2]
USE = """
import os, sys, torch
from torch import nn
import mergelib as ml
from mergelib.cli import main

experts = [{"w": torch.tensor(w)} for w in ([1.0, 5.0], [2.0, 9.0], [6.0, 7.0])]
print(ml.merge("median", experts)["w"].tolist())
for i, expert in enumerate(experts):
    ml.save_state_dict(expert, f"{i}.safetensors")
ml.merge_files("median", [f"{i}.safetensors" for i in range(3)], "out.safetensors")
print(ml.load_state_dict("out.safetensors")["w"].tolist())
print(ml.methods().loc["median", "what it does"])
try:
    sys.argv = ["mergelib", "merge", "median", "0.safetensors", "1.safetensors", "-o", "b"]
    main()
except SystemExit as left:
    print(left.code, os.path.exists("b"))

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


def test_a_new_rule_and_a_new_procedure_are_a_file_each_and_work_everywhere(
    tmp_path: Path,
) -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    example = r"`(mergelib/\w+/\w+\.py)`, found by itself:\n   ```python\n(.*?)```"
    ignored = shutil.ignore_patterns("__pycache__", "results", "assets")
    shutil.copytree(Path(ml.__file__).parent, tmp_path / "mergelib", ignore=ignored)
    for name, code in re.findall(example, guide, flags=re.DOTALL):
        text = re.sub(r"^   ", "", code, flags=re.MULTILINE)
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second, summary, *_, ran, best, refused = done.stdout.splitlines()
    assert first == second == "[2.0, 7.0]"
    assert summary.startswith("The median of every entry over the experts")
    assert ran == "0 True"
    assert best == "[1.0, -1.0]", "of two experts one is sure, the other says one half"
    assert "batch_size" in refused


def test_a_name_is_taken_once() -> None:
    file = Path(spectral.__file__)
    spec = spec_from_file_location("mergelib.rules.other", file)
    assert spec
    assert spec.loader
    with pytest.raises(ValueError, match=r"registered already, by mergelib\.rules\.spectral"):
        spec.loader.exec_module(module_from_spec(spec))
