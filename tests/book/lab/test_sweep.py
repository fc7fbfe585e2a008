"""Sweeps that are killed, shared, or fail in part."""

import errno
import multiprocessing
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import pytest

from mergebook.lab import sweep

try:
    from joblib.externals import cloudpickle as cloudpickle  # joblib's own copy, up to 1.5
except ImportError:
    import cloudpickle as cloudpickle

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Square:
    """A run of a given length, which logs when it is measured."""

    number: int
    log: Path
    seconds: float = 0.0
    broken: Path | None = None  # while this file is there, the run fails

    @property
    def name(self) -> str:
        return f"square-{self.number}"

    def prepare(self) -> tuple[str, Callable[[], dict[str, Any]]]:
        return "key", self.measure

    def measure(self) -> dict[str, Any]:
        with self.log.open("a") as log:
            log.write(f"{self.number} {os.getpid()}\n")
        time.sleep(self.seconds)
        if self.broken is not None and self.broken.exists():
            raise LookupError(f"nothing known of {self.number}")
        return {"test": [{"number": self.number, "square": self.number**2}]}


def squares(folder: Path, count: int, seconds: float = 0.0) -> list[Square]:
    return [Square(number, folder / "log", seconds) for number in range(count)]


def table(outcomes: list[sweep.Outcome]) -> list[Any]:
    return [outcome.record["test"] for outcome in outcomes if outcome.record is not None]


def expected(count: int) -> list[Any]:
    return [[{"number": number, "square": number**2}] for number in range(count)]


def measured(folder: Path) -> Counter[str]:
    """How often each run was begun."""
    return Counter(line.split()[0] for line in (folder / "log").read_text().splitlines())


@pytest.mark.parametrize("jobs", [1, 2])
def test_any_number_of_jobs_gives_the_same_and_repeats_nothing(tmp_path: Path, jobs: int) -> None:
    runs = squares(tmp_path, 4)
    for _ in range(2):
        outcomes = sweep.map(runs, folder=tmp_path / "runs", jobs=jobs)
        assert table(outcomes) == expected(4)
    assert set(measured(tmp_path).values()) == {1}
    processes = {line.split()[1] for line in (tmp_path / "log").read_text().splitlines()}
    assert (str(os.getpid()) in processes) == (jobs != 2)


def test_a_sweep_killed_ten_times_loses_only_runs_in_flight(tmp_path: Path) -> None:
    folder, count, kills = tmp_path / "runs", 12, 10
    runs = squares(tmp_path, count, seconds=0.08)
    draw = random.Random(0)
    survived = 0
    for _ in range(kills):
        child = FORK.Process(target=sweep.map, args=(runs,), kwargs={"folder": folder})
        child.start()
        time.sleep(draw.uniform(0.02, 0.25))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        finished = len(list(folder.glob("*.json")))
        assert finished >= survived, "what was there is there"
        survived = finished
    assert survived > 0, "some runs got through between kills"
    assert table(sweep.map(runs, folder=folder)) == expected(count)
    again = [times - 1 for times in measured(tmp_path).values()]
    assert len(again) == count
    assert sum(again) <= kills, "a kill costs at most the run it meets"
    assert not list(folder.glob("*.partial")), "nothing half written is left"


def test_two_processes_divide_one_folder(tmp_path: Path) -> None:
    folder, count = tmp_path / "runs", 10
    runs = squares(tmp_path, count, seconds=0.1)

    def work(sender: Any) -> None:
        sender.send(table(sweep.map(runs, folder=folder)))

    pipes = [FORK.Pipe(duplex=False) for _ in range(2)]
    children = [FORK.Process(target=work, args=(sender,)) for _, sender in pipes]
    for child in children:
        child.start()
    tables = [receiver.recv() for receiver, _ in pipes]
    for child in children:
        child.join()
    assert tables == [expected(count)] * 2
    assert measured(tmp_path) == Counter(map(str, range(count))), "no run was done twice"
    processes = {line.split()[1] for line in (tmp_path / "log").read_text().splitlines()}
    assert len(processes) == 2, "both worked"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failing_run_keeps_its_traceback_while_others_finish(tmp_path: Path, jobs: int) -> None:
    folder, broken = tmp_path / "runs", tmp_path / "broken"
    broken.touch()
    runs = squares(tmp_path, 3)
    runs[1] = Square(1, tmp_path / "log", broken=broken)
    outcomes = sweep.map(runs, folder=folder, jobs=jobs)
    assert [outcome.record is None for outcome in outcomes] == [False, True, False]
    assert isinstance(outcomes[1].error, LookupError)
    failure = folder / "square-1.failed.txt"
    assert "in measure" in failure.read_text()
    assert "LookupError: nothing known of 1" in failure.read_text()
    broken.unlink()
    assert table(sweep.map(runs, folder=folder, jobs=jobs)) == expected(3)
    assert not failure.exists()
    assert measured(tmp_path) == {"0": 1, "1": 2, "2": 1}


def test_errors_that_do_not_travel_are_told_in_words(tmp_path: Path) -> None:
    class Local(Exception):
        pass

    assert repr(sweep._portable(Local("why"))) == "RuntimeError('Local: why')"
    assert isinstance(sweep._portable(KeyError("why")), KeyError)


def test_a_damaged_record_is_measured_anew(tmp_path: Path) -> None:
    runs = squares(tmp_path, 1)
    sweep.map(runs, folder=tmp_path)
    (tmp_path / "square-0-key.json").write_text('{"tab')
    assert table(sweep.map(runs, folder=tmp_path)) == expected(1)
    assert measured(tmp_path) == {"0": 2}


def test_what_a_sweep_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two runs have the name 'square-0'"):
        sweep.map(squares(tmp_path, 1) * 2, folder=tmp_path)


DAMAGED = [
    '{"tab',
    "",
    "[]",
    "3",
    "{}",
    '{"tables": 3}',
    '{"tables": {"test": {}}}',
    '{"tables": {"test": {"rows": 2, "columns": {"a": [1]}}}}',
    '{"tables": {"test": {"rows": 2, "columns": {"a": {"values": [1], "codes": [0, 5]}}}}}',
    '{"tables": {"test": {"rows": 1, "columns": {"a": 3}}}}',
    "\xff",
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damage_of_any_kind_is_named_and_measured_anew(tmp_path: Path, content: str) -> None:
    runs = squares(tmp_path, 1)
    sweep.map(runs, folder=tmp_path)
    file = tmp_path / "square-0-key.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.warns(UserWarning, match=re.escape(f"{file} is damaged")):
        outcomes = sweep.map(runs, folder=tmp_path)
    assert table(outcomes) == expected(1)
    assert measured(tmp_path) == {"0": 2}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    runs = squares(tmp_path, 3)
    sweep.map(runs[:2], folder=tmp_path / "runs")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, "no writing here")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    monkeypatch.setattr(sweep, "write_result", refuse)
    monkeypatch.setattr(sweep, "staged", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert table(sweep.map(runs[:2], folder=tmp_path / "runs")) == expected(2)
    (outcome,) = sweep.map(runs[2:], folder=tmp_path / "runs")
    assert "no writing here" in str(outcome.error)
