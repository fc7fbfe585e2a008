"""Several runs that write to one place: none fails, and what stands there is one's alone."""

import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mergelib.io import staged, staging
from tests.library.faults.cases import DOORS, ended, hidden, in_child, tries, value_of

WRITERS = 4


def race(work: Callable[[int], None]) -> None:
    """The same work in several processes, of which each has a number."""
    start = time.monotonic() + 0.05

    def together(number: int) -> None:
        time.sleep(max(0.0, start - time.monotonic()))
        work(number)

    children = [in_child(partial(together, number)) for number in range(1, WRITERS + 1)]
    assert [ended(child) for child in children] == [0] * WRITERS


@pytest.fixture(params=["exchanged", "renamed twice"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "exchanged":
        monkeypatch.setattr(staging, "_exchange", lambda one, other: False)


@tries(30, 2500)
def test_files(tmp_path: Path, tries: int) -> None:
    output = tmp_path / "place" / "out.txt"

    def write(number: int) -> None:
        for _ in range(tries):
            with staged(output) as partial:
                partial.write_text(f"{number}" * 1000)
            assert len(set(output.read_text())) == 1

    race(write)
    assert (len(output.read_text()), hidden(output.parent)) == (1000, [])


@pytest.mark.usefixtures("system")
@tries(12, 600)
def test_folders(tmp_path: Path, tries: int) -> None:
    output = tmp_path / "place" / "out"

    def write(number: int) -> None:
        draw = random.Random(number)
        for _ in range(tries):
            with staged(output, folder=True) as partial:
                for name in ("a", "b"):
                    (partial / name).write_text(f"{number}")
                    time.sleep(draw.random() * 1e-4)

    race(write)
    assert (output / "a").read_text() == (output / "b").read_text()
    assert (os.listdir(output.parent), sorted(os.listdir(output))) == (["out"], ["a", "b"])


@pytest.mark.usefixtures("system")
@tries(3, 20)
@pytest.mark.parametrize("name", DOORS)
def test_outputs_of_all_kinds(tmp_path: Path, tries: int, name: str) -> None:
    """Each run's weights, configuration, card and recipe, and none of another run's."""
    if "recipe" in name:
        pytest.importorskip("yaml", reason="recipes need PyYAML, which a bare installation lacks")
    door = DOORS[name]
    output = tmp_path / "place" / ("out" if door.folder else "out.safetensors")
    for number in range(1, WRITERS + 1):
        door.make(tmp_path / str(number), number)

    def write(number: int) -> None:
        for _ in range(tries):
            door.run(tmp_path / str(number), output)

    race(write)
    assert value_of(output) in range(1, WRITERS + 1)
    assert hidden(output.parent) == []


@pytest.mark.parametrize("folder", [False, True])
def test_swept_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: bool
) -> None:
    """The moment between making a hidden file and locking it, when it looks like a leftover."""
    output, lock = tmp_path / "out", staging._lock
    swept: list[Path] = []

    def late(path: Path) -> int | None:
        if not swept:
            swept.append(path)
            staging._sweep(output)
            assert not path.exists()
        return lock(path)

    monkeypatch.setattr(staging, "_lock", late)
    with staged(output, folder=folder) as partial:
        assert partial.exists()
    assert (os.listdir(tmp_path), output.is_dir()) == (["out"], folder)


def test_locked_is_what_the_path_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = tmp_path / "a", os.open
    path.touch()

    def replaced(*arguments: object, **options: object) -> int:
        descriptor = opened(*arguments, **options)  # type: ignore[arg-type]
        path.unlink()
        path.mkdir()
        return descriptor

    monkeypatch.setattr(os, "open", replaced)
    with pytest.raises(staging._Taken):
        staging._lock(path)
