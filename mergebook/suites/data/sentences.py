"""Sentences to classify: eight public sets of opinions, questions, news and requests.

A file ``sentences/NAME.tsv`` (UTF-8) has the header ``split, label, text``; it is found like
prepared sets, else made. Of sets without official splits, a random quarter is for testing.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mergebook.suites.data.origins import download, records
from mergebook.suites.data.prepared import find, search_folders
from mergelib.hashing import sha256_of
from mergelib.messages.brief import Brief

HEADER = ("split", "label", "text")
Rows = list[tuple[str, str]]  # labels and texts


def numbered(content: str, names: Sequence[str]) -> list[Rows]:
    """Lines ``1 text``: the number of a label, and a text, which may be empty."""
    fields = [line.partition(" ") for line in content.splitlines()]
    return [[(names[int(number)], text) for number, _, text in fields]]


def intents(content: str, names: Sequence[str]) -> list[Rows]:
    """A table of texts and names with underscores, below a header."""
    _, *rows = csv.reader(io.StringIO(content, newline=""))
    return [[(label.replace("_", " "), text) for text, label in rows]]


def news(content: str, names: Sequence[str]) -> list[Rows]:
    """A table without a header: the number of a topic, from 1, a title, a description."""
    rows = csv.reader(io.StringIO(content, newline=""))
    return [[(names[int(k) - 1], f"{title}. {text}") for k, title, text in rows]]


def requests(content: str, names: Sequence[str]) -> list[Rows]:
    """JSON with both splits, pairs of text and intent; what is out of scope stands elsewhere."""
    splits = json.loads(content)
    return [
        [(label.replace("_", " "), text) for text, label in splits[split]]
        for split in ("train", "test")
    ]


# By name, from a file's content and the names of its labels to the splits that it holds.
FORMATS = {read.__name__: read for read in (numbered, intents, news, requests)}


@dataclass(frozen=True)
class Source:
    """Where a set comes from; the first of all splits is for training, one alone is cut."""

    folder: str  # URL
    files: tuple[str, ...]
    format: str
    sha256: str  # of the file that is made of them
    template: str  # what a zero-shot head puts class names into
    names: tuple[str, ...] = ()


SOURCES = records("sentences", Source)
TASKS = tuple(SOURCES)


@dataclass(frozen=True, repr=False)
class Sentences(Brief):
    """A set: the texts and labels of both its splits; label k means ``class_names[k]``."""

    class_names: tuple[str, ...]  # in alphabetical order
    train: tuple[list[str], list[int]]
    test: tuple[list[str], list[int]]
    sha256: str  # of the file


def load_sentences(name: str, data: str | Path | None = None) -> Sentences:
    """A set of sentences, which is downloaded where no folder holds it."""
    path = f"sentences/{name}.tsv"
    if file := find(path, data):
        return read_sentences(file)
    if name not in SOURCES:
        places = ", ".join(str(folder / "sentences") for folder in search_folders(data))
        known = f"to be downloaded are: {', '.join(TASKS)}"
        raise ValueError(f"unknown sentences {name!r}: no {name}.tsv in {places}; {known}")
    source, target = SOURCES[name], search_folders(data)[-1] / path
    urls = [f"{source.folder}/{file}" for file in source.files]
    make = partial(_table, source)
    return read_sentences(download(f"set {name!r} of sentences", urls, make, source.sha256, target))


def read_sentences(file: Path) -> Sentences:
    """The set that a file holds."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no UTF-8 text: {error}") from error
    if not lines or tuple(lines[0].split("\t")) != HEADER:
        raise ValueError(f"{file} does not begin with the header {', '.join(HEADER)}")
    splits: dict[str, tuple[list[str], list[str]]] = {"train": ([], []), "test": ([], [])}
    for number, line in enumerate(lines[1:], 2):
        split, *rest = line.split("\t")
        if split not in splits or len(rest) != 2:
            raise ValueError(
                f"{file}, line {number}: expected train or test, a label and a text, got {line!r}"
            )
        splits[split][0].append(rest[1])
        splits[split][1].append(rest[0])
    for split, (texts, _) in splits.items():
        if not texts:
            raise ValueError(f"{file} has no line of split {split!r}")
    names = tuple(sorted({*splits["train"][1], *splits["test"][1]}))
    codes = {label: code for code, label in enumerate(names)}
    train, test = ((texts, [codes[label] for label in own]) for texts, own in splits.values())
    return Sentences(names, train, test, sha256_of(file))


def _table(source: Source, contents: Sequence[bytes]) -> bytes:
    read = FORMATS[source.format]
    splits = [rows for raw in contents for rows in read(raw.decode(errors="replace"), source.names)]
    train, test = splits if len(splits) == 2 else _cut(splits[0])
    lines = ["\t".join(HEADER)]
    for split, rows in (("train", train), ("test", test)):
        lines += [f"{split}\t{label}\t{' '.join(text.split())}" for label, text in rows]
    return "".join(f"{line}\n" for line in lines).encode()


def _cut(rows: Rows) -> tuple[Rows, Rows]:
    """All rows in a random order: the first quarter is for testing, the rest for training."""
    order = np.random.default_rng(0).permutation(len(rows))
    train, test = order[len(rows) // 4 :], order[: len(rows) // 4]
    return [rows[row] for row in train], [rows[row] for row in test]
