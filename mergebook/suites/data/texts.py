"""Texts as tasks: predict the next character in Shakespeare, Wikipedia, Don Quijote, first names.

A file ``text/NAME.txt`` (UTF-8) is found like prepared sets, else downloaded, and cut into windows
of 129 characters: 128 inputs, and labels one further.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from mergebook.suites.data.origins import download, records
from mergebook.suites.data.prepared import find, search_folders
from mergelib.hashing import sha256_of

CONTEXT = 128  # characters that a model sees
UNKNOWN = "\ufffd"  # stands for every character that is not in the vocabulary
CHARACTERS = UNKNOWN + "\n" + "".join(map(chr, range(32, 127))) + "áéíóúüñàïÁÉÍÓÚÜÑ¿¡«»—–"
_CODES = {character: code for code, character in enumerate(CHARACTERS)}


@dataclass(frozen=True)
class Text:
    """Where a text comes from, and the hash of the file that is made of it."""

    url: str
    sha256: str
    encoding: str = "utf-8"


TEXTS = records("texts", Text)
*TASKS, PRETRAINING = TEXTS


def encode(text: str) -> Tensor:
    """Codes of the characters, uint8 of shape ``(len(text),)``; 0 is an unknown one."""
    return torch.tensor([_CODES.get(character, 0) for character in text], dtype=torch.uint8)


def encode_pairs(texts: Sequence[str], vocabulary: int) -> list[Tensor]:
    """int64 codes of byte pairs learned on the texts themselves (Sennrich et al., 2016)."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return [torch.tensor(tokenizer.encode(text).ids) for text in texts]


def windows(text: str) -> tuple[Tensor, Tensor]:
    """Inputs uint8 and labels int64, both ``(N, 128)``: windows of a text, in its order."""
    codes = encode(text)
    count = len(codes) // (CONTEXT + 1)
    if not count:
        raise ValueError(f"a text of {len(codes)} characters is shorter than a window")
    cut = codes[: count * (CONTEXT + 1)].view(count, CONTEXT + 1)
    return cut[:, :-1].contiguous(), cut[:, 1:].long()


def load_text(name: str, data: str | Path | None = None) -> tuple[str, str]:
    """A text and the SHA-256 of its file, which is downloaded where no folder holds it."""
    path = f"text/{name}.txt"
    file = find(path, data) or _download(name, search_folders(data)[-1] / path)
    try:
        return file.read_bytes().decode(), sha256_of(file)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no UTF-8 text: {error}") from error


def split_windows(text: str, sizes: Sequence[int], seed: int) -> list[tuple[Tensor, Tensor]]:
    """Random windows in disjoint parts of at most these sizes; later ones get at most a fifth."""
    inputs, labels = windows(text)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    counts = [min(size, len(labels) // 5) for size in reversed(sizes[1:])]
    *later, rest = order.split([*counts, len(order) - sum(counts)])
    return [(inputs[rows], labels[rows]) for rows in (rest[: sizes[0]], *reversed(later))]


def _download(name: str, target: Path) -> Path:
    text = TEXTS[name]
    make = partial(_body, text.encoding)
    return download(f"text {name!r}", [text.url], make, text.sha256, target)


def _body(encoding: str, contents: Sequence[bytes]) -> bytes:
    """The text without what Project Gutenberg puts around a book: header, credits, licence."""
    text = contents[0].decode(encoding)
    lines = text.replace("\r\n", "\n").split("\n")
    marks = [i for i, line in enumerate(lines) if line.startswith("*** ")]
    if len(marks) < 2:
        return text.encode()
    book = "\n".join(lines[marks[0] + 1 : marks[1]]).strip("\n")
    book = re.sub(r"\AProduced by .*?\n\n+", "", book, flags=re.DOTALL)
    book = re.sub(r"\n+End of (the )?Project Gutenberg[^\n]*\Z", "", book)
    return f"{book}\n".encode()
