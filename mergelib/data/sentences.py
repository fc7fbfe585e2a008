"""Sentences to classify: eight public sets of opinions, questions, news and requests.

A set is one file ``NAME.tsv`` (UTF-8, tab-separated) in the subfolder ``sentences`` of the folders
where prepared sets are looked for. Its header is ``split, label, text``; a split is ``train`` or
``test``, and a label is a name in words, so that a sentence encoder can read it.
"""

from dataclasses import dataclass
from pathlib import Path

from mergelib.data.prepared import search_folders
from mergelib.hashing import sha256_of
from mergelib.messages.brief import Brief

TASKS = ("sst2", "trec", "subj", "cr", "mpqa", "banking77", "agnews", "clinc150")
HEADER = ("split", "label", "text")


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
    """A set of sentences; class names in alphabetical order.

    Args:
        name: one of `TASKS`.
        data: the folder of prepared files (see `mergelib.data.prepared`); these are in
            ``sentences``.

    Raises:
        ValueError: for a set that is not found, or a file that is none; it names file and line.
    """
    folders = [folder / "sentences" for folder in search_folders(data)]
    for folder in folders:
        if (folder / f"{name}.tsv").is_file():
            return read_sentences(folder / f"{name}.tsv")
    places = ", ".join(map(str, folders))
    raise ValueError(f"sentences {name!r} are not found: no {name}.tsv in {places}")


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
