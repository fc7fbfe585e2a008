"""Reading and writing weights: formats, refusals, and outputs that are whole or absent."""

import copy
import errno
import json
import os
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from mergelib.io import (
    Checkpoint,
    Memory,
    load_state_dict,
    save_state_dict,
    staged,
    staging,
)

needs_posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX's paths and permissions")
needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux")

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(actual: Any, expected: Any) -> None:
    """Equal keys, kinds and bits."""
    assert set(actual) == set(expected)
    for key, tensor in expected.items():
        assert (actual[key].dtype, actual[key].shape) == (tensor.dtype, tensor.shape), key
        assert raw(actual[key]) == raw(tensor), key


@pytest.fixture
def state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"a.weight": torch.randn(7, 5), "a.bias": torch.randn(7), "steps": torch.tensor(3)}


@pytest.fixture
def sharded(tmp_path: Path, state: dict[str, Tensor]) -> Path:
    """A folder of two shards as Hugging Face writes it."""
    folder = tmp_path / "sharded"
    folder.mkdir()
    weight_map: dict[str, str] = {}
    for number, keys in enumerate((["a.weight"], ["a.bias", "steps"]), 1):
        name = f"model-{number:05d}-of-00002.safetensors"
        save_file({key: state[key] for key in keys}, folder / name, {"format": "pt"})
        weight_map |= dict.fromkeys(keys, name)
    index = {"metadata": {"total_size": 176}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@given(
    kinds=st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda key: key != "__metadata__"),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)),
        max_size=5,
    )
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_saved_is_loaded(tmp_path: Path, kinds: dict[str, Any]) -> None:
    state = {key: (torch.randn(shape) * 3).to(dtype) for key, (dtype, shape) in kinds.items()}
    path = tmp_path / "a.safetensors"
    save_state_dict(state, path, {"note": "héllo"})
    assert_same(load_state_dict(path), state)
    assert_same(load_file(path), state)  # and the format's own reader agrees
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "note": "héllo"}
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_views_and_tied_tensors_are_saved_whole(tmp_path: Path) -> None:
    table = torch.randn(4, 3)
    state = {"table": table, "head": table, "turned": table.T, "part": table[1:, :2]}
    save_state_dict(state, tmp_path / "new" / "a.safetensors")
    assert_same(load_state_dict(tmp_path / "new" / "a.safetensors"), state)


def test_loaded_tensors_do_not_hang_on_the_file(tmp_path: Path, state: dict[str, Tensor]) -> None:
    path = tmp_path / "a.safetensors"
    save_state_dict(state, path)
    loaded = load_state_dict(path)
    with open(path, "r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert_same(loaded, state)
    assert loaded["a.bias"].untyped_storage().nbytes() == 7 * 4


def test_memory_is_used_again_when_nobody_has_it(tmp_path: Path) -> None:
    size = 2**19
    state = {key: torch.full((size,), float(i)) for i, key in enumerate("abcd")}
    save_state_dict(state, tmp_path / "a.safetensors")
    checkpoint = Checkpoint(tmp_path / "a.safetensors", memory=Memory())
    first = checkpoint["a"]
    row, address = first[:2], first.data_ptr()
    del first  # a view of it lives on
    second = checkpoint["b"]
    assert second.data_ptr() != address
    assert (row == 0).all()
    held = row.numpy()
    del row
    third = checkpoint["c"]
    assert third.data_ptr() != address
    assert (held == 0).all()
    del held
    fourth = checkpoint["d"]
    assert fourth.data_ptr() == address
    for i, tensor in enumerate((second, third, fourth), 1):
        assert (tensor == i).all()
    assert_same(checkpoint.load(), state)
    assert_same(copy.deepcopy(checkpoint).load(), state)


def test_unaligned_tensors_are_read(tmp_path: Path) -> None:
    values = torch.randn(5)
    header = {
        "odd": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "x": {"dtype": "F32", "shape": [5], "data_offsets": [3, 23]},
    }
    text = json.dumps(header).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes([1, 2, 3]) + raw(values))
    expected = {"odd": torch.tensor([1, 2, 3], dtype=torch.uint8), "x": values}
    assert_same(load_state_dict(path), expected)
    assert Checkpoint(path)["x"].data_ptr() % 4 == 0
    assert list(Checkpoint(path)) == ["x", "odd"]  # a copy written in this order is aligned


