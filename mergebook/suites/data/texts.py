"""Texts as tasks: predict the next character in Shakespeare, Wikipedia, Don Quijote, first names.

A text is one file ``NAME.txt`` (UTF-8) in the subfolder ``text`` of the folders where prepared sets
are looked for, else downloaded to the cache from the public repository that holds it, at a fixed
commit. It is cut into windows of 129 characters that do not overlap: the first 128 are the inputs,
the last 128 the labels. Splits are random windows, so a split says nothing about texts by other
hands.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mergebook.suites.data.pinned import RAW, download
from mergebook.suites.data.prepared import search_folders
from mergelib.hashing import sha256_of

CONTEXT = 128  # characters that a model sees
UNKNOWN = "\ufffd"  # stands for every character that is not in the vocabulary
CHARACTERS = UNKNOWN + "\n" + "".join(map(chr, range(32, 127))) + "áéíóúüñàïÁÉÍÓÚÜÑ¿¡«»—–"
_CODES = {character: code for code, character in enumerate(CHARACTERS)}


@dataclass(frozen=True)
class Text:
    """Where a text comes from: `url`, how the bytes there are encoded, and what they come to.

    `sha256` is that of the file that is made of them: UTF-8, without a header and a footer.
    """

    url: str
    sha256: str
    encoding: str = "utf-8"


TEXTS = {
    "tinyshakespeare": Text(
        f"{RAW}/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
        "/data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
    "wikitext2_test": Text(
        f"{RAW}/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8"
        "/word_language_model/data/wikitext-2/test.txt",
        "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    ),
    "don_quijote_es": Text(
        f"{RAW}/GITenberg/Don-Quijote_2000/7879f2c1653ec515d125f49b177c3ef7f596bc3f/2000-8.txt",
        "6b6980190ef34f73b2496bcbf530596a16cdc7ebc39d03f20c9a53a93d73f3f2",
        "latin-1",
    ),
    "names": Text(
        f"{RAW}/karpathy/makemore/988aa59e4d8fefa526d06f3b453ad116258398d4/names.txt",
        "0a30b5557f192f32ab962680889aac5f6fda0f4cecf40a6d0b5694f58ea8cc4d",
    ),
    "wikitext2_valid": Text(
        f"{RAW}/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8"
        "/word_language_model/data/wikitext-2/valid.txt",
        "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
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


def encode_pairs(texts: Sequence[str], vocabulary: int) -> list[Tensor]:
    """Codes of byte pairs that are learned on the texts themselves, int64 ``(N,)`` each.

    Bytes come first, merges follow in the order in which they were learned, so frequent ones before
    rare ones (Sennrich et al., 2016). Needs the package ``tokenizers``, which comes with
    ``mergelib[real]``.

    Args:
        texts: what to learn on, and to encode.
        vocabulary: size of the vocabulary, above 256.
    """
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
        data: the folder of prepared files (see `mergebook.suites.data.prepared`); texts are in
            ``text``.

    Raises:
        ValueError: for a text that is neither found nor to be had, or whose download is not what it
            was when its hash was taken.
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
    text = TEXTS[name]

    def body(contents: Sequence[bytes]) -> bytes:
        return _body(contents[0].decode(text.encoding)).encode()

    return download(f"text {name!r}", [text.url], body, text.sha256, folder / f"{name}.txt")


def _body(text: str) -> str:
    """The text without what Project Gutenberg puts around a book: header, credits, licence."""
    lines = text.replace("\r\n", "\n").split("\n")
    marks = [i for i, line in enumerate(lines) if line.startswith("*** ")]
    if len(marks) < 2:
        return text
    book = "\n".join(lines[marks[0] + 1 : marks[1]]).strip("\n")
    book = re.sub(r"\AProduced by .*?\n\n+", "", book, flags=re.DOTALL)
    return re.sub(r"\n+End of (the )?Project Gutenberg[^\n]*\Z", "", book) + "\n"
