"""Compare the files beside weights, and copy those that a merged model needs.

Models of equal keys and shapes may differ in the number of attention heads, the base of rotary
positions, or the token of each table row. Only these files say so. They are read, never executed.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from torch import nn

from mergelib.hashing import sha256_of
from mergelib.inspection.configurations import check_configurations, check_dropped, pooling_in_words
from mergelib.inspection.vocabularies import (
    TOKENS,
    check_labels,
    check_vocabularies,
    load_json,
    read_json,
)
from mergelib.io.checkpoint import WHOLE, split_key
from mergelib.io.files import InputFile, input_file
from mergelib.io.hub import ENDS, LICENCES
from mergelib.io.matched import Matched
from mergelib.io.models import parts_of
from mergelib.messages.warned import warn
from mergelib.statedict import StateDict

WEIGHTS = re.compile(r"\.(safetensors|bin|pt|pth|ckpt|pkl|h5|msgpack|gguf|onnx)(\.index\.json)?$")
# What a model is loaded with, and its licence; neither its card nor what its training reported.
_NEEDED = re.compile(rf"\.({'|'.join(ENDS)})$|^({'|'.join(LICENCES)})", re.IGNORECASE)
_NEEDLESS = re.compile(
    r"^\.|^readme|^trainer_state|_results\.(json|txt)$|^adapter_|^recipe\.y|^mergekit_config", re.I
)
_READ = re.compile(  # weights, adapters and what is read beside them, copied or not
    r"^adapter_|\.(safetensors|bin)(\.index\.json)?$|^chat_template\.|" + TOKENS.pattern + "|"
    r"^(config|config_sentence_transformers|generation_config|modules)\.json$"
)

CHAT = ("the chat template", "tokenizer_config.json: eos_token")  # what usage_of names so


def folder_of(model: object) -> Path | None:
    """Return the model folder that a model is, or whose only weight file it is; else None."""
    path = getattr(model, "path", model)
    if not isinstance(path, str | Path):
        return None
    path, _ = split_key(path)
    if path.is_dir():
        return path
    beside = path.name in WHOLE and (path.parent / "config.json").is_file()
    return path.parent if beside else None


def check_companions(
    models: Mapping[str, object], layout: StateDict, merged: Set[str], kept: Set[str]
) -> None:
    """Refuse or warn about models whose files or modules give weights different meanings.

    The models are named as the caller was given them, the reference first; ``layout`` holds the
    reference's shapes and ``kept`` the keys of the result.

    Raises:
        ValueError: if architectures or numbers of heads differ, tokens or labels stand in other
            rows, or a layer is left out that the configuration requires. The message names file and
            key.
    """
    documents = {name: _documents(model) for name, model in models.items()}
    check_configurations(documents)
    check_dropped(next(iter(documents.values())), layout.keys() - kept)
    shapes = {key: tuple(layout[key].shape) for key in merged if key in layout}
    check_labels({name: files.get("config.json", {}) for name, files in documents.items()}, shapes)
    unmatched = {name: model for name, model in models.items() if not isinstance(model, Matched)}
    check_vocabularies({name: folder_of(model) for name, model in unmatched.items()}, shapes)


def _documents(model: object) -> dict[str, dict[str, Any]]:
    """Return a model's configurations by file name; for a module, what its file would hold."""
    config = getattr(model, "config", None) if isinstance(model, nn.Module) else None
    if config is not None and hasattr(config, "to_dict"):
        content = config.to_dict()
        return {"config.json": json.loads(json.dumps(content, default=str))}
    folder = folder_of(model)
    if folder is None:
        return {}
    files = {"config.json": read_json(folder / "config.json")}
    version = read_json(folder / "config_sentence_transformers.json").get("__version__")
    for part in module_folders(folder):
        if content := read_json(folder / part / "config.json"):
            version_of = {"transformers_version": version}
            files[f"{part}/config.json"] = {**pooling_in_words(content), **version_of}
    return {name: content for name, content in files.items() if content}


def module_folders(folder: Path) -> list[str]:
    """Return the folders inside a model's folder that it is loaded with (Sentence-Transformers)."""
    names = [str(module.get("path", "")) for module in _modules(folder)]
    names.append("additional_chat_templates")  # of transformers
    inside = [name for name in names if name not in ("", "..") and Path(name).name == name]
    return [name for name in inside if (folder / name).is_dir()]


def _modules(folder: Path) -> list[dict[str, Any]]:
    modules = load_json(folder / "modules.json")
    fits = isinstance(modules, list) and all(isinstance(module, dict) for module in modules)
    return modules if fits else []


