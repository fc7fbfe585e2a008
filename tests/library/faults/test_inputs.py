"""Inputs that are replaced, rewritten or cut short while they are merged."""

import contextlib
import copy
import os
import pickle
import random
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mergelib.io import Checkpoint, load_state_dict, save_state_dict
from mergelib.io.files import InputFile
from mergelib.merging import merge_tensors
from mergelib.streaming import merge_files
from tests.library.faults.cases import (
    DOORS,
    Door,
    ended,
    in_child,
    make_state,
    mutate,
    tries,
    value_of,
)
from tests.library.faults.test_pickles import pack_again

Change = Callable[[Path, Path], None]


def save(kind: str, value: float, path: Path) -> Path:
    """A model of one value, in a file of one kind."""
    if kind == "safetensors":
        save_state_dict(make_state(value), path.with_suffix(".safetensors"))
        return path.with_suffix(".safetensors")
    torch.save(make_state(value), path, _use_new_zipfile_serialization=kind != "legacy")
    if kind == "deflated":
        pack_again(path, lambda _: True)
    return path


def replace(file: Path, other: Path) -> None:
    os.replace(other, file)


def rewrite(file: Path, other: Path) -> None:
    file.write_bytes(other.read_bytes())


def rewrite_in_secret(file: Path, other: Path) -> None:
    """With the old time of change, as some tools that copy do."""
    before = file.stat()
    with open(file, "r+b") as stream:
        stream.write(other.read_bytes())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(file: Path, other: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path, other: Path) -> None:
    os.truncate(file, 0)


def append(file: Path, other: Path) -> None:
    with open(file, "ab") as stream:
        stream.write(b"more")


def remove(file: Path, other: Path) -> None:
    file.unlink()


def pipe(file: Path, other: Path) -> None:
    file.unlink()
    os.mkfifo(file)


CHANGES: list[Change] = [replace, rewrite, rewrite_in_secret, cut, empty, append, remove, pipe]


