"""Write the card of a merged folder: a recipe that runs again, inputs with hashes, and licences."""

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any, NamedTuple

from mergelib.inspection.companions import folder_of
from mergelib.inspection.vocabularies import read_json
from mergelib.io import AnyPath, split
from mergelib.io.checkpoint import WHOLE
from mergelib.statedict import is_matrix

CARD = "README.md"
NATIVE = "mergelib."  # before a method's name in a recipe: its parameters have the names used here
_LICENCE = re.compile(  # in a front matter; the first of a list
    r"---\s*\n(?:(?!---).*\n)*?license:[ \t]*(?:\n[ \t]*-[ \t]*)?[\"']?([\w.+-]+)"
)
_HUB = re.compile(r"models--([^/]+?)--([^/]+)/snapshots/(\w+)/")  # of the hub's cache


class Merge(NamedTuple):
    """One merge: paths as they were given, fields of a recipe, and the header's metadata."""

    models: Sequence[AnyPath]
    pretrained: AnyPath | None
    fields: Mapping[str, Any]
    notes: Mapping[str, str]
    name: str = ""


def write_card(folder: Path, output: Path, merges: Sequence[Merge]) -> None:
    """Write the card of the last merge into a folder, which will be moved to ``output``."""
    steps, names, hashes = {m.name for m in merges}, dict[AnyPath, str](), dict[AnyPath, str]()
    for merge in merges:
        digests = json.loads(merge.notes["mergelib.inputs"])
        paths = [path for path in (merge.pretrained, *merge.models) if path is not None]
        names |= {path: str(path) if path in steps else _seen(path, output) for path in paths}
        hashes |= dict(zip(paths[-len(digests) :], digests.values(), strict=True))
    licences = {path: _licence(path) for path in hashes if path not in steps}
    stated, last = sorted({*licences.values()} - {""}), merges[-1].notes
    adapted = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
    config, files = read_json(folder / "config.json"), {file.name for file in folder.iterdir()}
    signs = {"peft": bool(adapted), "sentence-transformers": "modules.json" in files}
    signs |= {"diffusers": "_diffusers_version" in config, "timm": "pretrained_cfg" in config}
    signs |= {"transformers": "model_type" in config}
    about = {
        "base_model": [adapted] if adapted else [*map(_title, licences)],
        "library_name": next((name for name, found in signs.items() if found), ""),
        "license": stated[0] if len(stated) == 1 and "" not in licences.values() else "",
    }
    differ = f"\n**The licences of the inputs differ** ({', '.join(stated)}): check that all allow"
    lines = [
        *("---", *(f"{name}: {in_yaml(value)}" for name, value in about.items() if value)),
        "base_model_relation: merge\ntags: [merge, mergelib]\n---",
        f"# {output.name}\n\nMerged by {_page(last['mergelib.method'])} of mergelib",
        f"{last['mergelib.version']}.\n\n## Recipe\n",
        f"`mergelib run {CARD} -o ../again/` computes the same weights again. Paths are relative",
        "to this file.\n\n```yaml",
        "\n---\n".join(_document(merge, names) for merge in merges),
        "```\n\n## Inputs\n\n| model | SHA-256 | licence |\n|---|---|---|",
        *(f"| `{names[p]}` | `{hashes[p]}` | {licences[p] or 'not stated'} |" for p in licences),
        *([differ, "what you do with the result."] if len(stated) > 1 else []),
    ]
    (folder / CARD).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _document(merge: Merge, names: Mapping[AnyPath, str]) -> str:
    """Return a merge as a document of a recipe."""
    fields = {**json.loads(merge.notes.get("mergelib.parts", "{}")), **merge.fields}
    values = json.loads(merge.notes["mergelib.hyperparameters"])
    if fields.get("as_adapter"):  # whose header has the rank among them
        fields["rank"] = values.pop("rank")
    fields |= {"name": merge.name, "base_model": names.get(merge.pretrained or "")}
    chosen = [name for name in ("tokenizer", "chat_template") if fields.get(name)]
    fields |= {name: names.get(fields[name], fields[name]) for name in chosen}  # experts by path
    usual = (None, False, "", "error", is_matrix)
    said = {name: fields[name] for name in sorted(fields) if fields[name] not in usual}
    lines = [f"merge_method: {NATIVE}{merge.notes['mergelib.method']}"]
    lines += [f"{name}: {in_yaml(value)}" for name, value in said.items()]
    lines += ["models:", *(f"  - model: {in_yaml(names[path])}" for path in merge.models)]
    parameters = [f"  {name}: {in_yaml(value)}" for name, value in values.items()]
    return "\n".join([*lines, *["parameters:"][: len(values)], *parameters])


def in_yaml(value: Any) -> str:
    """Return a value as YAML in one line, which is JSON but for numbers such as 1.0e-05."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{in_yaml(k)}: {in_yaml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(in_yaml, value))}]"
    if not isinstance(value, str | int | float | None):  # a dtype or function
        value = getattr(value, "__name__", str(value).removeprefix("torch."))
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(r"^(-?\d+)e", r"\1.0e", text) if isinstance(value, float) else text


def _seen(path: AnyPath, folder: Path) -> str:
    """Return a path as it is seen from a folder, or its name on the hub; both sides of a ``+``."""
    before, adapter = split(path)
    if before is not None and adapter is not None:
        return f"{_seen(before, folder)}+{_seen(adapter, folder)}"
    whole = Path(os.path.abspath(path))
    if (hub := _HUB.search(f"{whole.as_posix()}/")) and hub[3] == whole.name:
        return f"{hub[1]}/{hub[2]}@{hub[3]}"
    place = whole.parent.resolve() / whole.name
    with contextlib.suppress(ValueError):  # on another drive of Windows
        place = Path(os.path.relpath(place, folder.resolve()))
    return place.as_posix()


def _title(path: AnyPath) -> str:
    """Return a model's name on the hub if its path has it, else that of its folder or file."""
    place = Path(os.path.abspath(split(path)[1] or path))
    if hub := _HUB.search(f"{place.as_posix()}/"):
        return f"{hub[1]}/{hub[2]}"
    return place.parent.name if place.name in WHOLE else place.name.removesuffix(".safetensors")


def _licence(path: AnyPath) -> str:
    """Return the licence that the card beside a model names, or ""."""
    folder = folder_of(split(path)[1] or path)
    here = folder is not None and (folder / CARD).is_file()
    text = (folder / CARD).read_text("utf-8", "replace") if folder and here else ""
    named = _LICENCE.match(text)
    return named[1] if named else ""


def _page(method: str) -> str:
    """Return a method's name, with a link to the book if the installed package has its address."""
    with contextlib.suppress(PackageNotFoundError):
        for address in metadata("mergelib-book").get_all("Project-URL") or ():
            if address.startswith("Documentation, "):
                anchor = f"#method-{method.partition('+')[0].replace('_', '-')}"
                page = f"{address[15:]}book/methods-map.html{anchor}"
                return f"[`{method}`]({page})"
    return f"`{method}`"
