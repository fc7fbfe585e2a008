"""Hashes: known values, what changes them and what does not."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from mergelib.hashing import digest, fingerprint, sha256_of, stable_seed


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    assert sha256_of(file) == hashlib.sha256(b"abc").hexdigest()


def test_tensors_are_their_bytes() -> None:
    first, second = torch.arange(6, dtype=torch.int16).view(2, 3), torch.tensor(1.5)
    expected = hashlib.sha256(first.numpy().tobytes() + second.numpy().tobytes()).hexdigest()
    assert digest([first, second]) == expected
    assert digest([second, first]) != expected
    assert digest([first.T.contiguous().T, second]) == expected, "by entries, not by layout"
    assert digest([torch.empty(0, 3)]) == digest([])
    half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    assert digest([half]) == hashlib.sha256(half.view(torch.int16).numpy().tobytes()).hexdigest()


def test_seeds_are_the_same_everywhere() -> None:
    assert stable_seed("glyphs", "greek", "train", 0) == 6487730094886885002
    assert stable_seed("a", "b") != stable_seed("b", "a")


@dataclass(frozen=True)
class Settings:
    rate: float
    names: tuple[str, ...] = ("a",)


def test_settings() -> None:
    text = '{"names": ["a"], "rate": 0.1}'
    expected = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert fingerprint(Settings(0.1)) == fingerprint(text) == expected
    assert fingerprint({"rate": 0.1, "names": ["a"]}) == expected, "in any order"
    assert fingerprint(Settings(0.2)) != expected
    assert fingerprint([Settings(0.1), {"x": Settings(0.1)}]) == fingerprint(
        [{"rate": 0.1, "names": ["a"]}, {"x": {"rate": 0.1, "names": ["a"]}}]
    )
    with pytest.raises(TypeError, match="not JSON serializable"):
        fingerprint({"device": torch.device("cpu")})