def test_sharded_folder_is_read(sharded: Path, state: dict[str, Tensor]) -> None:
    assert_same(load_state_dict(sharded), state)
    checkpoint = Checkpoint(sharded)
    assert [sorted(keys) for keys in checkpoint.shards.values()] == [
        ["a.weight"],
        ["a.bias", "steps"],
    ]
    assert checkpoint.metadata == {"format": "pt"}


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_folder_with_one_file_is_read(tmp_path: Path, state: dict[str, Tensor], name: str) -> None:
    save = save_file if name.endswith("safetensors") else torch.save
    save(state, tmp_path / name)
    assert_same(load_state_dict(tmp_path), state)
    assert_same(dict(Checkpoint(tmp_path)), state)


def test_damaged_folders_are_refused(sharded: Path, tmp_path: Path) -> None:
    shard = sharded / "model-00002-of-00002.safetensors"
    save_file({"a.bias": torch.ones(7)}, shard)
    with pytest.raises(
        ValueError, match=r"00002-of-00002\.safetensors lacks key 'steps' .*: correct the index, or"
    ):
        Checkpoint(sharded)
    shard.unlink()
    with pytest.raises(
        ValueError, match=r"shard 'model-00002-of-00002\.safetensors', which is not"
    ):
        Checkpoint(sharded)
    index = sharded / "model.safetensors.index.json"
    save_file({"a.bias": torch.ones(7)}, tmp_path / "outside.safetensors")
    index.write_text(json.dumps({"weight_map": {"a.bias": "../outside.safetensors"}}))
    with pytest.raises(ValueError, match="outside"):
        Checkpoint(sharded)
    index.write_text('{"weight_map"')
    with pytest.raises(ValueError, match=r"index\.json is not an index"):
        Checkpoint(sharded)
    with pytest.raises(ValueError, match="holds no weights"):
        Checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Checkpoint(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("kept", [0, 5, 60, -1])
def test_truncated_safetensors_is_refused(
    tmp_path: Path, state: dict[str, Tensor], kept: int
) -> None:
    path = tmp_path / "cut.safetensors"
    save_state_dict(state, path)
    path.write_bytes(path.read_bytes()[:kept])
    for read in (Checkpoint, load_state_dict):
        with pytest.raises(ValueError, match=r"cut\.safetensors is truncated"):
            read(path)


def test_unknown_dtype_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(ValueError, match=r"'x' has dtype torch\.complex128"):
        save_state_dict({"x": torch.zeros(2, dtype=torch.complex128)}, path)
    assert os.listdir(tmp_path) == []


# Pickles


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("wrap", [None, "state_dict", "model"])
def test_pickled_state_dicts_are_read(
    tmp_path: Path, state: dict[str, Tensor], wrap: str | None, legacy: bool
) -> None:
    path = tmp_path / "a.pt"
    content = state if wrap is None else {wrap: state, "epoch": 3}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    assert_same(load_state_dict(path), state)
    assert_same(dict(Checkpoint(path)), state)


class Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("write", [torch.save, lambda x, p: p.write_bytes(pickle.dumps(x))])
def test_pickle_that_needs_code_is_refused_and_not_run(tmp_path: Path, write: Any) -> None:
    path, trap = tmp_path / "evil.pt", tmp_path / "trap"
    write({"a": torch.ones(2), "b": Malicious(trap)}, path)
    for read in (Checkpoint, load_state_dict):
        with pytest.raises(
            ValueError, match=r"evil\.pt is refused.*(\.save_state_dict|convert it)"
        ):
            read(path)
    assert not trap.exists()


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": {"a": torch.ones(2)}, "model": {"a": torch.ones(2)}},
        {"weights": {"a": torch.ones(2)}},
        {"model": {"a": torch.ones(2), "epoch": 3}},
        {"a": torch.eye(2).to_sparse()},
        [torch.ones(2)],
        {},
    ],
)
def test_ambiguous_pickle_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"a\.pth is refused: expected one state dict"):
        Checkpoint(tmp_path / "a.pth")


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9])
def test_truncated_pickle_is_refused(
    tmp_path: Path, state: dict[str, Tensor], legacy: bool, share: float
) -> None:
    path = tmp_path / "cut.pt"
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    for read in (Checkpoint, load_state_dict):
        with pytest.raises(ValueError, match=r"cut\.pt is"):
            read(path)


