"""Sentences: files of sets, and how they are made of what public repositories hold."""

import hashlib
import json
import os
import re
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from http.client import IncompleteRead
from pathlib import Path

import pytest

from mergebook.suites.data import sentences
from mergebook.suites.data.sentences import SOURCES, TASKS, load_sentences, read_sentences

REAL = os.environ.get("MERGELIB_DATA")  # before the fixture `own_cache` hides it
HEADER = "split\tlabel\ttext\n"
SIZES = {  # classes, training, testing, and how many for testing stand among the training too
    "sst2": (2, 6920, 1821, 2),
    "trec": (6, 5452, 500, 10),
    "subj": (2, 7500, 2500, 0),
    "cr": (2, 2832, 943, 0),
    "mpqa": (2, 7955, 2651, 761),
    "banking77": (77, 10003, 3080, 7),
    "agnews": (4, 5700, 1900, 0),
    "clinc150": (150, 15000, 4500, 2),
}


def write(folder: Path, name: str, table: str) -> Path:
    file = folder / "sentences" / f"{name}.tsv"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(table.encode())
    return file


def test_a_good_file(tmp_path: Path) -> None:
    table = HEADER + "train\tyes\tof course\ntest\tno\tñever, “ever”\ntrain\tmaybe\t\n"
    file = write(tmp_path, "own", table)
    found = load_sentences("own", tmp_path)
    assert found.class_names == ("maybe", "no", "yes")
    assert found.train == (["of course", ""], [2, 0])
    assert found.test == (["ñever, “ever”"], [1])
    assert found.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "sst2", HEADER + "train\tgood\ta\ntest\tbad\tb\n")
    monkeypatch.setenv("MERGELIB_DATA", str(tmp_path))
    assert load_sentences("sst2").train == (["a"], [1])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", r"own\.tsv does not begin with the header split, label, text"),
        ("label\ttext\n", r"own\.tsv does not begin with the header"),
        (HEADER + "train\ta\tb\nvalid\ta\tb\n", r"own\.tsv, line 3: expected train or test.*valid"),
        (HEADER + "train\ta\n", r"own\.tsv, line 2: expected"),
        (HEADER + "train\ta\tb\tc\n", r"own\.tsv, line 2: expected"),
        (HEADER + "train\ta\tb\n", r"own\.tsv has no line of split 'test'"),
    ],
)
def test_a_file_that_is_no_such_table(tmp_path: Path, table: str, message: str) -> None:
    file = write(tmp_path, "own", table)
    with pytest.raises(ValueError, match=message):
        read_sentences(file)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "own.tsv"
    file.write_bytes(HEADER.encode() + b"train\ta\t\xff\n")
    with pytest.raises(ValueError, match=r"own\.tsv is no UTF-8 text"):
        read_sentences(file)


