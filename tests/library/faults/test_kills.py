"""Runs killed at every step, and at random moments: outputs old or new, nothing lost."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mergelib.io import save_state_dict, staged, staging
from tests.library.faults.cases import (
    DOORS,
    STEPS,
    Door,
    ended,
    hidden,
    in_child,
    kill_at,
    make_state,
    tries,
    value_of,
)

TWICE = " renamed twice"  # where the system cannot exchange folders
KINDS = [*(name for name in DOORS if name != "search"), f"merge{TWICE}"]


class Refused(Exception):
    """The block of a run that comes to nothing."""


@pytest.fixture(params=KINDS)
def door(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Door:
    if TWICE in request.param:
        monkeypatch.setattr(staging, "_exchange", lambda one, other: False)
    name = request.param.removesuffix(TWICE)
    if "recipe" in name:
        pytest.importorskip("yaml", reason="recipes need PyYAML, which a bare installation lacks")
    return DOORS[name]


@pytest.fixture
def output(door: Door, tmp_path: Path) -> Path:
    return tmp_path / "place" / ("out" if door.folder else "out.safetensors")


@pytest.fixture
def merge(door: Door, tmp_path: Path, output: Path) -> Callable[[int], object]:
    """Merge, to the output, a model of one value."""
    for value in (1, 2, 3):
        door.make(tmp_path / str(value), value)
    return lambda value: door.run(tmp_path / str(value), output)


def recover(output: Path) -> float | None:
    """What there is after a next run that comes to nothing, and leaves nothing."""
    with pytest.raises(Refused), staged(output, folder=not output.suffix):
        raise Refused
    return value_of(output)


@tries(2, 7)
@pytest.mark.parametrize("old", [None, 1])
def test_killed_at_every_step(
    output: Path, merge: Callable[[int], object], old: int | None, tries: int
) -> None:
    """Before and after everything that puts, and in the long suite all that flushes or removes."""
    step, seen, alone = 0, set(), staging._exchange.__name__ == "<lambda>"
    while True:
        if old:
            merge(old)
        killed = kill_at(step, lambda: merge(2), STEPS[:tries])
        if not alone:
            assert value_of(output) in {old, 2}  # at any time, not only after the next run
        found = recover(output)
        assert found in {old, 2}, (step, found)
        seen.add(found)
        if not killed:
            break
        if step % 4 == 0:
            merge(3)
            assert (value_of(output), hidden(output.parent)) == (3, [])
        if not old and output.exists():
            os.rename(output, output.parent.parent / f"done{step}")
        step += 1
    assert seen == {old, 2}
    assert step >= 2


@tries(5, 40)
def test_killed_at_random(output: Path, merge: Callable[[int], object], tries: int) -> None:
    """In merges that overwrite, one after the other."""

    def both() -> None:
        for value in (2, 3):
            merge(value)

    draw = random.Random(0)
    merge(1)
    start = time.perf_counter()
    ended(in_child(lambda: merge(2)))
    duration = time.perf_counter() - start
    for _ in range(tries):
        child = in_child(both)
        time.sleep(draw.random() * 2 * duration)
        os.kill(child, signal.SIGKILL)
        ended(child)
        assert len(hidden(output.parent)) <= 2
        assert recover(output) in {1, 2, 3}
    merge(3)
    assert (value_of(output), hidden(output.parent)) == (3, [])


def test_what_a_killed_run_replaced_is_gone_before_the_next_replacement(
    output: Path, merge: Callable[[int], object]
) -> None:
    """Else the next run, killed between two renames, would leave two folders to restore."""
    older, last = (output.with_name(f".{output.name}.{digit * 8}.replaced") for digit in "0f")
    merge(1)
    shutil.copytree(output, older) if output.is_dir() else shutil.copy(output, older)
    merge(2)
    assert recover(output) == 2
    shutil.copytree(output, older) if output.is_dir() else shutil.copy(output, older)
    assert recover(output) == 2
    assert not older.exists(), "a run that fails removes it, too"
    os.rename(output, last)
    assert recover(output) == 2


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, OSError])
def test_interrupted_between_two_renames(
    output: Path,
    merge: Callable[[int], object],
    monkeypatch: pytest.MonkeyPatch,
    interrupt: type[BaseException],
) -> None:
    merge(1)
    replace = os.replace

    def interrupted(source: Path, target: Path) -> None:
        if str(source).endswith(".partial"):
            raise interrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        patch.setattr(staging, "_exchange", lambda one, other: False)
        with pytest.raises(interrupt):
            merge(2)
    assert (value_of(output), hidden(output.parent)) == (1, [])


def test_nothing_but_leftovers_is_swept(tmp_path: Path) -> None:
    """Names of users end in ``.partial`` too."""
    output = tmp_path / "out.safetensors"
    ours = [f".out.safetensors.0123abcd.{kind}" for kind in ("partial", "replaced")]
    theirs = [
        ".out.safetensors.backup.partial",
        ".out.safetensors.0123ABCD.partial",
        ".out.safetensors.0123abcde.partial",
        ".out.safetensors.0123abcd.partial.old",
        ".outxsafetensors.0123abcd.partial",
        "out.safetensors.0123abcd.partial",
        "notes.partial",
    ]
    output.touch()
    for name in ours + theirs:
        (tmp_path / name).write_text("kept")
    save_state_dict(make_state(1), output)
    assert sorted(os.listdir(tmp_path)) == sorted([*theirs, output.name])
