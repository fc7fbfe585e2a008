"""The laboratory's command line: demo, suites and experts, studies, and refusals."""

import builtins
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from rich.console import Console

from mergebook import cli
from mergebook.lab import grids
from mergebook.lab.results import read_result
from mergebook.suites import loading as suites
from mergebook.suites import zoo
from mergebook.suites.families import FAMILIES
from mergebook.suites.training import Recipe
from mergelib.cli import printing
from tests.commands import Run, fail, runner, succeed

SMOKE: dict[str, Any] = {"profile": "smoke"}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr(printing, "console", Console(width=160))
    return runner(cli.main, "mergebook", monkeypatch, capsys)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tiny: str) -> None:
    """Small suites, one epoch, and a tiny network that is pretrained on one set."""
    monkeypatch.setattr(suites, "load_suite", partial(suites.load_suite, profile="smoke"))
    family = replace(FAMILIES["digits"], recipe=Recipe(epochs=1), model=tiny)
    monkeypatch.setitem(FAMILIES, "digits", family)


@pytest.mark.usefixtures("quick")
def test_demo(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run trains nothing and finds the same."""
    family = replace(FAMILIES["digits"], recipe=Recipe(epochs=5), model="vit_small")
    monkeypatch.setitem(FAMILIES, "digits", family)
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
    merged = table["method"].isin(cli.DEMO)
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
    monkeypatch.setitem(grids.GRIDS, "task_arithmetic", {"scale": [0.5, 0.6]})
    monkeypatch.setitem(grids.GRIDS, "ties", {"scale": [1.25]})
    monkeypatch.setitem(grids.GRIDS, "cart", {"rank_ratio": [0.04], "scale": [1.4]})
    printed = succeed(run, "demo", "--suite", "digits2", "--tune", "--output", tmp_path)
    assert "TIES: scale=1.25" in printed
    assert "CART: rank_ratio=0.04, scale=1.4" in printed


@pytest.mark.usefixtures("quick")
def test_zoo_build(run: Run) -> None:
    printed = succeed(run, "zoo", "build", "--suite", "digits2")
    rows = [line.split("\t") for line in printed.splitlines()]
    assert [task for task, _ in rows] == ["digits_low", "digits_high"]
    files = [Path(file) for _, file in rows]
    assert all(file.is_file() for file in files)


@pytest.mark.usefixtures("quick")
def test_study(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "results" / "digits2.json"
    grids = 'grids={"average": {}, "ties": {"scale": [1.0]}}'
    options = ["--suite", "digits2", "--seeds", "2", "--profile", "smoke", "--set", grids]
    options += ["--model", "tiny"]
    one = ["--seeds", "1", "--tasks", "digits_low", "--set", "methods=average"]
    succeed(run, "measure", "baselines", *options[:6], *one, "-o", output)
    assert {row["task"] for row in read_result(output)["test"]} == {"digits_low"}
    succeed(run, "measure", "baselines", *options, "-o", output)
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
    succeed(run, "measure", "baselines", *options, "--first", "2", "-o", output)
    assert {row["seed"] for row in read_result(output)["test"]} == {2, 3}
    message = fail(run, "measure", "nil", "-o", output)
    assert "'nil' is no result of mergebook/results.toml, and no study: adaptation, arms" in message
    assert "name the file to write" in fail(run, "measure", "baselines", *options)
    assert "name the suite" in fail(run, "measure", "baselines", "-o", output)
    refused = fail(run, "measure", "concrete", *options, "-o", output)
    assert "concrete has no setting 'grids'; it has: steps=2000" in refused


@pytest.mark.usefixtures("quick")
def test_a_result_of_the_book_is_measured_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name alone, into results/."""
    monkeypatch.chdir(tmp_path)
    table: dict[str, Any] = {"study": "interference", "suite": "digits2", "seeds": 1}
    table |= {"model": "tiny", "settings": {"rank_ratios": [0.5]}}
    monkeypatch.setattr("mergebook.lab.catalogue.entries", lambda: {"low": table})
    monkeypatch.setattr(
        "mergebook.lab.runner.load_suite", partial(suites.load_suite, profile="smoke")
    )
    succeed(run, "measure", "low")
    file = tmp_path / "results" / "low.json"
    record = read_result(file)
    assert record["provenance"]["settings"] == table["settings"]
    assert "name the file to write" in fail(run, "measure", "low", "--first", "1", "--seeds", "1")
    other = ["--first", "1", "-o", tmp_path / "other.json"]
    assert "has no seed from 1 on" in fail(run, "measure", "low", *other)
    assert read_result(file) == record, "nothing is lost"
    assert "name the file to write" in fail(run, "measure", "low", "--set", "rank_ratios=[0.4]")


@pytest.mark.usefixtures("quick")
def test_a_study_at_several_points(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "scaling.json"
    few = ("groups=1", "size=2", "rivals=[]", "pictures=5", "seen=5")
    options = ["--suite", "digits2", "--seeds", "1", "--profile", "smoke", "-o", output]
    options += [f"--set={setting}" for setting in few]
    points = ("learning_rate=1e-3 steps=[1]", "batch_size=8 steps=1,2")
    succeed(run, "measure", "scaling", *options, *(f"--at={point}" for point in points))
    rows = read_result(output)["merged"]
    told = {(row["learning_rate"], row["batch_size"], row["steps"]) for row in rows}
    assert told == {(1e-3, 32, 1), (4e-4, 8, 1), (4e-4, 8, 2)}
    refused = fail(run, "measure", "scaling", *options, "--at", "wide")
    assert "--at expects name=value, got 'wide'" in refused


def test_data_list_and_prepare(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "mnist.npz").touch()
    monkeypatch.setenv("MERGELIB_DATA", str(folder))
    lines = {line.split()[0]: line for line in succeed(run, "data", "list").splitlines()}
    assert "handwritten digits" in lines["mnist"]
    assert lines["kmnist"].rstrip().endswith("-")
    assert "unknown data set 'mnits'" in fail(run, "data", "prepare", "mnits")


def test_help_teaches(run: Run) -> None:
    for command in ([], ["demo"], ["measure"], ["zoo", "build"], ["data", "list"]):
        printed = succeed(run, *command, "--help")
        assert "Usage" in printed
        assert len(printed.splitlines()) > 5
    assert "mergebook demo" in succeed(run, "--help")


@pytest.mark.parametrize(
    "command", [["demo"], ["zoo", "build"], ["measure", "baselines", "-o", "x.json"]]
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


def test_the_demo_finds_out_before_it_trains(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setattr(zoo, "load_zoo", None)
    assert str(blocked) in fail(run, "demo", "--suite", "digits2", "--output", blocked)


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


def test_a_package_that_is_not_there(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def lacking(name: str, *arguments: Any, **options: Any) -> Any:
        if name.split(".")[0] in ("transformers", "datasets"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", lacking)
    message = fail(run, "zoo", "build", "--suite", "clip8", "--model", tmp_path)
    assert "pip install 'mergelib-book[hub]'" in message


def test_settings_of_a_point_may_hold_blanks() -> None:
    parts = cli.split_settings('  size=half wider only=["a b", "c"]  steps=2,4 ')
    assert parts == ["size=half wider", 'only=["a b", "c"]', "steps=2,4"]
    assert cli.split_settings("") == []
