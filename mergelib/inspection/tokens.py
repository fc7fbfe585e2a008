"""Bring models with different vocabularies to one, with its tokenizer and a chat template."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mergelib.inspection.companions import CHAT, folder_of, tell_of_companions, usage_of
from mergelib.inspection.vocabularies import fast_rows, read_json, read_rows
from mergelib.io.matched import Matched
from mergelib.messages.warned import warn
from mergelib.statedict import StateDict, layout_of, names_table

Files = dict[str, dict[str, Any]]  # new entries of JSON files
Places = dict[str | int, int]  # rows by token, or by their own number if they have no token
Matching = tuple[Mapping[str, StateDict], Path | None, Files, Places, list[int]]

_PARTIAL = ("tokenizer_config.json", "added_tokens.json")  # list added tokens alone
_COUNTED = re.compile(r"\S\s\d+$")  # a line of fairseq's dictionaries, not numbered from 0
_NOT_TOKENS = re.compile(r"pos|wpe|type|relative", re.IGNORECASE)  # positions and segments
_SPECIAL = ("extra_special_tokens", "additional_special_tokens")  # of transformers 5, and before
_PLAIN = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False) | {"normalized": True}


def match_vocabularies(
    models: Mapping[str, StateDict], names: Mapping[str, str], tokenizer: str | None
) -> Matching:
    """Return models, the reference first, with the vocabulary of the one that a name or path means.

    Also returned are the folder of its tokenizer, new entries of files there, the row of each
    token, and how many rows the models had. A vocabulary that cannot be read is a ValueError.
    """
    if tokenizer is None:
        return models, None, {}, {}, []
    names = {**names, **dict.fromkeys(("base", "union"), next(iter(models)))}
    if tokenizer not in names:
        listed = ", ".join(map(repr, ("base", "union", *models)))
        raise ValueError(f"tokenizer is {tokenizer!r}, expected one of {listed}")
    owner, layouts = names[tokenizer], {name: layout_of(model) for name, model in models.items()}
    sizes = {name: _size(name, layout) for name, layout in layouts.items()}
    folders = {name: _folder(name, model) for name, model in models.items()}
    places = {name: places_in(folder, sizes[name]) for name, folder in folders.items()}
    entries, files, lacked = [*places[owner]], Files(), dict[str, list[str]]()
    for name, theirs in places.items():
        further = [token for token in theirs if token not in places[owner]]
        lacked[name] = tokens = [token for token in further if isinstance(token, str)]
        if tokens and tokenizer != "union":
            warn(
                f"tokenizer={tokenizer!r} drops {len(tokens)} of {len(theirs)} rows of {name}, "
                f"whose tokens {owner} lacks: {', '.join(map(repr, tokens[:5]))}"
            )
    if tokenizer == "union" and any(lacked.values()):
        files = _united(folders, lacked, owner, sizes[owner])
        for entry in files["tokenizer.json"]["added_tokens"]:
            entries[entry["id"] : entry["id"] + 1] = [entry["content"]]
    tables, matched = _tables(layouts, sizes), dict[str, Matched]()
    for name, model in models.items():
        rows = [places[name].get(entry, -1) for entry in entries]
        matched[name] = Matched(model, rows, tables, matched)
    united = {entry: row for row, entry in enumerate(entries)}
    return matched, folders[owner], files, united, [*sizes.values()]


def _size(name: str, layout: StateDict) -> int:
    tables = [t.shape for k, t in layout.items() if names_table(k) and not _NOT_TOKENS.search(k)]
    rows, columns = max((tuple(shape) for shape in tables if len(shape) == 2), default=(0, 0))
    if rows == columns:
        raise ValueError(f"tokenizer= finds no table of tokens in {name} by its name and shape")
    return rows


def _folder(name: str, model: StateDict) -> Path:
    for folder in filter(None, map(folder_of, (model, getattr(model, "base", None)))):  # adapters'
        listed = read_rows(folder).values()
        if any(file not in _PARTIAL and not _COUNTED.search(token) for token, file in listed):
            return folder
    path = getattr(model, "path", "memory")
    raise ValueError(
        f"tokenizer= finds no vocabulary of {name} in {path}: pass a folder with vocab.json, "
        "vocab.txt (a token per line) or tokenizer.json, which transformers writes if there is "
        "only a tokenizer.model: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    )


def places_in(folder: Path, size: int | None = None) -> Places:
    """Return the row of each token, and of each row without one or with one that was before."""
    rows, places = read_rows(folder), Places()
    for row in range(max(rows, default=-1) + 1 if size is None else size):
        token = rows.get(row, (row, ""))[0]
        places[row if token in places else token] = row
    return places


def _united(
    folders: Mapping[str, Path], lacked: Mapping[str, list[str]], owner: str, size: int
) -> Files:
    """Return the entries of files by which the owner's tokenizer has the other models' tokens."""
    folder, rows = folders[owner], read_rows(folders[owner])
    own = [rows[row][0] for row in sorted(rows)]
    content = _tokenizer(owner, folder)
    fast = fast_rows(content)
    start, whole = len(fast), max(fast, default=0) < len(fast)
    if not whole or sorted(rows) != [*range(len({*own}))] or len(own) > size:
        raise ValueError(
            f"tokenizer='union' cannot extend that of {owner} ({folder}): it needs a "
            "tokenizer.json with tokens numbered from 0 without a gap, and a row for each"
        )
    added: Files = {}
    for name, tokens in ((owner, own[start:]), *lacked.items()):
        listed = _tokenizer(name, folders[name]).get("added_tokens") or [] if tokens else []
        known = {entry["content"]: entry for entry in listed}
        for token in tokens:
            entry = known.get(token, {})
            flags = {flag: entry.get(flag, usual) for flag, usual in _PLAIN.items()}
            added.setdefault(token, {"content": token, **flags})
    listed = content.get("added_tokens") or []
    new = [{**entry, "id": row} for row, entry in enumerate(added.values(), start)]
    config = _united_special(folders, owner, added)
    if decoder := read_json(folder / "tokenizer_config.json").get("added_tokens_decoder"):
        further = {str(row): entry for row, entry in enumerate(added.values(), start)}
        config["added_tokens_decoder"] = {**decoder, **further}
    content |= {"added_tokens": [*listed, *new]}
    return {"tokenizer.json": content, "tokenizer_config.json": config}


def _tokenizer(name: str, folder: Path) -> dict[str, Any]:
    """Return a folder's tokenizer.json, which transformers makes of other files if it has none."""
    if (folder / "tokenizer.json").is_file():
        return read_json(folder / "tokenizer.json")
    try:
        from transformers import AutoTokenizer

        made = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        ).backend_tokenizer.to_str()
        content: dict[str, Any] = json.loads(made)
        if fast_rows(content) == {row: token for row, (token, _) in read_rows(folder).items()}:
            return content
        problem = "it numbers tokens in another way"
    except Exception as error:  # transformers raises many kinds
        problem = " ".join(str(error).split())
    raise ValueError(
        f"tokenizer='union' needs a tokenizer.json of {name}, and transformers makes none of the "
        f"files in {folder} ({problem}): write it where transformers can "
        "(AutoTokenizer.from_pretrained(folder).save_pretrained(folder)), or pass tokenizer='base'"
    )


