"""Inputs that are replaced, rewritten or cut short while they are merged."""

import copy
import os
import pickle
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mergelib.io import Checkpoint, load_state_dict, save_state_dict
from mergelib.merging import merge_tensors
from mergelib.streaming import merge_files
from tests.library.faults.cases import ended, in_child, make_state, tries, value_of
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


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    for path in (tmp_path / "pipe.pt", Path("/dev/zero"), Path("/dev/null")):
        for read in (Checkpoint, load_state_dict):
            with pytest.raises(ValueError, match=rf"{path.name} is a (named pipe|device), expec"):
                read(path)
