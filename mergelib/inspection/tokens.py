"""Bring models with different vocabularies to one, and write the tokenizer of the result."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mergelib.inspection.companions import folder_of
from mergelib.inspection.vocabularies import (
    change_json,
    read_added,
    read_fast,
    read_rows,
)
from mergelib.io import Checkpoint, Matched, WithAdapter
from mergelib.messages.brief import Brief
from mergelib.messages.warned import warn
from mergelib.statedict import StateDict, names_table

Places = dict[str | int, int]  # rows by token, or by their own number if they have no token

_PARTIAL = ("tokenizer_config.json", "added_tokens.json")  # list added tokens alone
_NOT_TOKENS = re.compile(r"pos|wpe|type", re.IGNORECASE)  # tables of positions and of segments
_PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
_PLAIN |= {"special": False}


@dataclass(frozen=True, repr=False)
class Vocabulary(Brief):
    """Models that are read with one vocabulary, and the tokenizer of their merge.

    Attributes:
        models: by name, the reference first.
        folder: whose tokenizer the result gets.
        added: what this tokenizer lacks: entries of tokenizer.json by row.
        places: the row of each token.
        sizes: the numbers of rows that the models had.
    """

    models: dict[str, Matched]
    folder: Path
    added: dict[int, dict[str, Any]]
    places: Places
    sizes: frozenset[int]

    def write(self, folder: Path) -> None:
        """Add tokens to the tokenizer that a folder has, and set the size in its config.json."""

        def resized(part: dict[str, Any]) -> dict[str, Any]:
            sizes = (k for k, v in part.items() if "vocab" in k and type(v) is int)
            return part | {k: len(self.places) for k in sizes if part[k] in self.sizes}

        change_json(
            folder / "config.json", lambda old: json.loads(json.dumps(old), object_hook=resized)
        )
        if not self.added:
            return
        listed = [{"id": row, **entry} for row, entry in self.added.items()]
        rows = {entry["content"]: row for row, entry in self.added.items()}
        decoder = {str(row): entry for row, entry in self.added.items()}
        change_json(
            folder / "tokenizer.json",
            lambda old: {**old, "added_tokens": [*(old.get("added_tokens") or []), *listed]},
        )
        change_json(folder / "added_tokens.json", lambda old: old and old | rows)
        name = "added_tokens_decoder"
        change_json(
            folder / "tokenizer_config.json",
            lambda old: {**old, name: old[name] | decoder} if old.get(name) else old,
        )


def match_vocabularies(
    models: Mapping[str, Checkpoint], paths: Mapping[str, str], tokenizer: str
) -> Vocabulary:
    """Return models whose tables are read in the order of one vocabulary.

    Args:
        models: by name, the reference first.
        paths: models' further names.
        tokenizer: ``"base"``, ``"union"``, or the name of the model that has the vocabulary.

    Raises:
        ValueError: for another name, a vocabulary or table that cannot be read, or a tokenizer that
            cannot be extended.

    Warns:
        UserWarning: about rows that are dropped, and ordinary tokens that become added ones.
    """
    names = {**paths, **{name: name for name in models}}
    names |= dict.fromkeys(("base", "union"), next(iter(models)))
    if tokenizer not in names:
        listed = ", ".join(map(repr, dict.fromkeys(("base", "union", *models))))
        raise ValueError(f"tokenizer is {tokenizer!r}, expected one of {listed}")
    owner = names[tokenizer]
    layouts = {name: model.layout for name, model in models.items()}
    sizes = {name: _size(name, layout) for name, layout in layouts.items()}
    folders = {name: _folder(name, model) for name, model in models.items()}
    places = {name: _places(folder, sizes[name]) for name, folder in folders.items()}
    entries = [*places[owner]]
    lacked = {
        name: [token for token in theirs if isinstance(token, str) and token not in places[owner]]
        for name, theirs in places.items()
    }
    added: dict[int, dict[str, Any]] = {}
    if tokenizer == "union" and any(lacked.values()):
        added = _united(folders, lacked, owner, sizes[owner])
        start, tokens = min(added), [entry["content"] for entry in added.values()]
        entries[start : start + len(tokens)] = tokens
    elif tokenizer != "union":
        _tell_of_dropped(tokenizer, owner, lacked)
    axes, matched = _axes(layouts, sizes), list[Matched]()
    for name, model in models.items():
        Matched(model, places[name], entries, axes, matched)
    return Vocabulary(
        dict(zip(models, matched, strict=True)),
        folders[owner],
        added,
        {entry: row for row, entry in enumerate(entries)},
        frozenset(sizes.values()),
    )


def _size(name: str, layout: StateDict) -> int:
    """Return the number of rows of a model's table of tokens."""
    shapes = [tuple(t.shape) for k, t in layout.items() if names_table(k) and not _other(k)]
    rows, columns = max((shape for shape in shapes if len(shape) == 2), default=(0, 1))
    if rows in (0, columns):
        what = f"as many rows as columns ({rows})" if rows else "no name that is known"
        raise ValueError(f"tokenizer= finds no table of tokens in {name}: it has {what}")
    return rows


