"""Provenance: what a record carries, and the commit it names."""

import datetime
import json
import platform
import subprocess
from pathlib import Path

import pytest
import torch

from mergebook.suites import provenance as module
from mergebook.suites.provenance import provenance


def test_a_record_carries_its_inputs_and_the_machine() -> None:
    record = provenance(suite="digits2", seeds=[0, 1], device="cpu")
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["suite"] == "digits2"
    assert record["seeds"] == [0, 1]
    assert record["versions"]["python"] == platform.python_version()
    assert torch.__version__.startswith(record["versions"]["torch"])
    assert record["threads"] == torch.get_num_threads()
    assert len(record["device"]) > 3
    assert record["device"] != "cpu"
    date = datetime.date.fromisoformat(record["date"])
    assert abs((date - datetime.datetime.now(datetime.UTC).date()).days) <= 1


def test_packages_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.Distribution.discover", lambda **_: iter(()))
    assert {*module.provenance()["versions"].values()} == {
        platform.python_version(),
        "not installed",
    }


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean, changed, changed elsewhere only, not tracked, and no repository at all."""
    package = tmp_path / "repository" / "package"
    package.mkdir(parents=True)
    source, other = package / "provenance.py", package.parent / "notes.txt"
    source.write_text("one\n")
    other.write_text("one\n")
    monkeypatch.setattr(module, "__file__", str(source))
    assert module._commit() == "unknown"
    git(package.parent, "init", "-q")
    git(package.parent, "add", "notes.txt")
    git(package.parent, "commit", "-q", "-m", "first")
    assert module._commit() == "unknown", "some repository around an installed package"
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-q", "-m", "second")
    commit = git(package.parent, "rev-parse", "HEAD")
    assert len(commit) == 40
    assert module._commit() == commit
    other.write_text("two\n")
    (package / "new.py").touch()
    assert module._commit() == commit
    source.write_text("two\n")
    assert module._commit() == commit + "+"
    monkeypatch.setenv("PATH", "")
    assert module._commit() == "unknown", "no git"
