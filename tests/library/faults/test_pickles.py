"""Pickles: mutated, malicious, packed again, and larger than they are."""

import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mergelib.io import Checkpoint, load_state_dict, save_state_dict
from mergelib.merging import merge
from mergelib.streaming import merge_files
from tests.library.faults.cases import ended, in_child, mutate, tries
from tests.library.io.test_io import assert_same


def pack_again(path: Path, deflated: Any, changed: dict[str, bytes] | None = None) -> None:
    """Write an archive again: the members that ``deflated`` accepts compressed, some replaced."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name in members:
        members[name] = (changed or {}).get(name.partition("/")[2], members[name])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            kind = zipfile.ZIP_DEFLATED if deflated(name) else zipfile.ZIP_STORED
            archive.writestr(name, content, kind)


def draw_state(draw: random.Random) -> dict[str, Tensor]:
    """A few tensors of any kind: views, ties, transposed, empty, of several dtypes."""
    torch.manual_seed(draw.randrange(2**31))
    pool = torch.randn(draw.randint(8, 5000))
    state = {
        "plain": torch.randn(draw.randint(1, 40), draw.randint(1, 40)),
        "zeros": torch.zeros(draw.randint(1, 3000)),
        "view": pool[draw.randint(0, 3) : draw.randint(4, 8)],
        "step": pool[:: draw.randint(2, 5)],
        "turned": torch.randn(draw.randint(1, 9), draw.randint(1, 9)).T,
        "half": torch.randn(draw.randint(0, 9)).half(),
        "wide": torch.randn(1, draw.randint(1, 9)).expand(3, -1),
        "count": torch.tensor(draw.randint(0, 9)),
        "parameter": torch.nn.Parameter(torch.randn(3)),
    }
    state["tied"] = state["plain"]
    return {key: state[key] for key in draw.sample(sorted(state), draw.randint(1, len(state)))}


@tries(15, 600)
def test_packed_again(tmp_path: Path, tries: int) -> None:
    """With no, some or all members compressed: the same bits, in memory and streamed."""
    for seed in range(tries):
        draw = random.Random(seed)
        state = draw_state(draw)
        paths = [tmp_path / "a.pt", tmp_path / "b.pt"]
        for path in paths:
            torch.save(state if seed % 2 else {"state_dict": state, "epoch": 3}, path)
            pack_again(path, lambda name: draw.random() < 0.7)  # noqa: B023
        loaded = load_state_dict(paths[0])
        assert_same(loaded, {key: tensor.detach() for key, tensor in state.items()})
        assert {
            key: tensor.is_contiguous() for key, tensor in loaded.items()
        }.keys() == state.keys()
        if "tied" in state and "plain" in state:
            assert loaded["tied"] is loaded["plain"]
        expected = merge("average", paths)
        merge_files("average", paths, tmp_path / "out.safetensors", overwrite=True)
        assert_same(load_state_dict(tmp_path / "out.safetensors"), expected)


@tries(150, 6000)
@pytest.mark.parametrize("legacy", [False, True])
def test_mutated(tmp_path: Path, tries: int, legacy: bool) -> None:
    """In a process of its own: refused by name, or read; no crash, no other error."""
    good, path, trap = tmp_path / "good.pt", tmp_path / "bad.pt", tmp_path / "trap"
    state = {"a": torch.randn(4, 3), "b": torch.ones(5).half(), "c": torch.randn(3).expand(2, 3)}
    torch.save(state, good, _use_new_zipfile_serialization=not legacy)
    content = good.read_bytes()
    description = b""
    if not legacy:
        with zipfile.ZipFile(good) as archive:
            description = archive.read("good/data.pkl")

    def check() -> None:
        for seed in range(tries):
            draw = random.Random(seed)
            if description and seed % 2:  # the description alone, in an archive that is sound
                path.write_bytes(content)
                pack_again(path, lambda _: False, {"data.pkl": mutate(description, draw)})
            else:
                path.write_bytes(mutate(content, draw))
            try:
                for tensor in Checkpoint(path).load().values():
                    tensor.sum()
            except ValueError as error:
                if "bad.pt" not in str(error):
                    raise

    assert ended(in_child(check)) == 0
    assert not trap.exists()


CALLS: list[tuple[Any, tuple[Any, ...]]] = [
    (os.mkdir, ("TRAP",)),
    (os.system, ("mkdir TRAP",)),
    (eval, ("__import__('os').mkdir('TRAP')",)),
    (exec, ("import os; os.mkdir('TRAP')",)),
    (getattr, ("TRAP", "join")),
    (__import__, ("os",)),
    (open, ("TRAP", "w")),
    (os.popen, ("mkdir TRAP",)),
    (Path.mkdir, (Path("TRAP"),)),
    (torch.save, ({}, "TRAP")),
    (torch.load, ("TRAP",)),
    (pickle.loads, (b"cos\nmkdir\n(VTRAP\ntR.",)),
]


class Calling:
    """What is pickled as a call."""

    def __init__(self, function: Any, arguments: tuple[Any, ...]) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("where", ["value", "key", "beside", "whole", "state"])
@pytest.mark.parametrize("kind", ["archive", "deflated", "legacy", "plain"])
def test_malicious(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, where: str) -> None:
    """Twelve calls in five places of four kinds of file: none is run."""
    monkeypatch.chdir(tmp_path)
    for protocol in (2, 4):
        for function, arguments in CALLS:
            if function is torch.load and kind == "plain":
                continue
            evil, path = Calling(function, arguments), tmp_path / "evil.pt"
            tensors: dict[Any, Any] = {"a": torch.ones(2)}
            content = {
                "value": {**tensors, "b": evil},
                "key": {**tensors, evil: torch.ones(1)},
                "beside": {"state_dict": tensors, "optimizer": evil},
                "whole": evil,
                "state": {"model": tensors, "state_dict": {**tensors, "x": [evil]}},
            }[where]
            if kind == "plain":
                path.write_bytes(pickle.dumps(content, protocol))
            else:
                archive = kind != "legacy"
                torch.save(
                    content, path, pickle_protocol=protocol, _use_new_zipfile_serialization=archive
                )
            if kind == "deflated":
                pack_again(path, lambda _: True)
            for read in (Checkpoint, load_state_dict):
                with pytest.raises(ValueError, match=r"evil\.pt is"):
                    read(path)
            assert os.listdir(tmp_path) == ["evil.pt"]


def test_tensors_larger_than_the_file_are_refused(tmp_path: Path) -> None:
    """1 kB that says 4 GB, and what is expanded a little."""
    bomb = {"a": torch.zeros(1).expand(2**30), "b": torch.ones(2)}
    for archive in (True, False):
        torch.save(bomb, tmp_path / "a.pt", _use_new_zipfile_serialization=archive)
        with pytest.raises(ValueError, match=r"a\.pt is refused: its tensors would take 4294967"):
            Checkpoint(tmp_path / "a.pt")
    small = {"mask": torch.zeros(1).expand(512, 512)}
    torch.save(small, tmp_path / "a.pt")
    assert_same(load_state_dict(tmp_path / "a.pt"), small)


def test_bombs_are_refused_unopened(tmp_path: Path) -> None:
    """Compressed members that are not what the description says, or are the description."""
    path = tmp_path / "a.pt"
    for name, size in (("data/0", 2**24), ("data.pkl", 2**25)):
        torch.save({"a": torch.ones(2)}, path)
        pack_again(path, lambda _: True, {name: bytes(size)})
        assert path.stat().st_size < 2**16
        with pytest.raises(ValueError, match=r"a\.pt is (damaged|refused)"):
            Checkpoint(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_that_overlap_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.ones(2)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a/data/0", bytes(8))
    with pytest.raises(ValueError, match=r"a\.pt is refused: members of its archive overlap"):
        Checkpoint(path)


def test_a_member_that_is_not_what_it_says(tmp_path: Path) -> None:
    """What is packed is read and compared with its checksum at once."""
    path = tmp_path / "a.pt"
    torch.save({"a": torch.arange(4000.0)}, path)
    pack_again(path, lambda _: True)
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("a/data/0")
    start = member.header_offset + 30 + len(member.filename)
    middle = start + member.compress_size // 2
    path.write_bytes(content[:middle] + bytes(100) + content[middle + 100 :])
    with pytest.raises(ValueError, match=r"a\.pt is truncated or not a pickled state dict"):
        Checkpoint(path)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.ones(2, device="meta"), r"'b' is on the meta device"),
        (torch.eye(2).to_sparse(), "expected one state dict"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "expected one state dict"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "expected one state dict"),
    ],
    ids=["meta", "sparse", "nested", "quantised"],
)
@pytest.mark.filterwarnings("ignore")
def test_odd_tensors_are_refused(tmp_path: Path, tensor: Tensor, message: str) -> None:
    for archive in (True, False):
        path = tmp_path / "a.pt"
        torch.save({"a": torch.ones(2), "b": tensor}, path, _use_new_zipfile_serialization=archive)
        with pytest.raises(ValueError, match=r"a\.pt is (refused|truncated)"):
            load_state_dict(path)
    save_state_dict({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    if "quant" not in str(tensor.dtype) and "qint" not in str(tensor.dtype):
        with pytest.raises(ValueError, match=r"'b'"):
            save_state_dict({"b": tensor}, tmp_path / "b.safetensors")
        with pytest.raises(ValueError, match=r"expert 0\['b'\] is "):
            merge("average", [{"b": tensor}])


def test_sparse_tensors_do_no_harm_to_others(tmp_path: Path) -> None:
    """PyTorch keeps a list of them, to check when a whole pickle has been read."""
    sparse, state = [torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr()], {"a": torch.ones(2)}
    torch.save({"state_dict": state, "optimizer": sparse}, tmp_path / "a.pt")
    for _ in range(2):
        assert_same(load_state_dict(tmp_path / "a.pt"), state)
        loaded = torch.load(tmp_path / "a.pt", weights_only=True)
        assert torch.equal(loaded["optimizer"][0].to_dense(), torch.eye(2))


def test_the_key_that_no_tensor_can_have(tmp_path: Path) -> None:
    torch.save({"__metadata__": torch.ones(2)}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt is refused: '__metadata__'"):
        Checkpoint(tmp_path / "a.pt")
    with pytest.raises(ValueError, match="'__metadata__'"):
        save_state_dict({"__metadata__": torch.ones(2)}, tmp_path / "a.safetensors")
    assert os.listdir(tmp_path) == ["a.pt"]
