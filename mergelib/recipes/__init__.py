"""Recipes: merges described in YAML, in mergekit's words or in those of this library.

A file has one merge per document. A document with a ``name`` is a model for those after it; the
last one is the result.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from mergelib.adapters import merge_adapters
from mergelib.card import NATIVE, Merge, write_card
from mergelib.inspection.companions import check_all, stamped
from mergelib.io import AnyPath, Checkpoint, resolve_base
from mergelib.io.hub import fetched
from mergelib.io.models import open_model, parts_of
from mergelib.io.staging import move, scratch
from mergelib.messages.brief import Brief, brief
from mergelib.messages.extras import needs
from mergelib.messages.kinds import is_list
from mergelib.recipes.mergekit import (
    BASELESS,
    TRANSLATED,
    WITHOUT_EFFECT,
    Fault,
    PerModel,
    patterns_of,
)
from mergelib.registry import get_method, method_names
from mergelib.settings import depths
from mergelib.statedict import StateDict, is_kernel, layout_of
from mergelib.streaming import check_apart, check_output, merge_files

OPTIONS = (  # of `mergelib.merge_files`, and of `mergelib.merge_adapters`
    *("include", "exclude", "missing", "rename", "nan", "max_shard_size", "dequantise"),
    *("is_matrix", "chat_template", "as_adapter", "rank"),
)
TEXTS = ("merge_method", "base_model", "dtype", "out_dtype", "tokenizer_source", "name")
KINDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys((*TEXTS, "source", "chat_template"), (str, "a text")),
    **dict.fromkeys(("models", "slices", "sources", "layer_range"), (list, "a list")),
    **dict.fromkeys(("parameters", "rename"), (dict, "a mapping")),
    "model": (str, "a path"),
}
FIELDS = (*TEXTS, "models", "slices", "parameters", "tokenizer", *OPTIONS)
MODEL = ("model", "parameters")

STACKED = "slices that stack or leave out layers are not supported"


class Lines(dict[str, Any]):
    """A mapping of a YAML file that knows the line of each of its keys."""

    lines: dict[str, int]


@dataclass(frozen=True, repr=False)
class Step(Brief):
    """One merge of a recipe, in the words of `mergelib.merge_files`."""

    method: str
    experts: list[str]  # paths, or names of earlier steps
    pretrained: str | None
    options: dict[str, Any]
    hyperparameters: dict[str, Any]
    name: str
    fault: Fault
    native: bool  # whether the hyperparameters are in this library's words
    layers: int | None = None  # that the models must have, where slices say so


def run_recipe(
    recipe: AnyPath,
    output: AnyPath,
    *,
    device: torch.device | str | None = None,
    overwrite: bool = False,
) -> Path:
    """Merge as a recipe says, and return the output's path.

    Paths in the recipe are relative to its folder; models that are not there are fetched from the
    Hugging Face hub by their names, ``ORG/NAME`` or ``ORG/NAME@REVISION``. Steps before the last
    are written beside the output and removed again. An output folder gets ``recipe.yml``, the
    recipe, and a model card.

    Args:
        recipe: a YAML file with the words of mergekit's configurations (``merge_method``,
            ``models`` with ``parameters``, ``base_model``, ``dtype``, filters and gradients), or
            with a method of `mergelib.methods` and its hyperparameters; or a merged folder's card.
        output: as in `mergelib.merge_files`.
        device: where to compute.
        overwrite: replace an existing output.

    Raises:
        ValueError: for YAML that cannot be read or has other words, with file and line; for what
            has no counterpart here, such as stacked layers; and the errors of
            `mergelib.merge_files`.
        FileNotFoundError: if the recipe or an input does not exist.
        ModuleNotFoundError: without PyYAML.
    """
    source, target = Path(recipe), Path(output)
    stamps = stamped([source])
    steps = [*read_recipe(source)]
    earlier, places = set[str](), dict[str, str]()
    for step in steps:
        named = {*step.experts, *filter(None, [step.pretrained])} - earlier
        places |= {name: fetched(name, source.parent) for name in named}
        earlier.add(step.name)
    stamps += stamped(places.values())
    for place in (part for name in places.values() for part in parts_of(name)):
        check_apart(target, "an input", place, [file.path for file in stamped([place])])
    single = target.suffix == ".safetensors" and not steps[-1].options.get("as_adapter")
    check_output(target, {}, folder=not single, overwrite=overwrite)
    done: dict[str, str] = {}
    merges: list[Merge] = []
    with scratch(target) as folder:
        for number, step in enumerate(steps, 1):
            models = [n if n in done else places[n] for n in step.experts]
            paths = [done.get(model, model) for model in models]
            first, adapter = step.pretrained, step.options.pop("as_adapter", False)
            start: AnyPath | None = first and (first if first in done else places[first])
            if start is None and not adapter:
                start = resolve_base({path: path for path in paths})
                stamps += stamped([start])
            base = done.get(str(start), start)
            written = folder / f"{number}{'.safetensors' * (single and number == len(steps))}"
            values = _spread(step, paths[0] if base is None else base)
            settings = {"device": device, "overwrite": overwrite, **step.options, **values}
            merge = merge_adapters if adapter else merge_files
            merge(step.method, paths, written, pretrained=base, **settings)
            weights = written / "adapter_model.safetensors" if adapter else written
            fields = {**step.options, "as_adapter": adapter}
            merges.append(Merge(models, start, fields, Checkpoint(weights).metadata, step.name))
            done[step.name] = str(written)
        if not single:
            if source.suffix != ".md":
                shutil.copyfile(source, written / "recipe.yml")
            write_card(written, target, merges)
        check_all(stamps)
        move(written, target)
    return target


def read_recipe(path: Path) -> Iterator[Step]:
    """Yield the steps of a recipe; ValueError names the line of what is wrong."""
    with needs("recipes"):
        import yaml

    if path.is_dir():
        raise ValueError(f"{path} is a folder: pass a YAML file, or a merged folder's README.md")
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":  # a card; blank lines before its recipe keep the numbers of lines
            before, start, text = text.partition("\n```yaml\n")
            text = "\n" * (before + start).count("\n") + text.partition("\n```\n")[0]
        loader, documents = yaml.SafeLoader(text), []
        while loader.check_node():
            node = loader.get_node()
            documents.append((_read(node, loader, path), node.start_mark.line + 1))
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not documents:
        raise ValueError(f"{path} is empty, expected a merge")
    for number, (content, line) in enumerate(documents, 1):
        if not isinstance(content, Lines):
            raise ValueError(f"{path}, line {line}: {brief(content)}, expected merge_method: ...")
        if number < len(documents) and not content.get("name"):
            raise ValueError(f"{path}, line {line}: a merge before the last needs a name")
        yield _step(content, path, line)


def _read(node: Any, loader: Any, path: Path) -> Any:
    if node.id == "sequence":
        return [_read(each, loader, path) for each in node.value]
    if node.id != "mapping":
        try:
            return loader.construct_object(node)
        except ValueError as error:  # such as a thirteenth month
            line = node.start_mark.line + 1
            raise ValueError(f"{path}, line {line}: {node.value!r}: {error}") from None
    content = Lines()
    content.lines = {}
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in content:
            raise ValueError(f"{path}, line {line}: {name} stands here a second time")
        content[name], content.lines[name] = _read(value, loader, path), line
    return content


def _step(content: Lines, path: Path, line: int) -> Step:
    def fault(text: str, at: int = line) -> ValueError:
        return ValueError(f"{path}, line {at}: {text}")

    _check(content, FIELDS, fault)
    for name in ("merge_method", "models"):
        if name == "models" and "slices" in content:
            content["models"] = _whole(content, fault)
            content.lines["models"] = content.lines["slices"]
        if not content.get(name):
            raise fault(f"{name} is missing")
    base = content.get("base_model")
    models: list[tuple[str, dict[str, Any]]] = []
    for each in content["models"]:
        if not isinstance(each, Lines) or not each.get("model"):
            raise fault(f"{brief(each)} in models, expected model: PATH", content.lines["models"])
        _check(each, MODEL, fault)
        models.append((each["model"], dict(each.get("parameters") or {})))
    method = content["merge_method"].removeprefix(NATIVE)
    as_here = content["merge_method"] != method  # the parameters have our names
    native = as_here or method not in TRANSLATED
    try:
        if native:
            get_method(method)
    except ValueError:
        known = [*TRANSLATED, *(name for name in method_names() if name not in TRANSLATED)]
        at = content.lines["merge_method"]
        raise fault(f"no method {method!r} here; there are: {', '.join(known)}", at) from None
    every = as_here or method == "linear"
    own = [(name, values) for name, values in models if name != base or every]
    if method == "passthrough" and len(own) > 1:
        raise fault("passthrough has one model", content.lines["models"])
    if method in ("slerp", "karcher") and base is not None and not as_here:
        own = [(base, {}), *own]
    values = dict(content.get("parameters") or {})
    for name in dict.fromkeys(name for _, given in own for name in given):
        if missing := [i for i, (_, given) in enumerate(own) if name not in {**values, **given}]:
            text = (
                f"model {own[missing[0]][0]!r} has no {name}, which another model has: give it to"
            )
            raise fault(f"{text} every model, or correct its name", content.lines["models"])
        values[name] = PerModel({**values, **given}[name] for _, given in own)
    values = {n: value for n, value in values.items() if native or n not in WITHOUT_EFFECT}
    options = {name: content[name] for name in OPTIONS if name in content}
    options["dtype"] = content.get("out_dtype", content.get("dtype"))
    pretrained = None if method in BASELESS and not as_here else base
    if not native:
        method, values = TRANSLATED[method](values, fault)
    if options.get("is_matrix", "is_kernel") != "is_kernel":
        at = content.lines["is_matrix"]
        raise fault(f"is_matrix is {options['is_matrix']!r}, expected is_kernel", at)
    options |= {"is_matrix": is_kernel} if "is_matrix" in options else {}
    paths, name = [name for name, _ in own], content.get("name", "")
    experts = {path: f"expert {i}" for i, path in enumerate(paths)}
    if (source := content.get("tokenizer", content.get("tokenizer_source"))) is not None:
        if isinstance(source, Lines):
            _check(source, ("source",), fault)
            source = source.get("source", "union")
        if not isinstance(source, str):
            at = content.lines["tokenizer"]
            raise fault(f"tokenizer is {brief(source)}, expected a text", at)
        named = base or source if source == "base" else source
        options["tokenizer"] = "base" if named == pretrained else experts.get(named, named)
    if chat := options.get("chat_template"):
        options["chat_template"] = experts.get(chat, chat)
    layers = content.get("layers")
    return Step(method, paths, pretrained, options, values, name, fault, native, layers)


def _whole(content: Lines, fault: Fault) -> list[Any]:
    """Return the models of a single slice that has the same layers, from the first, of them all."""
    at, (part, *others) = content.lines["slices"], content["slices"] or [None]
    if not isinstance(part, Lines) or not part.get("sources") or others:
        raise fault(STACKED, at)
    _check(part, ("sources", "parameters"), fault)
    sources = part["sources"]
    for each in sources:
        if not isinstance(each, Lines):
            raise fault(f"{brief(each)} in sources, expected model: PATH", at)
        _check(each, (*MODEL, "layer_range"), fault)
    ranges = [each.pop("layer_range", None) for each in sources]
    first = ranges[0]
    if any(each != first for each in ranges) or not (first is None or first[:1] == [0]):
        raise fault(STACKED, at)
    content["layers"] = first and first[1]
    if inner := part.get("parameters"):
        content["parameters"] = {**(content.get("parameters") or {}), **inner}
    models: list[Any] = sources
    return models


def _check(content: Lines, known: Sequence[str], fault: Fault) -> None:
    """Refuse a field that is not known, or not of its kind."""
    for name, value in content.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; the nearest is {near[0]}" if near else ""
            raise fault(f"unknown field {name}{hint}", content.lines[name])
        kind, words = KINDS.get(name, (object, ""))
        if value is not None and not isinstance(value, kind):
            raise fault(f"{name} is {brief(value)}, expected {words}", content.lines[name])


def _spread(step: Step, model: AnyPath) -> dict[str, Any]:
    """Return the hyperparameters with mergekit's gradients and filters as patterns of keys."""
    layout: StateDict = {}
    if step.layers or not step.native:
        layout = layout_of(open_model(model, dequantise=step.options.get("dequantise", False)))
    if step.layers and step.layers != (found := len({*depths(layout).values()})):
        raise step.fault(f"{STACKED}: {model} has {found} layers")
    if step.native:
        return {n: [*v] if is_list(v) else v for n, v in step.hyperparameters.items()}
    keys = [key for key, value in layout.items() if value.is_floating_point()]

    def at_keys(value: Any) -> Any:
        if isinstance(value, PerModel):
            return [at_keys(each) for each in value]
        return patterns_of(value, keys, layout, step.fault)

    return {name: at_keys(value) for name, value in step.hyperparameters.items()}
