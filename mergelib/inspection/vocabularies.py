"""Compare the tokens of table rows and the labels of head rows between models."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mergelib.messages.warned import warn
from mergelib.statedict import Misfit, names_table

Shapes = Mapping[str, tuple[int, ...]]
Rows = dict[int, str]

_LISTS = re.compile(r"(vocab|token|encoder|(?<!pre)dict)[\w-]*\.(txt|json)$")
_WHOLE = re.compile(r"\.(model|spm|bpe|codes|tiktoken)$|^merges\.txt$")  # compared as they are
TOKENS = re.compile(f"{_LISTS.pattern}|{_WHOLE.pattern}")  # names of files that are read here
_CONTENT = {"tokenizer.json", "tokenizer_config.json"}
_PLACEHOLDER = re.compile(r"^LABEL_\d+$")


def check_vocabularies(folders: Mapping[str, Path | None], shapes: Shapes) -> None:
    """Compare the tokens of merged tables row by row, over all files of a tokenizer.

    Raises:
        ValueError: if a token moved to another row, or most tokens differ.

    Warns:
        UserWarning: about a few rows with other tokens, and about files that split text
            differently.
    """
    longest = max(
        (s[0] for key, s in shapes.items() if len(s) == 2 and names_table(key)), default=0
    )
    first: dict[int, tuple[str, str, str]] = {}  # row -> token, model, file
    places: dict[str, int] = {}
    wholes: dict[str, tuple[str, bytes]] = {}
    for name, folder in folders.items():
        if folder is None or not longest:
            continue
        rows = {row: known for row, known in read_rows(folder).items() if row < longest}
        other = {row: k for row, k in rows.items() if first.get(row, k)[0] != k[0]}
        if other:
            moved = {row: k for row, k in other.items() if places.get(k[0], row) != row}
            shared = sum(row in first for row in rows)
            row, (token, file) = next(iter(sorted((moved or other).items())))
            old, what, where = first[row]
            more = f" (and {len(other) - 1} more rows differ)" if len(other) > 1 else ""
            text = (
                f"row {row} is the token {token!r} in {name} ({file}) and {old!r} in {what} "
                f"({where}){more}"
            )
            if moved or 2 * len(other) > shared:
                raise Misfit(
                    f"{text}: rows of different tokens would be averaged; tokenizer='base' or "
                    "tokenizer='union' merges files token by token, exclude= leaves the tables out",
                    tokenizer="union",
                )
            warn(
                f"{text}: the merged tables mix both tokens in this row; tokenizer='union' gives "
                "each a row",
                tokenizer="union",
            )
        new = [token for token, _ in rows.values() if token not in places]
        if new and len(rows) < 2 * len(places) and not other:
            warn(
                f"{name} has tokens that the tokenizer of {next(iter(first.values()))[1]} lacks "
                f"({', '.join(map(repr, new[:5]))}), so the files of the result do not have them, "
                "either: pass tokenizer='union' to keep them",
                tokenizer="union",
            )
        for row, (token, file) in rows.items():
            first.setdefault(row, (token, name, file))
            places.setdefault(token, row)
        for file, content in _wholes(folder).items():
            what, expected = wholes.setdefault(file, (name, content))
            if content != expected:
                warn(
                    f"{file} of {name} differs from that of {what}: the models split text "
                    "differently, so the merged model sees tokens that one of them was not "
                    "trained with"
                )


def read_rows(folder: Path) -> dict[int, tuple[str, str]]:
    """Map rows to their token and the file that defines it."""
    rows: dict[int, tuple[str, str]] = {}
    for file in sorted(folder.iterdir(), key=lambda file: (file.name not in _CONTENT, file.name)):
        for row, token in _read(file).items():
            rows.setdefault(row, (token, file.name))
    return rows


def _read(file: Path) -> Rows:
    """Map rows to tokens for one file; empty if it lists none."""
    if not file.is_file() or not _LISTS.search(file.name):
        return {}
    if file.suffix == ".txt":
        lines = file.read_text("utf-8", "replace").removesuffix("\n").split("\n")
        return dict(enumerate(lines))
    try:
        content = read_json(file)
    except ValueError:
        if file.name in _CONTENT or "vocab" in file.name:
            raise
        return {}
    if file.name == "tokenizer.json":
        return fast_rows(content)
    if file.name == "tokenizer_config.json":
        added = content.get("added_tokens_decoder")
        added = added if isinstance(added, dict) else {}
        return {int(i): t["content"] for i, t in added.items() if i.isdigit() and "content" in t}
    return _numbered(content)


def fast_rows(content: Mapping[str, Any]) -> Rows:
    """Map rows to tokens for the content of a tokenizer.json."""
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    rows: Rows = {}
    if isinstance(vocabulary, dict):
        rows = _numbered(vocabulary)
    elif isinstance(vocabulary, list):  # of pairs, a token with its score
        rows = {row: str(pair[0]) for row, pair in enumerate(vocabulary) if pair}
    for token in content.get("added_tokens") or []:
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            rows[token["id"]] = str(token.get("content"))
    return rows


def _numbered(content: Mapping[str, Any]) -> Rows:
    """Invert a mapping of tokens to numbers."""
    rows = {number: token for token, number in content.items() if type(number) is int}
    return rows if 0 < len(rows) == len(content) else {}


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty one if there is none."""
    content = load_json(file)
    return content if isinstance(content, dict) else {}


def load_json(file: Path) -> Any:
    """Return the content of a JSON file, None if it does not exist; ValueError if it is damaged."""
    try:
        return json.loads(file.read_bytes())
    except OSError:
        return None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{file} is not JSON, so it is damaged or half written: copy or download it again "
            f"({error})"
        ) from None


def _wholes(folder: Path) -> dict[str, bytes]:
    """Return the files that define how text is split, in a normal form."""
    files = {f.name: f.read_bytes() for f in folder.iterdir() if _WHOLE.search(f.name)}
    model = read_json(folder / "tokenizer.json").get("model")
    if isinstance(model, dict) and model.get("merges"):
        pairs = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
        files["tokenizer.json: merges"] = json.dumps(pairs).encode()
    return files


def check_labels(configurations: Mapping[str, Mapping[str, Any]], shapes: Shapes) -> None:
    """Compare the labels of merged heads: another order is a ValueError, other labels a warning."""
    first: tuple[str, dict[str, str]] | None = None
    for name, config in configurations.items():
        labels = config.get("id2label")
        if not isinstance(labels, dict) or not labels:
            continue
        row_labels = {str(row): str(label) for row, label in labels.items()}
        heads = [
            key for key, s in shapes.items() if s[:1] == (len(row_labels),) and not names_table(key)
        ]
        if not heads or all(_PLACEHOLDER.search(label) for label in row_labels.values()):
            continue
        what, expected = first = first or (name, row_labels)
        row = next((r for r in row_labels if row_labels[r] != expected.get(r)), None)
        if row is None or len(row_labels) != len(expected):
            continue
        text = (
            f"config.json: id2label says that row {row} of {heads[0]!r} is {row_labels[row]!r} in "
            f"{name} and {expected.get(row)!r} in {what}"
        )
        if {*row_labels.values()} == {*expected.values()}:
            raise ValueError(
                f"{text}: rows of different labels would be averaged, so bring the heads to one "
                "order, or leave them out with exclude="
            )
        warn(f"{text}: heads of different tasks are merged; exclude= leaves them out")
