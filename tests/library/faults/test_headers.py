"""Safetensors headers, mutated: refused by name, or read as the format's own library reads them."""

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from mergelib.compression import compress, load_compressed
from mergelib.io import Checkpoint, save_state_dict
from tests.library.faults.cases import mutate, tries
from tests.library.io.test_io import assert_same


def write_header(path: Path, header: Any, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@tries(250, 12000)
def test_mutated(tmp_path: Path, tries: int) -> None:
    """What is read is what the library reads, which is asked for all that is not refused."""
    state = {"a": torch.randn(3, 4), "b": torch.arange(5), "c": torch.randn(2).half()}
    good, path, draw, read = tmp_path / "good.safetensors", tmp_path / "bad.safetensors", 0, 0
    save_state_dict(state, good, {"note": "x"})
    content = good.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    for draw in range(tries):
        path.write_bytes(mutate(content, random.Random(draw), start if draw % 4 else None))
        try:
            found = Checkpoint(path).load()
        except ValueError as error:
            if "bad.safetensors" not in str(error):
                raise
            continue
        with safe_open(path, "pt") as file:
            assert_same(found, {key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
        read += 1
    assert read > tries / 50  # what was put to the test is not refused throughout


@tries(150, 6000)
def test_mutated_compressed_experts(tmp_path: Path, tries: int) -> None:
    """Any byte: what is read is what was saved, or the file is refused by name."""
    base = {"w": torch.zeros(6, 3), "b": torch.zeros(4)}
    experts = {name: {key: torch.randn(t.shape) for key, t in base.items()} for name in "ab"}
    saved, path = compress("emr", experts, pretrained=base), tmp_path / "bad.safetensors"
    saved.save(path)
    content, read = path.read_bytes(), 0
    for seed in range(tries):
        path.write_bytes(mutate(content, random.Random(seed)) if seed % 50 else content)
        try:
            found = load_compressed(path)
        except ValueError as error:
            if "bad.safetensors" not in str(error):
                raise
            continue
        for task in "ab":
            assert_same(found.expert(task), saved.expert(task))
        read += 1
    assert read >= tries // 50


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            {"a": {**ENTRY, "shape": [0, 2**40, 2**31], "data_offsets": [0, 0]}},
            "too large for any memory",
        ),
        ({"a": {**ENTRY, "shape": [3]}}, "do not fit its shape"),
        ({"a": {**ENTRY, "shape": [2.0]}}, "not whole numbers"),
        ({"a": {**ENTRY, "shape": [True, 2]}}, "not whole numbers"),
        ({"a": {**ENTRY, "data_offsets": [8, 0]}}, "do not fit"),
        ({"a": {**ENTRY, "data_offsets": [0]}}, "a pair of offsets"),
        ({"a": {**ENTRY, "data_offsets": [8, 16]}}, "do not fill"),
        ({"a": ENTRY, "b": ENTRY}, "do not fill"),
        ({"a": {**ENTRY, "shape": [-2]}}, "not whole numbers"),
        ({"a": {**ENTRY, "dtype": "F4"}}, "unsupported dtype F4"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "lacks"),
        ({"a": ENTRY, "__metadata__": {"x": 1}}, "not texts"),
        ({"\ud800": ENTRY}, "surrogates"),
        ([], "not a JSON object"),
        (b'{"a":' * 5000, "recursion"),
        (b'{"a": {}, "a": {}}', "twice"),
        (b"\xff", "utf-8"),
    ],
)
def test_bad_headers(tmp_path: Path, header: Any, message: str) -> None:
    write_header(tmp_path / "bad.safetensors", header, bytes(8))
    with pytest.raises(ValueError, match=rf"bad\.safetensors.*{message}"):
        Checkpoint(tmp_path / "bad.safetensors")


def test_no_metadata_are_null(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_header(path, {"__metadata__": None, "a": ENTRY}, bytes(8))
    checkpoint = Checkpoint(path)
    assert checkpoint.metadata == {}
    assert_same(checkpoint.load(), {"a": torch.zeros(2)})