def _united_special(folders: Mapping[str, Path], owner: str, added: Files) -> dict[str, Any]:
    """Return the owner's list of special tokens with the added ones that other models list."""
    lists = []
    for name in dict.fromkeys((owner, *folders)):
        config = read_json(folders[name] / "tokenizer_config.json")
        lists += [(name, e, config[e]) for e in _SPECIAL if isinstance(config.get(e), list)]
    own = [token for name, _, listed in lists if name == owner for token in listed]
    known = {*map(_text, own)}
    tokens = dict.fromkeys(_text(token) for _, _, listed in lists for token in listed)
    new = [token for token in tokens if token in added and token not in known]
    return {lists[0][1]: [*own, *new]} if new else {}


def _text(token: Any) -> str:
    return str(token.get("content") if isinstance(token, dict) else token)


def _tables(layouts: Mapping[str, StateDict], sizes: Mapping[str, int]) -> set[str]:
    """Return the tensors with a row per token, known by length, or if all are equal, also name."""
    tables: set[str] = set()
    for key in dict.fromkeys(key for layout in layouts.values() for key in layout):
        found = {(m[key].shape[:1], (sizes[name],)) for name, m in layouts.items() if key in m}
        layer = re.search(r"\.\d+\.", key) and not (names_table(key) or "head" in key)
        named = not (layer or _NOT_TOKENS.search(key))
        if (named or len(found) > 1) and all(shape == size for shape, size in found):
            tables.add(key)
    return tables


