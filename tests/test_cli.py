"""The command line: what each command does, and errors of one line, status 1 and no traceback."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from torch import Tensor

import mergelib as ml
from mergelib import cli
from mergelib.cli import printing
from mergelib.io import load_state_dict, save_state_dict
from mergelib.records.results import read_result
from mergelib.registry import get_method, method_names
from mergelib.studies import comparison
from mergelib.testbed import suites, zoo
from mergelib.testbed.backbones import build_model
from mergelib.testbed.families import FAMILIES
from mergelib.testbed.training import Recipe

State = dict[str, Tensor]
Run = Callable[..., "Outcome"]


class Outcome:
    """What a run printed, and its exit status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr(printing, "console", Console(width=160))

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["mergelib", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            sys.exit(cli.main())  # type: ignore[func-returns-value]
        printed = capsys.readouterr()
        return Outcome(left.value.code or 0, printed.out, printed.err)  # type: ignore[arg-type]

    return call


def succeed(run: Run, *arguments: object) -> str:
    outcome = run(*arguments)
    assert outcome.status == 0, outcome.err
    return str(outcome.out)


def fail(run: Run, *arguments: object) -> str:
    """The one line that a refused run prints, without the program's name."""
    outcome = run(*arguments)
    assert outcome.status == 1, (outcome.out, outcome.err)
    assert outcome.err.startswith("mergelib: ")
    assert outcome.err.count("\n") == 1
    assert outcome.err.endswith("\n")
    return str(outcome.err.removeprefix("mergelib: ").strip())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small suites and one epoch."""
    monkeypatch.setattr(suites, "load_suite", partial(suites.load_suite, profile="smoke"))
    family = replace(FAMILIES["digits"], recipe=Recipe(epochs=1))
    monkeypatch.setitem(FAMILIES, "digits", family)


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, list[Path]]:
    """A pretrained model and three experts in files."""
    torch.manual_seed(0)
    paths = [tmp_path / f"{name}.safetensors" for name in ("base", "a", "b", "c")]
    for path in paths:
        save_state_dict({"fc.weight": torch.randn(8, 6), "fc.bias": torch.randn(8)}, path)
    return paths[0], paths[1:]


# What commands do --------------------------------------------------------------------------------


@pytest.mark.slow
def test_demo(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one; a second run trains nothing and finds the same."""
    folder = tmp_path / "out"
    printed = succeed(run, "demo", "--suite", "digits2", "--output", folder)
    assert sorted(file.name for file in folder.iterdir()) == ["digits2.csv", "digits2.png"]
    assert (folder / "digits2.png").read_bytes().startswith(b"\x89PNG")
    table = pd.read_csv(folder / "digits2.csv")
    names = ["pretrained", "average", "task_arithmetic", "ties", "cart", "individual"]
    assert list(table["method"].unique()) == names
    assert set(table["task"]) == {"digits_low", "digits_high"}
    mean = table.groupby("method")["accuracy"].mean()
    assert mean["individual"] > 0.95
    assert mean["pretrained"] < mean["average"]
    merged = table["method"].isin(cli.studies.DEMO)
    assert (table.loc[merged, "seconds"] > 0).all()
    for text in ("TIES", "CART", "mean", "normalised", "peak MB", f"{100 * mean['cart']:.1f}"):
        assert text in printed
    assert f"Wrote {folder / 'digits2'}.csv and {folder / 'digits2'}.png" in printed

    def never(*_: Any, **__: Any) -> None:
        raise ValueError("trained again")

    monkeypatch.setattr(zoo, "fine_tune", never)
    succeed(run, "demo", "--suite", "digits2", "--output", folder)
    again = pd.read_csv(folder / "digits2.csv")
    columns = ["method", "task", "accuracy", "normalised", "loss"]
    pd.testing.assert_frame_equal(again[columns], table[columns])


@pytest.mark.usefixtures("quick")
def test_demo_tunes_on_validation_data(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(comparison.GRIDS, "task_arithmetic", {"scale": [0.5, 0.6]})
    monkeypatch.setitem(comparison.GRIDS, "ties", {"scale": [1.25]})
    monkeypatch.setitem(comparison.GRIDS, "cart", {"rank_ratio": [0.04], "scale": [1.4]})
    printed = succeed(run, "demo", "--suite", "digits2", "--tune", "--output", tmp_path)
    assert "TIES: scale=1.25" in printed
    assert "CART: rank_ratio=0.04, scale=1.4" in printed


def test_methods_lists_all(run: Run) -> None:
    printed = succeed(run, "methods")
    for method in map(get_method, method_names()):
        name = method.name
        assert f"{name}  needs " in printed
        assert method.summary in printed
    assert "density=0.2, scale=1.0, reduce='mean', trim='model'" in printed


def test_merge_is_the_librarys(run: Run, models: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, experts = models
    output = tmp_path / "a long folder name [with brackets]" / ("x" * 60 + ".safetensors")
    command = ["merge", "ties", *experts, "-p", base, "-o", output]
    printed = succeed(run, *command, "--set", "density=0.5", "-s", "reduce=sum")
    assert printed == f"Wrote {output}\n"
    states = [load_state_dict(path) for path in experts]
    options: dict[str, Any] = {"density": 0.5, "reduce": "sum"}
    expected = ml.merge("ties", states, pretrained=load_state_dict(base), **options)
    merged = load_state_dict(output)
    assert all(torch.equal(merged[key], expected[key]) for key in expected)
    assert "exists" in fail(run, *command)
    succeed(run, *command, "--overwrite")
    again = load_state_dict(output)
    assert not torch.equal(again["fc.weight"], expected["fc.weight"]), "the defaults this time"


def test_parts_of_models(run: Run, models: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, (a, b, _) = models
    wider = {**load_state_dict(b), "fc.bias": torch.ones(9)}
    save_state_dict(wider, b)
    command = ["merge", "average", a, b, "-p", base, "--overwrite", "-o", tmp_path / "out"]
    for flags, options in (
        (["--missing", "base"], {"missing": "base"}),
        (["--missing", "skip"], {"missing": "skip"}),
        (["--include", "fc.w*", "--include", "*.weight"], {"include": ["fc.w*", "*.weight"]}),
        (["--include", "fc.w*, *.weight"], {"include": ["fc.w*", "*.weight"]}),
        (["--exclude", "*.bias"], {"exclude": "*.bias"}),
    ):
        succeed(run, *command, *flags)
        merged = load_state_dict(tmp_path / "out")
        expected = ml.merge("average", [a, b], pretrained=base, **options)
        assert merged.keys() == expected.keys()
        assert all(torch.equal(merged[key], expected[key]) for key in expected)
    refused = fail(run, *command)
    assert "has shape (9,), expected (8,)" in refused
    assert refused.endswith("where only heads differ, leave them out with --exclude")
    assert fail(run, *command, "--include", "x*").startswith("include pattern 'x*' matches no key")
    assert fail(run, *command, "--missing", "no").startswith("missing is 'no', expected 'error'")


@pytest.mark.parametrize(
    ("setting", "meant"),
    [("device=cpu", "--device"), ("missing=skip", "--missing"), ("experts=a", "the arguments")],
)
def test_settings_that_are_options(
    run: Run, models: tuple[Path, list[Path]], tmp_path: Path, setting: str, meant: str
) -> None:
    base, experts = models
    command = ["merge", "ties", *experts, "-p", base, "-o", tmp_path / "out", "-s", setting]
    name = setting.partition("=")[0]
    assert re.search(f"use {meant}.* in place of --set {name}$", fail(run, *command))
    succeed(run, *command[:-1], "max_shard_size=5GB")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("linear", "'average'?"),
        ("dare_ties", "'dare' with combine='ties'?"),
        ("dare_linear", "'dare'?"),
        ("della_linear", "'della'?"),
        ("breadcrumbs_ties", "'breadcrumbs'?"),
        ("task_vector", "'task_arithmetic'?"),
    ],
)
def test_methods_by_the_names_of_other_tools(run: Run, name: str, meant: str) -> None:
    assert (
        fail(run, "merge", name, "a", "-o", "b") == f"unknown method {name!r}; did you mean {meant}"
    )


def test_settings_are_json_else_text() -> None:
    texts = ["scale=0.4", "weights=[1, 2]", "exact=true", "reduce=sum", "note=a=b"]
    texts += ["ranks=0.1, 0.2", "names=a,b"]
    settings = {"scale": 0.4, "weights": [1, 2], "exact": True, "reduce": "sum", "note": "a=b"}
    settings |= {"ranks": [0.1, 0.2], "names": ["a", "b"]}
    assert cli.apps.read_settings(texts) == settings
    assert cli.apps.read_settings(None) == {}


def test_settings_of_a_point_may_hold_blanks() -> None:
    parts = cli.apps.split_settings('  size=half wider only=["a b", "c"]  steps=2,4 ')
    assert parts == ["size=half wider", 'only=["a b", "c"]', "steps=2,4"]
    assert cli.apps.split_settings("") == []


@pytest.mark.usefixtures("quick")
def test_zoo_build_then_merge_then_evaluate(run: Run, tmp_path: Path) -> None:
    printed = succeed(run, "zoo", "build", "--suite", "digits2")
    rows = [line.split("\t") for line in printed.splitlines()]
    assert [task for task, _ in rows] == ["digits_low", "digits_high"]
    files = [Path(file) for _, file in rows]
    assert all(file.is_file() for file in files)
    merged = tmp_path / "merged.safetensors"
    succeed(run, "merge", "average", *files, "-o", merged)
    printed = succeed(run, "evaluate", merged, "--suite", "digits2").replace("│", " ")
    suite = suites.load_suite("digits2")
    made = zoo.load_zoo(suite)
    table = ml.evaluate(made.model, load_state_dict(merged), made.heads, suite)
    shown = {cells[0]: cells[1:] for cells in map(str.split, printed.splitlines()) if cells}
    for row in table.itertuples():
        expected = [f"{row.accuracy:.3f}", f"{row.loss:.3f}", str(row.correct), str(row.n)]
        assert shown[str(row.task)] == expected
    assert shown["mean"][0] == f"{table['accuracy'].mean():.3f}"
    assert shown["mean"][2:] == [str(table["correct"].sum()), "240"]


@pytest.mark.usefixtures("quick")
def test_study(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "results" / "digits2.json"
    grids = 'grids={"average": {}, "ties": {"scale": [1.0]}}'
    options = ["--suite", "digits2", "--seeds", "2", "--profile", "smoke", "--set", grids]
    one = ["--seeds", "1", "--tasks", "digits_low", "--set", "methods=average"]
    succeed(run, "study", "baselines", *options[:6], *one, "-o", output)
    assert {row["task"] for row in read_result(output)["test"]} == {"digits_low"}
    succeed(run, "study", "baselines", *options, "-o", output)
    json.loads(output.read_text(), parse_constant=pytest.fail)
    record = read_result(output)
    assert {row["seed"] for row in record["test"]} == {0, 1}
    assert {row["method"] for row in record["validation"]} == {"ties"}
    made = record["provenance"]
    assert made["suite"] == "digits2"
    assert made["settings"]["grids"] == {"average": {}, "ties": {"scale": [1.0]}}
    assert made["command"] == shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    assert made["sizes"] == {"digits_low": [48, 120], "digits_high": [48, 120]}
    assert len(made["backbone"]) == 64
    message = fail(run, "study", "nil", "-o", output)
    assert "unknown study 'nil'; known: adaptation, arms, baselines" in message
    refused = fail(run, "study", "concrete", *options, "-o", output)
    assert "concrete has no setting 'grids'; it has: steps=2000" in refused


def test_a_study_at_several_points(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "scaling.json"
    few = ("groups=1", "size=2", "rivals=[]", "pictures=5", "seen=5")
    options = ["--suite", "digits2", "--seeds", "1", "--profile", "smoke", "-o", output]
    options += [f"--set={setting}" for setting in few]
    points = ("learning_rate=1e-3 steps=[1]", "batch_size=8 steps=1,2")
    succeed(run, "study", "scaling", *options, *(f"--at={point}" for point in points))
    rows = read_result(output)["merged"]
    told = {(row["learning_rate"], row["batch_size"], row["steps"]) for row in rows}
    assert told == {(1e-3, 32, 1), (4e-4, 8, 1), (4e-4, 8, 2)}
    refused = fail(run, "study", "scaling", *options, "--at", "wide")
    assert "--at takes name=value, got 'wide'" in refused


def test_data_list_and_prepare(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "mnist.npz").touch()
    monkeypatch.setenv("MERGELIB_DATA", str(folder))
    lines = {line.split()[0]: line for line in succeed(run, "data", "list").splitlines()[2:]}
    assert "handwritten digits" in lines["mnist"]
    assert lines["kmnist"].rstrip().endswith("-")
    assert "unknown data set 'mnits'" in fail(run, "data", "prepare", "mnits")


def test_help_teaches(run: Run) -> None:
    for command in ([], ["demo"], ["merge"], ["evaluate"], ["zoo", "build"], ["data", "list"]):
        printed = succeed(run, *command, "--help")
        assert "Usage" in printed
        assert len(printed.splitlines()) > 5
    assert "mergelib demo" in succeed(run, "--help")
    assert "--set density=0.2" in succeed(run, "merge", "--help")


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["demo"], ["zoo", "build"], ["study", "baselines", "-o", "x.json"]]
)
def test_an_unknown_suite(
    run: Run, command: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = fail(run, *command, "--suite", "digits3")
    assert message.startswith("unknown suite 'digits3'; known: clip8, clip14, clip20, digits2")
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_an_unknown_model_and_device(run: Run) -> None:
    command = ["zoo", "build", "--suite", "digits2"]
    assert fail(run, *command, "--model", "vgg").startswith(
        "unknown model 'vgg' for digits2; known: vit"
    )
    assert fail(run, *command, "--device", "abacus").startswith("device 'abacus' cannot be used: ")
    if not torch.cuda.is_available():
        assert fail(run, *command, "--device", "cuda").startswith("device 'cuda' cannot be used: ")


def test_merges_that_are_refused(run: Run, models: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, (a, b, c) = models
    output = tmp_path / "out.safetensors"

    def refused(*arguments: object) -> str:
        before = sorted(tmp_path.iterdir())
        message = fail(run, "merge", *arguments, "-o", output)
        assert sorted(tmp_path.iterdir()) == before, "nothing is written"
        return message

    assert refused("tias", a, b) == "unknown method 'tias'; did you mean 'ties'?"
    assert refused("ties", a, b) == "ties needs the pretrained model: pass --pretrained"
    assert refused("ties", a, b, "-p", base, "-s", "densty=0.1").startswith(
        "ties has no hyperparameter 'densty'; it has: density, scale"
    )
    assert refused("ties", a, b, "-p", base, "-s", "density=2").startswith("density is 2, expected")
    assert refused("ties", a, b, "-p", base, "-s", "scale=big").startswith("scale is 'big', expect")
    assert refused("average", a, b, "-s", "weights=0.2,x").startswith("weights is [0.2, 'x']")
    assert refused("average", a, b, "-s", "weights") == "--set takes name=value, got 'weights'"
    assert refused("average", a, b, "-s", "=1") == "--set takes name=value, got '=1'"
    assert refused("slerp", a, b, c) == "slerp merges exactly 2 experts, got 3"
    missing = tmp_path / "missing.safetensors"
    assert str(missing) in refused("average", a, missing)
    spoilt = load_state_dict(b)
    spoilt["fc.bias"][3] = float("nan")
    save_state_dict(spoilt, b)
    assert refused("average", a, b) == "expert 1['fc.bias'] holds NaN in 1 of 8 entries"
    b.write_bytes(b.read_bytes()[:-5])
    assert refused("average", a, b).startswith(f"{b} is truncated")
    output.mkdir()
    (output / "mine").touch()
    assert "is a folder already" in fail(run, "merge", "average", a, "-o", output)


def test_a_folder_that_cannot_be_written(
    run: Run, models: tuple[Path, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the demo finds out before it trains."""
    blocked = tmp_path / "file"
    blocked.touch()
    _, experts = models
    message = fail(run, "merge", "average", *experts, "-o", blocked / "out.safetensors")
    assert "Not a directory" in message
    assert str(blocked) in message
    monkeypatch.setattr(zoo, "load_zoo", None)
    assert str(blocked) in fail(run, "demo", "--suite", "digits2", "--output", blocked)


def test_evaluations_that_are_refused(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "missing.safetensors"
    assert str(missing) in fail(run, "evaluate", missing, "--suite", "digits2")
    other = tmp_path / "mlp.safetensors"
    save_state_dict(build_model("mlp").state_dict(), other)
    assert "heads of clip8 come with its public experts" in fail(
        run, "evaluate", other, "--suite", "clip8"
    )
    message = fail(run, "evaluate", other, "--suite", "digits2")
    assert message.startswith("candidate 'state' lacks key 'pos_embed'")


def test_damaged_data_are_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnist.npz").write_bytes(b"PK no archive")
    monkeypatch.setenv("MERGELIB_DATA", str(tmp_path))
    message = fail(run, "demo", "--suite", "vision8", "--output", tmp_path / "out")
    assert str(tmp_path / "mnist.npz") in message
    monkeypatch.setenv("MERGELIB_DATA", str(tmp_path / "nowhere"))
    assert "nowhere does not exist" in fail(run, "demo", "--suite", "vision8")


def test_divergence_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*_: Any, **__: Any) -> None:
        raise FloatingPointError("the loss became nan at learning rate 1.0")

    monkeypatch.setattr(zoo, "fine_tune", diverge)
    message = fail(run, "zoo", "build", "--suite", "digits2")
    assert message == "the loss became nan at learning rate 1.0"


def test_messages_of_several_lines_become_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("first line\n   second line")

    monkeypatch.setattr(suites, "load_suite", refuse)
    assert fail(run, "zoo", "build") == "first line second line"


def test_as_a_program(tmp_path: Path) -> None:
    """The module runs, and an error leaves no traceback."""
    ran = subprocess.run(
        [sys.executable, "-m", "mergelib.cli", "merge", "tias", "a", "-o", str(tmp_path / "b")],
        capture_output=True,
        text=True,
        cwd=Path(ml.__file__).parents[1],
        timeout=60,
    )
    assert ran.returncode == 1
    assert ran.stderr == "mergelib: unknown method 'tias'; did you mean 'ties'?\n"
    assert ran.stdout == ""
    assert np.array(list(tmp_path.iterdir())).size == 0
