"""``mergelib merge`` with odd inputs and outputs: one line that names what is odd, no traceback."""

import json
import os
import socket
import struct
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mergelib import cli
from mergelib.io import load_state_dict, save_state_dict
from tests.library.faults.cases import make_state
from tests.library.faults.test_headers import write_header
from tests.library.faults.test_pickles import Calling, pack_again

Make = Callable[[Path], Any]


def pickled(content: Any, **options: Any) -> Make:
    return lambda path: torch.save(content, path, **options)


def packed(changed: dict[str, bytes], deflated: bool = True) -> Make:
    def make(path: Path) -> None:
        torch.save(make_state(1), path)
        pack_again(path, lambda _: deflated, changed)

    return make


def header(content: Any, size: int = 0) -> Make:
    return lambda path: write_header(path, content, bytes(size))


def index(content: Any) -> Make:
    def make(path: Path) -> None:
        path.mkdir()
        text = content if isinstance(content, str) else json.dumps(content)
        (path / "model.safetensors.index.json").write_text(text)

    return make


def truncated(name: str) -> Make:
    def make(path: Path) -> None:
        torch.save(make_state(1), path, _use_new_zipfile_serialization=name != "legacy")
        os.truncate(path, path.stat().st_size // 2)

    return make


def looped(path: Path) -> None:
    path.symlink_to(path.with_name("back"))
    path.with_name("back").symlink_to(path)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def shallow(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "model.safetensors")


def encrypted(path: Path) -> None:
    torch.save(make_state(1), path)
    content = path.read_bytes().replace(
        b"PK\x01\x02\x00\x00\x00\x00\x08", b"PK\x01\x02\x00\x00\x00\x00\x09"
    )
    path.write_bytes(content)


def scripted(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(nn.Linear(2, 2)).save(str(path))


def private(path: Path) -> None:
    path.mkdir()
    (path / "notes").touch()


NESTED = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)])
INPUTS: dict[str, Make] = {
    "absent.pt": lambda path: None,
    "circle.pt": looped,
    "pipe.pt": os.mkfifo,
    "pipe.safetensors": os.mkfifo,
    "socket.pt": listening,
    "to-device.pt": lambda path: path.symlink_to("/dev/zero"),
    "to-null.safetensors": lambda path: path.symlink_to("/dev/null"),
    "empty.pt": Path.touch,
    "empty.safetensors": Path.touch,
    "text.pt": lambda path: path.write_text("no model"),
    "text.safetensors": lambda path: path.write_text("no model, but long enough to be one"),
    "bare": Path.mkdir,
    "folder.pt": Path.mkdir,
    "folder-of-pipe": shallow,
    "index-empty": index({"weight_map": {}}),
    "index-absent": index({}),
    "index-text": index(""),
    "index-list": index([1]),
    "index-map": index({"weight_map": [1, 2]}),
    "index-number": index({"weight_map": {"a": 3}}),
    "index-null": index({"weight_map": {"a": "\0"}}),
    "index-deep": index('{"weight_map":' * 20000),
    "index-outside": index({"weight_map": {"a": "../good.safetensors"}}),
    "deep.safetensors": header(b"[" * 50000),
    "huge.safetensors": header(
        {"a": {"dtype": "F32", "shape": [0, 2**40, 2**31], "data_offsets": [0, 0]}}
    ),
    "long.safetensors": lambda path: path.write_bytes(struct.pack("<Q", 2**63) + b"{}"),
    "four-bit.safetensors": header({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, 1),
    "cut.pt": truncated("archive"),
    "cut-legacy.pt": truncated("legacy"),
    "reserved.pt": pickled({"__metadata__": torch.ones(2)}),
    "meta.pt": pickled({"a": torch.ones(2, device="meta")}),
    "sparse.pt": pickled({"a": torch.eye(2).to_sparse()}),
    "csr.pt": pickled({"a": torch.eye(2).to_sparse_csr()}),
    "nested.pt": pickled({"a": NESTED}),
    "numbers.pt": pickled({"a": 3}),
    "nothing.pt": pickled({}),
    "module.pt": pickled(nn.Linear(2, 2)),
    "script.pt": scripted,
    "calling.pt": pickled({"a": torch.ones(2), "b": Calling(os.mkdir, ("trap",))}),
    "expanded.pt": pickled({"a": torch.zeros(1).expand(2**30)}),
    "expanded-legacy.pt": pickled(
        {"a": torch.zeros(1).expand(2**30)}, _use_new_zipfile_serialization=False
    ),
    "bomb.pt": packed({"data/0": bytes(2**24)}),
    "bomb-of-text.pt": packed({"data.pkl": bytes(2**25)}),
    "other-order.pt": packed({"byteorder": b"big"}, deflated=False),
    "encrypted.pt": encrypted,
    "not-finite.pt": pickled(make_state(float("nan"))),
    "other-keys.pt": pickled({"x": torch.ones(2)}),
    "eighth.pt": pickled(
        {key: value.to(torch.float8_e5m2) for key, value in make_state(1).items()}
    ),
}
OUTPUTS: dict[str, Make] = {
    "circle.safetensors": looped,
    "circle": looped,
    "pipe.safetensors": os.mkfifo,
    "to-null.safetensors": lambda path: path.symlink_to("/dev/null"),
    "pipe": os.mkfifo,
    "file": Path.touch,
    "folder.safetensors": Path.mkdir,
    "x" * 250 + ".safetensors": lambda path: None,
    "out.pt": lambda path: None,
    "good.safetensors": lambda path: None,
    "shards/model.safetensors": lambda path: None,
    "shards": lambda path: None,
    "file-above/out.safetensors": lambda path: path.parent.touch(),
    "mine": private,
}


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run a command that must be refused, and leave nothing behind; gives what it says."""
    monkeypatch.chdir(tmp_path)
    save_state_dict(make_state(1), tmp_path / "good.safetensors")

    def run(*arguments: object) -> str:
        before = sorted(os.listdir(tmp_path))
        monkeypatch.setattr(sys, "argv", ["mergelib", "merge", "average", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr().err
        assert left.value.code in (1, 2), said
        assert (said.count("\n"), said.count("Traceback")) == (1, 0), said
        assert sorted(os.listdir(tmp_path)) == before
        return str(said)

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", INPUTS)
def test_odd_inputs(tmp_path: Path, refused: Callable[..., str], name: str) -> None:
    INPUTS[name](tmp_path / name)
    for output in ("out", "out.safetensors"):
        said = refused("good.safetensors", name, "-o", output)
        assert name in said or "expert 1" in said


@pytest.mark.parametrize("name", OUTPUTS)
def test_odd_outputs(tmp_path: Path, refused: Callable[..., str], name: str) -> None:
    make_shards(tmp_path)
    OUTPUTS[name](tmp_path / name)
    said = refused("good.safetensors", "shards", "-o", name, "--overwrite")
    assert name in said or name.partition("/")[0] in said


def make_shards(folder: Path) -> None:
    """The good model again, as a folder of two shards."""
    save_state_dict({"w0": make_state(1)["w0"]}, folder / "shards" / "one.safetensors")
    rest = {key: value for key, value in make_state(1).items() if key != "w0"}
    save_state_dict(rest, folder / "shards" / "two.safetensors")
    weight_map = {
        key: "one.safetensors" if key == "w0" else "two.safetensors" for key in make_state(1)
    }
    text = json.dumps({"weight_map": weight_map})
    (folder / "shards" / "model.safetensors.index.json").write_text(text)


def test_a_link_to_a_folder_stays_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice: what it points to is replaced, also where a file is linked."""
    save_state_dict(make_state(1), tmp_path / "good.safetensors")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "real")
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "elsewhere" / "real.safetensors")
    for _ in range(3):
        for name in ("link", "link.safetensors"):
            arguments = ["average", "good.safetensors", "-o", name, "--overwrite"]
            monkeypatch.chdir(tmp_path)
            monkeypatch.setattr(sys, "argv", ["mergelib", "merge", *arguments])
            cli.app(standalone_mode=False)
            assert (tmp_path / name).is_symlink()
            assert load_state_dict(tmp_path / name).keys() == make_state(1).keys()
    assert sorted(os.listdir(tmp_path / "elsewhere")) == ["real", "real.safetensors"]
    assert sorted(os.listdir(tmp_path)) == [
        "elsewhere",
        "good.safetensors",
        "link",
        "link.safetensors",
    ]