def _other(key: str) -> bool:
    return _NOT_TOKENS.search(key) is not None


def _folder(name: str, model: Checkpoint) -> Path:
    """Return the folder of a model's tokenizer; an adapter may have that of its base."""
    with_base = [model, model.base] if isinstance(model, WithAdapter) else [model]
    for folder in filter(None, map(folder_of, with_base)):
        if any(file not in _PARTIAL for _, file in read_rows(folder).values()):
            return folder
    raise ValueError(
        f"tokenizer= finds no vocabulary of {name} in {model.path}: pass a folder with "
        "tokenizer.json (which AutoTokenizer.from_pretrained(...).save_pretrained(...) writes), "
        "vocab.json or vocab.txt"
    )


def _places(folder: Path, size: int) -> Places:
    """Return the row of each token, and of each row without one or with one that was before."""
    rows, places = read_rows(folder), Places()
    for row in range(size):
        token = rows[row][0] if row in rows else None
        places[row if token is None or token in places else token] = row
    return places


def _united(
    folders: Mapping[str, Path], lacked: Mapping[str, list[str]], owner: str, size: int
) -> dict[int, dict[str, Any]]:
    """Return what the owner's tokenizer lacks, by row, from the end of its own tokens."""
    folder, rows = folders[owner], read_rows(folders[owner])
    fast, own = read_fast(folder), [rows[row][0] for row in sorted(rows)]
    whole = all(sorted(numbers) == [*range(len(numbers))] for numbers in (fast, rows))
    if not (fast and whole and len({*own}) == len(own) <= size):
        raise ValueError(
            f"tokenizer='union' cannot extend the tokenizer of {owner} ({folder}): it needs a "
            "tokenizer.json, tokens numbered from 0 without a gap, and a row for each; pass "
            "tokenizer='base' or the name of a model"
        )
    wanted: dict[str, dict[str, Any]] = {}
    for name, further in ((owner, own[len(fast) :]), *lacked.items()):
        known = read_added(folders[name])
        ordinary = [token for token in further if token not in known and token not in wanted]
        if ordinary:
            warn(
                f"tokenizer='union' adds {len(ordinary)} ordinary tokens of {name}, such as "
                f"{ordinary[0]!r}: the result splits them off wherever they appear in a text"
            )
        for token in further:
            wanted.setdefault(token, {"content": token, **_PLAIN, **known.get(token, {})})
    return dict(enumerate(wanted.values(), len(fast)))


def _tell_of_dropped(tokenizer: str, owner: str, lacked: Mapping[str, list[str]]) -> None:
    for name, tokens in lacked.items():
        if tokens:
            shown = ", ".join(map(repr, tokens[:5])) + (", …" if len(tokens) > 5 else "")
            warn(
                f"tokenizer={tokenizer!r} drops rows of {name}, because {owner} lacks their tokens "
                f"({len(tokens)}): {shown}"
            )


def _axes(layouts: Mapping[str, StateDict], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the tensors with a row for each token, and the axis of the rows.

    These are known by their length in all models. Where it is the same in all, a numbered layer
    is such a tensor only if its name says so.
    """
    axes = {}
    for key in dict.fromkeys(key for layout in layouts.values() for key in layout):
        having = [name for name in layouts if key in layouts[name]]
        found = {_axis(tuple(layouts[name][key].shape), sizes[name]) for name in having}
        apart = len({sizes[name] for name in having}) > 1
        layer = re.search(r"\.\d+\.", key) and not (names_table(key) or "head" in key)
        if len(found) == 1 and None not in found and (apart or not (layer or _other(key))):
            axes[key] = found.pop()
    return axes


def _axis(shape: tuple[int, ...], size: int) -> int | None:
    """Return the axis of the tokens; a bias may have it last."""
    return 0 if shape[:1] == (size,) else 1 if shape == (1, size) else None
