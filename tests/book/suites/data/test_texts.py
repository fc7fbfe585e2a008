"""Texts: characters and codes, windows, files, downloads."""

import hashlib
import re
import urllib.request
from pathlib import Path

import pytest
import torch

from mergebook.suites.backbones import build_model
from mergebook.suites.data import texts
from mergebook.suites.models import GPT


def test_vocabulary_fits_the_model() -> None:
    assert len(set(texts.CHARACTERS)) == len(texts.CHARACTERS)
    model = build_model("gpt")
    assert isinstance(model, GPT)
    assert len(texts.CHARACTERS) <= model.token_embed.num_embeddings


def decode(codes: torch.Tensor) -> str:
    return "".join(texts.CHARACTERS[code] for code in codes.tolist())


def test_characters_and_codes() -> None:
    line = "¿Qué\nsé yo? ~"
    assert decode(texts.encode(line)) == line
    assert texts.encode("a☃").tolist() == [texts.CHARACTERS.index("a"), 0]
    assert texts.encode("").shape == (0,)


def test_windows_by_hand() -> None:
    text = "".join(chr(32 + i % 90) for i in range(2 * 129 + 128))
    inputs, labels = texts.windows(text)
    assert inputs.shape == labels.shape == (2, 128)
    assert (inputs.dtype, labels.dtype) == (torch.uint8, torch.int64)
    assert decode(inputs[1]) == text[129 : 129 + 128]
    assert decode(labels[1]) == text[130 : 130 + 128]
    with pytest.raises(ValueError, match="a text of 128 characters is shorter"):
        texts.windows(text[:128])


def test_splits_are_disjoint_windows_of_the_text() -> None:
    text = "".join(chr(32 + (i // 129) % 90) for i in range(60 * 129))  # window i is one character
    parts = texts.split_windows(text, (30, 5, 10), seed=3)
    seen = [set(inputs[:, 0].tolist()) for inputs, _ in parts]
    assert [len(part) for part in seen] == [30, 5, 10]
    assert len(set.union(*seen)) == 45
    again = texts.split_windows(text, (30, 5, 10), seed=3)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(parts, again, strict=True))
    other = texts.split_windows(text, (30, 5, 10), seed=4)
    assert not torch.equal(parts[0][0], other[0][0])
    sizes = [len(labels) for _, labels in texts.split_windows(text, (1000, 1000, 1000), seed=0)]
    assert sizes == [36, 12, 12]


def test_text_that_cannot_be_had(text_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text_folder / "text" / "names.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match=r"names\.txt is no UTF-8 text"):
        texts.load_text("names", text_folder)
    (text_folder / "text" / "names.txt").unlink()
    monkeypatch.setenv("MERGELIB_CACHE", str(text_folder / "cache"))

    def offline(url: str, timeout: float) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    with pytest.raises(
        ValueError, match=r"text 'names' is not .*names.txt cannot be read: no route"
    ):
        texts.load_text("names", text_folder)
    assert not (text_folder / "cache").exists()


def test_download_keeps_the_book_alone(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = [
        "Licence",
        "*** START ***",
        "",
        "Produced by one",
        "and another",
        "",
        "",
        "¡Qué libro!",
    ]
    lines += ["", "Fin", "", "", "End of Project Gutenberg's Book", "*** END ***", "", "More"]
    lines += ["*** START: FULL LICENSE ***", "", "Even more"]
    source = tmp_path / "book.txt"
    source.write_bytes("\r\n".join(lines).encode("latin-1"))
    monkeypatch.setenv("MERGELIB_CACHE", str(tmp_path / "cache"))
    book = "¡Qué libro!\n\nFin\n"
    there = texts.Text(source.as_uri(), hashlib.sha256(book.encode()).hexdigest(), "latin-1")
    monkeypatch.setitem(texts.TEXTS, "don_quijote_es", there)
    (text_folder / "text" / "don_quijote_es.txt").unlink()
    text, digest = texts.load_text("don_quijote_es", text_folder)
    assert text == book
    assert digest == there.sha256
    source.unlink()
    assert texts.load_text("don_quijote_es", text_folder) == (text, digest), "kept in the cache"


def test_a_download_that_is_not_what_it_was_is_refused(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "names.txt"
    source.write_text("emma\nolivia\n")
    monkeypatch.setitem(texts.TEXTS, "names", texts.Text(source.as_uri(), "0" * 64))
    (text_folder / "text" / "names.txt").unlink()
    message = f"text 'names': what {source.as_uri()} gives has the SHA-256 "
    with pytest.raises(ValueError, match=re.escape(message)):
        texts.load_text("names", text_folder)
    assert not list((tmp_path / "cache").rglob("names*"))
    source.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"names\.txt gives makes no sense: UnicodeDecodeError: "):
        texts.load_text("names", text_folder)


def test_every_text_has_its_hash() -> None:
    digests = [text.sha256 for text in texts.TEXTS.values()]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    assert len(set(digests)) == len(texts.TEXTS)