def choose_files(
    models: Mapping[str, object],
    owners: Mapping[str, Sequence[str]],
    matching: Matching,
    names: Mapping[str, str],
    chat_template: str | None,
) -> tuple[Path | None, Files]:
    """Return the folder whose files a result gets, if any, and entries for its chat template.

    It is that of the tokenizer, of the first of ``owners``, or of the first model that has one.
    Raises what `read_chat` raises, or else warns as `tell_of_companions` does.
    """
    _, own, _, places, _ = matching
    folders = {name: folder_of(model) for name, model in models.items()}
    candidates = [*(folders[first] for first, *_ in [*owners.values()][:1]), *folders.values()]
    if own is not None and (own / "config.json").is_file():  # and not that of an adapter
        candidates.insert(0, own)
    origin = next(filter(None, candidates), None)
    experts = {name: model for name, model in models.items() if name != "pretrained"}
    rows = places if places or origin is None else places_in(origin)
    chat = read_chat(chat_template, {name: folders[name] for name in experts}, names, rows)
    if origin is not None and not chat:
        tell_of_companions(origin, experts)
    return origin, chat


def read_chat(
    chosen: str | None, folders: Mapping[str, Path | None], names: Mapping[str, str], rows: Places
) -> Files:
    """Return entries of files: the chat template and end token of experts that agree, or of one.

    ``rows`` are those of the result's tokens.
    """
    if chosen is None:
        return {}
    kinds = {n: [usage_of(f)[item] for item in CHAT] for n, f in folders.items() if f}
    asked = [*folders] if chosen == "experts" else [names.get(chosen, "")]
    (template, end), *others = [kinds.get(name, [None, None]) for name in asked]
    if not template or any(other != [template, end] for other in others):
        raise ValueError(
            f"chat_template={chosen!r} does not decide on one chat template and end token: pass "
            f"an expert that has them ({', '.join(n for n in kinds if kinds[n][0]) or 'none'})"
        )
    folder = folders[asked[0]] or Path()
    tokens = {number: token for number, (token, _) in read_rows(folder).items()}

    def row(number: Any) -> Any:
        token = tokens.get(number, number)
        if rows and token is not None and token not in rows:
            raise ValueError(
                f"the result has no row for {token!r}, an end token of {asked[0]}: pass "
                f"tokenizer='union' or tokenizer={asked[0]!r}"
            )
        return rows.get(token, number)

    special = {"eos_token": end} if end and row(end) is not None else {}
    files = {"tokenizer_config.json": {"chat_template": template, **special}}
    files["special_tokens_map.json"] = special
    for file in ("config.json", "generation_config.json"):
        ids = read_json(folder / file).get("eos_token_id")
        new = [*map(row, ids)] if isinstance(ids, list) else row(ids)
        files[file] = {} if ids is None else {"eos_token_id": new}
    return files


def write_files(folder: Path, files: Files) -> None:
    """Change entries of JSON files; a chat template replaces others, wherever they are."""
    for file, entries in files.items():
        content = read_json(folder / file)
        if entries and (content or entries.keys() & {"chat_template", "model"}):
            (folder / file).write_text(json.dumps({**content, **entries}, indent=2))
        if template := entries.get("chat_template"):
            (folder / "chat_template.json").unlink(missing_ok=True)
            (folder / "chat_template.jinja").unlink(missing_ok=True)
            if isinstance(template, str):  # and not several with names
                (folder / "chat_template.jinja").write_text(template, "utf-8")