def test_unknown_set(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown sentences 'imdb': no imdb\.tsv in .*: sst2, tr"):
        load_sentences("imdb", tmp_path)


# Of every kind of source a tiny one, and the file that it comes to.
NUMBERED = {
    "stsa.binary.train": b"1 a  fine\tfilm .\n0 clich\xe9s \n",
    "stsa.binary.test": b"0 \n1 b\xc3\xa9b\xc3\xa9 !\n",
}
INTENTS = {
    "train.csv": b'text,category\r\n"Lost, I fear:\r\nmy card",lost_or_stolen\r\nHm?,top_up\r\n',
    "test.csv": b'text,category\r\n"A ""top up""",top_up\r\n',
}
REQUESTS = {
    "oos_train": [["is it?", "oos"]],
    "train": [["say  hi", "translate_it"], ["yes", "yes"]],
    "test": [["no", "no"]],
}
NEWS = b'"3","Fears","A ""plan""  #39;s"\n"1","T","a"\n"2","T","b"\n"4","T","c"\n"1","T","d"\n'
MADE = {
    "sst2": (
        NUMBERED,
        "train\tpositive movie review\ta fine film .\ntrain\tnegative movie review\tclich\ufffds\n"
        "test\tnegative movie review\t\ntest\tpositive movie review\tbébé !\n",
    ),
    "banking77": (
        INTENTS,
        "train\tlost or stolen\tLost, I fear: my card\ntrain\ttop up\tHm?\n"
        'test\ttop up\tA "top up"\n',
    ),
    "clinc150": (
        {"data_full.json": json.dumps(REQUESTS).encode()},
        "train\ttranslate it\tsay hi\ntrain\tyes\tyes\ntest\tno\tno\n",
    ),
    # numpy's default_rng(0).permutation(5) is 2, 4, 3, 0, 1; a quarter of five is one.
    "agnews": (
        {"test.csv": NEWS},
        "train\tworld politics news\tT. d\ntrain\tscience and technology news\tT. c\n"
        'train\tbusiness news\tFears. A "plan" #39;s\ntrain\tworld politics news\tT. a\n'
        "test\tsports news\tT. b\n",
    ),
}


def serve(
    patch: pytest.MonkeyPatch, folder: Path, name: str, files: Mapping[str, bytes], table: str
) -> None:
    """Let a set come from a folder of this machine, and come to this table."""
    for file, content in files.items():
        (folder / file).write_bytes(content)
    digest = hashlib.sha256((HEADER + table).encode()).hexdigest()
    patch.setitem(SOURCES, name, replace(SOURCES[name], folder=folder.as_uri(), sha256=digest))


@pytest.mark.parametrize("name", MADE)
def test_a_set_is_made_of_its_source(
    name: str, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, table = MADE[name]
    serve(monkeypatch, tmp_path, name, files, table)
    found = load_sentences(name, tmp_path)
    kept = own_cache / "data" / "sentences" / f"{name}.tsv"
    assert kept.read_bytes().decode() == HEADER + table
    for file in files:
        (tmp_path / file).unlink()
    again = load_sentences(name)
    assert (again.train, again.test, again.sha256) == (found.train, found.test, found.sha256)


def test_a_random_quarter_is_for_testing() -> None:
    rows = [("a", str(number)) for number in range(103)]
    train, test = sentences._cut(rows)
    assert (len(train), len(test)) == (78, 25)
    assert sorted(train + test) == sorted(rows)
    assert sentences._cut(rows) == (train, test)
    assert test != sorted(test)


def test_a_source_that_is_not_what_it_was_is_refused(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, table = MADE["sst2"]
    serve(monkeypatch, tmp_path, "sst2", files, table + "test\tmore\tmore\n")
    urls = " and ".join(f"{tmp_path.as_uri()}/{file}" for file in files)
    message = f"set 'sst2' of sentences: what {urls} gives has the SHA-256 "
    with pytest.raises(ValueError, match=re.escape(message)):
        load_sentences("sst2")
    assert not own_cache.exists()


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("content", [b"<html>\nSign in first</html>\n", b"", b"9 out of range\n"])
def test_a_source_that_is_something_else(
    name: str, content: bytes, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, table = MADE[name]
    serve(monkeypatch, tmp_path, name, dict.fromkeys(files, content), table)
    with pytest.raises(ValueError, match=f"set '{name}' of sentences: what file:.* gives "):
        load_sentences(name)
    assert not own_cache.exists()


@pytest.mark.parametrize("error", [OSError("no route"), IncompleteRead(b"", 7)])
def test_a_source_that_cannot_be_read(
    error: Exception, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(url: str, timeout: float) -> None:
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    message = r"set 'trec' .* subfolder 'sentences', and https://\S+/TREC\.train\.all cannot be re"
    with pytest.raises(ValueError, match=message):
        load_sentences("trec")
    assert not own_cache.exists()


def test_every_source_is_pinned_and_has_its_hash() -> None:
    assert set(SIZES) == set(TASKS)
    for source in SOURCES.values():
        assert re.match(
            r"https://raw\.githubusercontent\.com/[^/]+/[^/]+/[0-9a-f]{40}/", source.folder
        )
        assert re.fullmatch("[0-9a-f]{64}", source.sha256)
    assert len({source.sha256 for source in SOURCES.values()}) == len(SOURCES)


@pytest.mark.skipif(
    REAL is None or not (Path(REAL) / "sentences").is_dir(),
    reason="MERGELIB_DATA names no folder with the real sets in its subfolder 'sentences'",
)
@pytest.mark.parametrize("name", TASKS)
def test_the_real_files(name: str) -> None:
    found = load_sentences(name, REAL)
    assert found.sha256 == SOURCES[name].sha256
    for texts, labels in (found.train, found.test):
        assert len(texts) == len(labels)
        assert set(labels) == set(range(len(found.class_names)))
    train, test = found.train[0], found.test[0]
    known = set(train)
    common = sum(text in known for text in test)
    assert (len(found.class_names), len(train), len(test), common) == SIZES[name]