@pytest.mark.parametrize("kind", ["safetensors", "archive", "deflated", "legacy"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_inputs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change, kind: str
) -> None:
    """Before the first tensor, between two, and after the last one."""
    one, good, other = (tmp_path / f"{name}.pt" for name in ("one", "good", "other"))
    for moment in (0, 2, 4):
        one, good, other = (save(kind, i, p) for i, p in enumerate((one, good, other)))
        time.sleep(0.02)  # on to another tick of the clock

        def changing(*arguments: Any, **options: Any) -> Iterator[tuple[str, Tensor]]:
            for count, item in enumerate(merge_tensors(*arguments, **options)):
                if count == moment:  # noqa: B023
                    change(one, other)  # noqa: B023
                yield item
            if moment == 4:  # noqa: B023
                change(one, other)  # noqa: B023

        with monkeypatch.context() as patch:
            patch.setattr("mergelib.streaming.merge_tensors", changing)
            with pytest.raises(ValueError, match=rf"{one.name} (changed while merging|is a named)"):
                merge_files("average", [good, one], tmp_path / "out.safetensors")
        assert not (tmp_path / "out.safetensors").exists()
        one.unlink(missing_ok=True)


def test_a_shard_that_changes(tmp_path: Path) -> None:
    save_state_dict(make_state(1), tmp_path / "a.safetensors")
    merge_files("average", [tmp_path / "a.safetensors"], tmp_path / "in", max_shard_size=90)
    checkpoint = Checkpoint(tmp_path / "in")
    time.sleep(0.02)
    shard = sorted(checkpoint.shards)[1]
    shutil.copyfile(shard, tmp_path / "copy")
    os.replace(tmp_path / "copy", shard)  # even by what is equal: who knows
    with pytest.raises(ValueError, match=rf"{shard.name} changed while merging"):
        checkpoint.load()
    with pytest.raises(ValueError, match=rf"{shard.name} changed while merging"):
        checkpoint.check()


class Endless:
    """A file that never ends."""

    def readinto(self, buffer: memoryview) -> int:
        time.sleep(1e-3)
        return len(buffer)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_hashed_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Else a user would wait for the hashes of large files after pressing Ctrl-C."""
    paths = [save("safetensors", value, tmp_path / f"{value}.pt") for value in range(9)]

    def interrupted(*arguments: Any, **options: Any) -> Iterator[tuple[str, Tensor]]:
        monkeypatch.setattr(InputFile, "opened", lambda file: contextlib.nullcontext(Endless()))
        yield from ()
        raise error

    monkeypatch.setattr("mergelib.streaming.merge_tensors", interrupted)
    threads = threading.active_count()
    with pytest.raises(error):
        merge_files("average", paths, tmp_path / "out.safetensors")
    assert threading.active_count() == threads
    assert not (tmp_path / "out.safetensors").exists()


def test_checkpoints_are_copied_and_pickled(tmp_path: Path) -> None:
    save_state_dict(make_state(1), tmp_path / "a.safetensors")
    checkpoint = Checkpoint(tmp_path / "a.safetensors")
    for twin in (copy.deepcopy(checkpoint), pickle.loads(pickle.dumps(checkpoint))):
        assert torch.equal(twin["w1"], checkpoint["w1"])
    assert len(os.listdir("/proc/self/fd")) < 200 if os.path.exists("/proc/self/fd") else True


@tries(6, 400)
@pytest.mark.parametrize("kind", ["safetensors", "archive"])
def test_changed_at_random(tmp_path: Path, tries: int, kind: str) -> None:
    """Merges while another process changes the input over and over: never a mixture."""
    models = [save(kind, value, tmp_path / f"{value}.pt") for value in (1, 2)]
    source, output = tmp_path / f"in{models[0].suffix}", tmp_path / "out.safetensors"
    shutil.copyfile(models[0], source)

    def disturb() -> None:
        draw = random.Random(0)
        while True:
            copied = tmp_path / "copy"
            shutil.copyfile(draw.choice(models), copied)
            draw.choice([replace, replace, rewrite, cut])(source, copied)
            time.sleep(0.01 + draw.random() * 0.02)  # on to another tick of the clock

    child, refused, merged = in_child(disturb), 0, 0
    try:
        while refused + merged < tries or not (refused and merged):
            try:
                merge_files("average", [source, source], output, overwrite=True)
            except (ValueError, FileNotFoundError) as error:
                if source.name not in str(error):
                    raise
                refused += 1
                continue
            assert value_of(output) in {1, 2}
            merged += 1
    finally:
        os.kill(child, signal.SIGKILL)
        ended(child)


def switch(link: Path, version: Path) -> None:
    """Point a link at a new copy of a folder: all its files change in one step."""
    copied = Path(tempfile.mkdtemp(dir=link.parent))
    shutil.copytree(version, copied, dirs_exist_ok=True)
    (copied.parent / "new").symlink_to(copied)
    os.replace(copied.parent / "new", link)


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Door:
    return made(request.param, tmp_path)


def made(name: str, folder: Path) -> Door:
    if "recipe" in name:
        pytest.importorskip("yaml", reason="recipes need PyYAML, which a bare installation lacks")
    for value in (1, 2):
        DOORS[name].make(folder / str(value), value)
    return DOORS[name]


def outcome(door: Door, folder: Path) -> float | None:
    """The value of a run on the inputs that a link names, or None if it is refused by name."""
    output = folder / "place" / ("out" if door.folder else "out.safetensors")
    shutil.rmtree(output.parent, ignore_errors=True)
    said = ""
    try:
        door.run(folder / "in", output)
    except (ValueError, FileNotFoundError) as error:
        said = str(error)
    if not said:
        return value_of(output)
    assert str(folder) in said
    assert not output.parent.exists() or os.listdir(output.parent) == []
    return None


class Reads:
    """Counts reads of files, and calls something before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
        opened, self.count, self.moment = InputFile.opened, 0, -1
        lock = threading.Lock()  # files are hashed in threads

        def counted(file: InputFile) -> Any:
            with lock:
                if self.count == self.moment:
                    act()
                self.count += 1
            return opened(file)

        monkeypatch.setattr(InputFile, "opened", counted)

    def total(self, door: Door, folder: Path) -> int:
        """Run a door on an unchanged version, and return how often it reads."""
        switch(folder / "in", folder / "1")
        door.run(folder / "in", folder / ("first" if door.folder else "first.safetensors"))
        return self.count

    def outcome(self, moment: int, door: Door, folder: Path) -> float | None:
        """What comes of a run if something happens before a read."""
        switch(folder / "in", folder / "1")
        self.count, self.moment = 0, moment
        return outcome(door, folder)


@tries(12, 200)
def test_all_inputs_change_at_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: Door, tries: int
) -> None:
    """Before any read but the first there was one of the old version, so nothing is written.

    The last reads compare the base once more under its real name, which no longer is what changes.
    """
    reads = Reads(monkeypatch, lambda: switch(tmp_path / "in", tmp_path / "2"))
    total = reads.total(door, tmp_path)
    for moment in random.Random(0).sample(range(1, total), min(tries, total - 1)):
        expected = {None, 1} if moment > total - 4 else {None}
        assert reads.outcome(moment, door, tmp_path) in expected, (moment, total)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("merge", "a/config.json"),
        ("merge", "b/config.json"),
        ("merge of adapters and bases", "a/adapter_config.json"),
        ("merge of adapters and bases", "base/config.json"),
        ("merge of FP8", "b/model.safetensors"),
        ("merge_adapters", "c/adapter_config.json"),
        ("run_recipe", "recipe.yml"),
        ("run_recipe", "a/model.safetensors"),
        ("run_recipe to a file", "a/config.json"),
        ("compress", "base/model.safetensors"),
        ("search", "twelve/model.safetensors"),
        ("search", "base/config.json"),
        ("adapt", "base/model.safetensors"),
        ("adapt", "b/model.safetensors"),
        ("adapt", "a/config.json"),
    ],
)
def test_one_input_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str
) -> None:
    """Half-way, also one that is not read again, such as a configuration or a recipe."""
    door, path = made(name, tmp_path), tmp_path / "in" / file

    def change() -> None:
        shutil.copyfile(path, tmp_path / "copy")
        os.replace(tmp_path / "copy", path)  # even by what is equal: who knows

    reads = Reads(monkeypatch, change)
    total = reads.total(door, tmp_path)
    assert reads.outcome(total // 2, door, tmp_path) is None
    assert reads.outcome(-1, door, tmp_path) == 1


@pytest.mark.parametrize(
    ("name", "file", "expected"),
    [
        ("merge", "a/preprocessor_config.json", None),  # the result has a copy of it
        ("merge", "b/preprocessor_config.json", 1),
        ("merge", "b/training_log.txt", 1),
        ("merge", "b/tokenizer_config.json", None),
        ("merge", "b/generation_config.json", None),
        ("merge to a file", "a/training_log.txt", 1),
        ("merge to a file", "a/vocab.txt", None),
        ("merge_adapters", "c/training_log.txt", None),
        ("run_recipe", "b/training_log.txt", 1),
        ("compress", "a/training_log.txt", 1),
        ("adapt", "a/training_log.txt", 1),
    ],
)
def test_files_that_are_neither_read_nor_copied_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str, expected: int | None
) -> None:
    """Such as a log that a training still writes, beside the checkpoint that is merged."""
    door = made(name, tmp_path)
    for version in "12":
        (tmp_path / version / file).write_text("{}")

    def change() -> None:
        (tmp_path / "copy").write_text("{} ")
        os.replace(tmp_path / "copy", tmp_path / "in" / file)

    reads = Reads(monkeypatch, change)
    total = reads.total(door, tmp_path)
    assert reads.outcome(total // 2, door, tmp_path) == expected


@tries(3, 60)
def test_all_inputs_change_at_random(tmp_path: Path, door: Door, tries: int) -> None:
    """By another process, over and over."""
    switch(tmp_path / "in", tmp_path / "1")
    outcome(door, tmp_path)
    start = time.perf_counter()
    assert outcome(door, tmp_path) == 1
    duration = time.perf_counter() - start

    def disturb() -> None:
        draw = random.Random(0)
        while True:
            switch(tmp_path / "in", tmp_path / draw.choice("12"))
            time.sleep(draw.random() * 4 * duration)

    child = in_child(disturb)
    refused = merged = 0
    try:
        while refused + merged < tries or not (refused and merged):
            value = outcome(door, tmp_path)
            assert value in {None, 1, 2}
            refused, merged = refused + (value is None), merged + (value is not None)
    finally:
        os.kill(child, signal.SIGKILL)
        ended(child)


@tries(25, 300)
def test_mutated_inputs(tmp_path: Path, door: Door, tries: int) -> None:
    """Weights' headers, configurations and recipes: refused in words, or an output that loads."""
    switch(tmp_path / "in", tmp_path / "1")
    inputs = sorted(path for path in (tmp_path / "in").rglob("*") if path.is_file())
    for seed in range(tries):
        draw = random.Random(seed)
        file = draw.choice(inputs)
        content, limit = file.read_bytes(), None
        if file.suffix == ".safetensors":
            limit = 8 + int.from_bytes(content[:8], "little")
        file.write_bytes(mutate(content, draw, limit))
        output = tmp_path / ("out" if door.folder else "out.safetensors")
        try:
            door.run(tmp_path / "in", output)
        except (ValueError, FileNotFoundError) as error:
            if not re.search(rf"{tmp_path}|expert \d", str(error)):
                raise
        else:
            weights = output / "adapter_model.safetensors"
            assert Checkpoint(weights if weights.exists() else output).load()
        file.write_bytes(content)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    for path in (tmp_path / "pipe.pt", Path("/dev/zero"), Path("/dev/null")):
        for read in (Checkpoint, load_state_dict):
            with pytest.raises(ValueError, match=rf"{path.name} is a (named pipe|device), expec"):
                read(path)
