"""Texts as tasks: predict the next character in Shakespeare, Wikipedia, Don Quijote, first names.

A text is one file ``NAME.txt`` (UTF-8) in the subfolder ``text`` of the folders where prepared sets
are looked for, else downloaded to the cache from the public repository that holds it, at a fixed
commit. It is cut into windows of 129 characters that do not overlap: the first 128 are the inputs,
the last 128 the labels. Splits are random windows, so a split says nothing about texts by other
hands.
"""

import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mergelib.data.prepared import search_folders
from mergelib.hashing import sha256_of
from mergelib.io import staged

CONTEXT = 128  # characters that a model sees
UNKNOWN = "\ufffd"  # stands for every character that is not in the vocabulary
CHARACTERS = UNKNOWN + "\n" + "".join(map(chr, range(32, 127))) + "áéíóúüñàïÁÉÍÓÚÜÑ¿¡«»—–"
_CODES = {character: code for code, character in enumerate(CHARACTERS)}
_RAW = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class Text:
    """Where a text comes from: `url`, and how the bytes there are encoded."""

    url: str
    encoding: str = "utf-8"


TEXTS = {
    "tinyshakespeare": Text(
        f"{_RAW}/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
        "/data/tinyshakespeare/input.txt"
    ),
    "wikitext2_test": Text(
        f"{_RAW}/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8"
        "/word_language_model/data/wikitext-2/test.txt"
    ),
    "don_quijote_es": Text(
        f"{_RAW}/GITenberg/Don-Quijote_2000/7879f2c1653ec515d125f49b177c3ef7f596bc3f/2000-8.txt",
        "latin-1",
    ),
    "names": Text(f"{_RAW}/karpathy/makemore/988aa59e4d8fefa526d06f3b453ad116258398d4/names.txt"),
    "wikitext2_valid": Text(
        f"{_RAW}/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8"
        "/word_language_model/data/wikitext-2/valid.txt"
    ),
}
TASKS = ("tinyshakespeare", "wikitext2_test", "don_quijote_es", "names")
PRETRAINING = "wikitext2_valid"  # no task


def encode(text: str) -> Tensor:
    """Codes of the characters, uint8 of shape ``(len(text),)``; 0 is an unknown one."""
    return torch.tensor([_CODES.get(character, 0) for character in text], dtype=torch.uint8)


def decode(codes: Tensor) -> str:
    """The text of codes, of any integer dtype, shape ``(N,)``."""
    return "".join(CHARACTERS[code] for code in codes.tolist())


def windows(text: str) -> tuple[Tensor, Tensor]:
    """Inputs uint8 and labels int64, both ``(N, 128)``: windows of a text, in its order.

    Raises:
        ValueError: for a text shorter than one window.
    """
    codes = encode(text)
    count = len(codes) // (CONTEXT + 1)
    if not count:
        raise ValueError(f"a text of {len(codes)} characters is shorter than a window")
    cut = codes[: count * (CONTEXT + 1)].view(count, CONTEXT + 1)
    return cut[:, :-1].contiguous(), cut[:, 1:].long()


def load_text(name: str, data: str | Path | None = None) -> tuple[str, str]:
    """A text and the SHA-256 of its file, which is downloaded where no folder holds it.

    Args:
        name: one of `TEXTS`.
        data: the folder of prepared files (see `mergelib.data.prepared`); texts are in ``text``.

    Raises:
        ValueError: for a text that is neither found nor to be had.
    """
    folders = [folder / "text" for folder in search_folders(data)]
    files = [folder / f"{name}.txt" for folder in folders if (folder / f"{name}.txt").is_file()]
    file = files[0] if files else _download(name, folders[-1])
    try:
        return file.read_bytes().decode(), sha256_of(file)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no UTF-8 text: {error}") from error


def split_windows(text: str, sizes: Sequence[int], seed: int) -> list[tuple[Tensor, Tensor]]:
    """Random windows of a text in disjoint parts of at most these sizes, the last one first.

    A text that has too few windows gives the later parts, which judge, at most a fifth each.
    """
    inputs, labels = windows(text)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    parts = []
    for size in reversed(sizes[1:]):
        count = min(size, len(labels) // 5)
        parts.append(order[:count])
        order = order[count:]
    parts.append(order[: sizes[0]])
    return [(inputs[rows], labels[rows]) for rows in reversed(parts)]


def _download(name: str, folder: Path) -> Path:
    target, text = folder / f"{name}.txt", TEXTS[name]
    try:
        with urllib.request.urlopen(text.url, timeout=60) as response:
            raw = response.read()
    except OSError as error:
        raise ValueError(
            f"text {name!r} is not in the data folder's subfolder 'text', and {text.url} "
            f"cannot be read: {error}"
        ) from error
    with staged(target) as draft:
        draft.write_text(_body(raw.decode(text.encoding)), encoding="utf-8", newline="\n")
    return target


def _body(text: str) -> str:
    """The text without the header and footer that Project Gutenberg puts around a book."""
    lines = text.replace("\r\n", "\n").split("\n")
    marks = [i for i, line in enumerate(lines) if line.startswith("*** ")]
    return "\n".join(lines[marks[0] + 1 : marks[-1]]).strip("\n") if len(marks) > 1 else text