# Whole or absent


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 64 KiB, as on a full disk."""
    resource = pytest.importorskip("resource", reason="needs POSIX")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_failed_write_names_the_file_and_leaves_the_old_one(
    tmp_path: Path, state: dict[str, Tensor], small_files: None
) -> None:
    path = tmp_path / "a.safetensors"
    save_state_dict(state, path)
    with pytest.raises(OSError, match=r"a\.safetensors'$"):
        save_state_dict({"big": torch.zeros(2**16)}, path)
    assert_same(load_state_dict(path), state)
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_full_disk_leaves_nothing(
    tmp_path: Path, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left.*a\.safetensors'$"):
        save_state_dict(state, tmp_path / "a.safetensors")
    assert os.listdir(tmp_path) == []


@needs_posix
def test_read_only_folder_is_named(
    tmp_path: Path, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(OSError, match=r"Read-only.*/a\.safetensors'$"):
        save_state_dict(state, tmp_path / "a.safetensors")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"Not a directory.*/file'$"):
        save_state_dict(state, tmp_path / "file" / "a.safetensors")
    assert os.listdir(tmp_path) == ["file"]


@needs_posix
def test_read_only_mount_does_not_name_what_is_hidden(
    tmp_path: Path, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a mount refuses to remove even what is not there."""

    def refuse(path: Any, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    for name in ("open", "mkdir", "unlink"):
        monkeypatch.setattr(os, name, refuse)
    (tmp_path / "link").symlink_to(tmp_path / "a.safetensors")
    for path in (tmp_path / "a.safetensors", tmp_path / "link"):
        with pytest.raises(OSError, match=rf"Read-only.*/{path.name}'$"):
            save_state_dict(state, path)


@needs_posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o400])
def test_overwriting_keeps_permissions(tmp_path: Path, state: dict[str, Tensor], mode: int) -> None:
    """Of a file, of a folder and of the files in it; and nobody else reads along meanwhile."""
    file, folder = tmp_path / "a.safetensors", tmp_path / "folder"
    save_state_dict(state, file)
    os.chmod(file, mode)
    with staged(file) as partial:
        assert partial.stat().st_mode & 0o077 == mode & 0o077
        partial.write_text("new")
    assert (file.stat().st_mode & 0o777, file.read_text()) == (mode, "new")
    folder.mkdir(mode=0o750)
    (folder / "a").touch(mode=0o600)
    os.chmod(folder, 0o750)
    with staged(folder, folder=True) as partial:
        assert partial.stat().st_mode & 0o777 == 0o700
        for name in "ab":
            (partial / name).touch(mode=0o644)
    modes = {p.name: p.stat().st_mode & 0o777 for p in (folder, folder / "a", folder / "b")}
    assert modes == {"folder": 0o750, "a": 0o600, "b": (folder / "b").stat().st_mode & 0o777}
    assert modes["b"] != 0o600