def module_weights(models: Mapping[str, object]) -> dict[str, dict[str, Path]]:
    """Return the modules' folders whose weights differ, with the file of every model.

    Raises:
        ValueError: if a model has no weights there, or shards.
    """
    files: dict[str, dict[str, list[Path]]] = {}
    folders = {name: folder for name, m in models.items() if (folder := folder_of(m)) is not None}
    for name, folder in folders.items():
        for part in module_folders(folder):
            for file in sorted(f for f in (folder / part).rglob("*") if WEIGHTS.search(f.name)):
                own = files.setdefault(str(file.parent.relative_to(folder)), {})
                own.setdefault(name, []).append(file)
    differing: dict[str, dict[str, Path]] = {}
    for part, own in files.items():
        lost = next(iter(folders)) not in own and not folders.keys() - {"pretrained"} <= own.keys()
        if len({tuple(map(sha256_of, found)) for found in own.values()}) == 1 and not lost:
            continue
        for name in models:
            if name not in own or "-of-" in own[name][0].name:
                lack = "has shards of" if name in own else "has no"
                raise ValueError(
                    f"{name} {lack} weights in {part}, where {' and '.join([*own][:2])} "
                    f"{'hold different ones' if len(own) > 1 else 'has some'}: merge these files "
                    "by themselves, and use a file ending in .safetensors as output of the rest"
                )
        differing[part] = {name: found[0] for name, found in own.items()}
    return differing


def copy_needed(origin: Path, folder: Path, *, modules: bool) -> None:
    """Copy configuration, tokenizer and licence; with ``modules`` also module folders."""
    for part in module_folders(origin) if modules else []:
        (folder / part).mkdir(parents=True, exist_ok=True)
    for file in _needed(origin, modules=modules):
        copy = folder / file.relative_to(origin)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())


def _needed(folder: Path, *, modules: bool) -> list[Path]:
    files = [f for f in folder.iterdir() if _NEEDED.search(f.name) and not WEIGHTS.search(f.name)]
    for part in module_folders(folder) if modules else []:
        files += (folder / part).rglob("*")
    return [file for file in files if file.is_file() and not _NEEDLESS.search(file.name)]


def stamped(models: Iterable[object], *, copied: bool = False) -> list[InputFile]:
    """Return the files that a merge of these models reads, as they are before it reads any.

    With ``copied`` they are those that a result may get; see `copies_of`.
    """
    given = [model for model in models if isinstance(model, str | os.PathLike)]
    paths = [path for model in given for path in parts_of(model)]
    files = {file for path in paths if (file := split_key(path)[0]).is_file()}
    for folder in filter(None, map(folder_of, paths)):
        needed = _needed(folder, modules=True)
        files |= {f for f in needed if copied or f.parent != folder or _READ.search(f.name)}
        files |= {f for f in folder.iterdir() if _READ.search(f.name) and f.is_file()}
    return [input_file(file) for file in sorted(files)]


def copies_of(files: Iterable[InputFile], *folders: Path | None) -> list[InputFile]:
    """Return the files in some folders, from which a result is copied."""
    return [file for file in files if {*file.path.parents} & {*folders}]


def check_all(files: Iterable[InputFile]) -> None:
    """Raise ``ValueError`` if one of the files changed since they were `stamped`.

    So a result is not written if it was made of two versions of an input, such as old weights and
    the new configuration that another program writes beside new ones.
    """
    for file in files:
        file.check()


def tell_of_companions(origin: Path, experts: Mapping[str, object]) -> None:
    """Warn if the experts agree on how to be used and the copied folder differs from them."""
    folders = [folder for folder in map(folder_of, experts.values()) if folder is not None]
    if not folders:
        return
    ours, theirs = usage_of(origin), [usage_of(folder) for folder in folders]
    differing = [
        item
        for item in theirs[0]
        if all(other[item] == theirs[0][item] for other in theirs)
        and theirs[0][item] not in (None, [], ours[item])
    ]
    if differing:
        first = differing[0]
        chat = first == CHAT[0] or CHAT[1] in differing
        agreed = all(other[item] == theirs[0][item] for other in theirs for item in CHAT)
        chosen = chat and agreed and bool(theirs[0][CHAT[0]])
        warn(
            f"the experts agree on {' and '.join(differing)}, and {origin}, whose files the result "
            f"gets, differs ({first}: {_short(theirs[0][first])} against {_short(ours[first])}): "
            f"copy these files from {folders[0]} if the result is to be used as the experts are"
            + (", or pass chat_template='experts' for their chat template and end token" * chosen),
            **({"chat_template": "experts"} if chosen else {}),
        )


def usage_of(folder: Path) -> dict[str, Any]:
    """Return how a model's folder says that the model is used, by file and entry."""
    tokenizer = read_json(folder / "tokenizer_config.json")
    template = folder / "chat_template.jinja"
    chat: Any = template.read_text("utf-8", "replace") if template.is_file() else None
    chat = chat or read_json(folder / "chat_template.json").get("chat_template")
    generation = read_json(folder / "generation_config.json")
    config = read_json(folder / "config.json")
    usage = {CHAT[0]: chat or tokenizer.get("chat_template")}
    for token in ("bos_token", "eos_token", "pad_token"):
        text = tokenizer.get(token)
        usage[f"tokenizer_config.json: {token}"] = (
            text.get("content") if isinstance(text, dict) else text
        )
        entry = f"{token}_id"
        usage[f"config.json: {entry}"] = config.get(entry)
        usage[f"generation_config.json: {entry}"] = generation.get(entry)
    kinds = [str(m.get("type", "")).rpartition(".")[2] or m.get("path") for m in _modules(folder)]
    usage["modules.json"] = kinds  # versions of the library write other paths before a class
    return usage


def _short(value: object, longest: int = 40) -> str:
    text = "none" if value in (None, []) else repr(value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