@needs_proc
def test_everything_is_flushed_before_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed, fsync, done = [], os.fsync, []

    def noted(descriptor: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        done.append((tmp_path / "out").exists())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    with staged(tmp_path / "out", folder=True) as partial:
        (partial / "inner").mkdir()
        for name in ("a.json", "inner/b.json"):
            (partial / name).write_text("{}")
    assert set(flushed[:-1]) == {"a.json", "b.json", "inner", partial.name}
    assert (flushed[-1], done) == (tmp_path.name, [False] * 4 + [True])


@needs_posix
def test_what_cannot_be_removed_stops_nobody(
    tmp_path: Path, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".a.safetensors.0123abcd.partial").touch()

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.warns(UserWarning, match="could not be removed: Operation not permitted"):
        save_state_dict(state, tmp_path / "a.safetensors")
    assert_same(load_state_dict(tmp_path / "a.safetensors"), state)


def test_ties_are_noted_and_found_again(tmp_path: Path) -> None:
    table = torch.randn(4, 3)
    state = {"table": table, "head": table, "alike": table.clone(), "turned": table.T}
    path = tmp_path / "a.safetensors"
    save_state_dict(state, path, {"note": "x"})
    checkpoint = Checkpoint(path)
    assert checkpoint.tied == {"head": "table"}
    loaded = load_state_dict(path)
    assert loaded["head"] is loaded["table"]
    assert loaded["alike"].data_ptr() != loaded["table"].data_ptr()
    assert_same(load_file(path), state)
    save_file({**load_file(path), "head": table + 1}, path, checkpoint.metadata)
    assert Checkpoint(path).tied == {}  # another program untied them and kept the note
    for note in ("[]", "{", '{"head": 3}', '{"head": "gone"}', '{"x": "head"}', "[" * 9999):
        save_file(load_file(path), path, {"mergelib.tied": note})
        assert Checkpoint(path).tied == {}
    save_file({"a": table, "b": table + 0}, path, {"mergelib.tied": '{"a": "b"}'})
    assert Checkpoint(path).tied == {"b": "a"}  # the earlier name comes first, whatever is noted


def test_odd_states_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    odd: list[tuple[Any, type[Exception]]] = [
        ({"x": torch.ones(2, device="meta")}, ValueError),
        ({"x": torch.eye(2).to_sparse_csr()}, ValueError),
        ({"x": 3.0}, TypeError),
        ({3: torch.ones(2)}, TypeError),
    ]
    for state, error in odd:
        with pytest.raises(error, match=r"state\[('x'|3)\] is"):
            save_state_dict(state, path)
    assert os.listdir(tmp_path) == []
    pairs = torch.randn(3, 2, dtype=torch.complex64)
    views = {"conjugate": pairs.conj(), "real": pairs.real, "imaginary": pairs.conj().imag}
    images = {"image": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)}
    save_state_dict({**views, **images, "step": torch.randn(9)[::2]}, path)
    assert torch.equal(load_state_dict(path)["conjugate"], pairs.conj())
    assert torch.equal(load_state_dict(path)["imaginary"], pairs.conj().imag)
    assert torch.equal(load_state_dict(path)["image"], images["image"])


@needs_proc
def test_folder_that_takes_no_files_is_named(state: dict[str, Tensor]) -> None:
    with pytest.raises(OSError, match=r"'/proc/a\.safetensors'$"):
        save_state_dict(state, "/proc/a.safetensors")


@needs_posix  # without locks, what a killed run left stays
@pytest.mark.parametrize("folder", [False, True])
def test_leftovers_of_the_dead_are_removed_but_not_of_the_living(
    tmp_path: Path, folder: bool
) -> None:
    output = tmp_path / "out[1]"
    dead = tmp_path / ".out[1].0123abcd.partial"
    dead.mkdir() if folder else dead.touch()
    other = tmp_path / ".other.0123abcd.partial"
    other.touch()
    with staged(output, folder=folder) as first:
        assert not dead.exists()
        with staged(output, folder=folder) as second:
            assert first.exists()
            assert first != second
    assert sorted(os.listdir(tmp_path)) == sorted([other.name, "out[1]"])


@pytest.mark.parametrize("exchanged", [True, False])
def test_folder_is_replaced_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanged: bool
) -> None:
    """In one step where the system can, else in two, of which the first is taken back."""
    if not exchanged:
        monkeypatch.setattr(staging, "_exchange", lambda one, other: False)
    output = tmp_path / "out"
    output.mkdir()
    (output / "old").touch()
    with pytest.raises(FileNotFoundError), staged(output, folder=True) as partial:
        (partial / "new" / "deeper").mkdir()
    assert os.listdir(output) == ["old"]
    with staged(output, folder=True) as partial:
        (partial / "new").touch()
    assert (os.listdir(output), os.listdir(tmp_path)) == (["new"], ["out"])

    for broken in (OSError(errno.EIO, "broken", "x"), KeyboardInterrupt("broken")):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(type(broken), match="broken"):
            replace_but_break(patch, output, broken)
        assert (os.listdir(output), os.listdir(tmp_path)) == (["new"], ["out"])


def replace_but_break(patch: pytest.MonkeyPatch, output: Path, error: BaseException) -> None:
    with staged(output, folder=True) as partial:
        (partial / "newer").touch()
        break_at(patch, output, error)


def break_at(patch: pytest.MonkeyPatch, output: Path, error: BaseException) -> None:
    """Let the next thing that would put a folder at ``output`` raise instead."""
    replace, exchange = os.replace, staging._exchange

    def failing(source: Path, target: Path) -> None:
        if Path(target) == output and (Path(source) / "newer").exists():
            raise error
        replace(source, target)

    def failing_exchange(one: Path, other: Path) -> bool:
        if exchange.__name__ == "<lambda>":
            return False
        raise error

    patch.setattr(os, "replace", failing)
    patch.setattr(staging, "_exchange", failing_exchange)
