"""Suggest the next command, and estimate what it costs."""

import os
import shlex
from collections.abc import Mapping, Sequence

from mergelib.merging import Source
from mergelib.merging.applying import precision
from mergelib.parts import Parts, Patterns
from mergelib.preview.numbers import Numbers
from mergelib.registry import get_method
from mergelib.statedict import is_kernel, layout_of


def listed(patterns: Patterns | None) -> list[str]:
    """Return patterns as a list."""
    return [patterns] if isinstance(patterns, str) else list(patterns or ())


def suggest(source: Source, numbers: Numbers, left: Sequence[ValueError]) -> tuple[str, str]:
    """Return a method and the reason for it; no method if a merge makes no sense yet."""
    equal = sum(len(group) - 1 for group in numbers.watch.groups)
    if left:
        return "", "a merge would be refused, so correct the models first"
    if numbers.watch.unrelated() is not None:
        return "", "the models are unrelated, so match their neurons first (mergelib.align)"
    if len(source.experts) - equal < 2:
        return "", "fewer than two models have learned something of their own"
    if source.pretrained is None:
        return "average", "without the pretrained model (--pretrained) there are no task vectors"
    if _factorised(source):
        return "tsv", "TSV is the documentation's first choice for a pretrained model and no data"
    return "task_arithmetic", "there are no matrices, which the better methods need"


def _factorised(source: Source) -> list[int]:
    """Return the dimensions of the tensors that methods for matrices factorise."""
    layout, predicate = layout_of(source.reference), source.matrices(is_kernel)
    merged = (key for key in source if key in source.selection.merged)
    return [layout[key].dim() for key in merged if predicate(key, layout[key])]


def command_for(
    method: str,
    given: Mapping[str, object],
    pretrained: object,
    parts: Parts,
    source: Source,
    tokenizer: str = "",
    *,
    chat: bool = False,
) -> str:
    """Return the command, or the call if models are not files."""
    folds = method == "tsv" and max(_factorised(source)) > 2
    options = {name: listed(getattr(parts, name)) for name in ("include", "exclude")}
    said = [name for name in ("missing", "nan") if getattr(parts, name) != "error"]
    if not all(isinstance(m, str | os.PathLike) for m in (*given.values(), pretrained or "")):
        texts = [f"{name}={patterns}" for name, patterns in options.items() if patterns]
        texts += ["pretrained=pretrained"] if pretrained is not None else []
        texts += [f"{name}={getattr(parts, name)!r}" for name in said]
        texts += [f"rename={dict(parts.rename)}"] if parts.rename else []
        texts += ["is_matrix=ml.is_kernel"] if folds else []
        return f"ml.merge({', '.join([repr(method), 'experts', *texts])})"
    words = ["mergelib", "merge", method, *map(str, given.values())]
    words += ["--pretrained", str(pretrained)] if pretrained is not None else []
    for name, patterns in options.items():
        words += [f"--{name}", ",".join(patterns)] if patterns else []
    words += [word for name in said for word in (f"--{name}", getattr(parts, name))]
    for old, new in (parts.rename or {}).items():
        words += ["--rename", f"{old}={new}"]
    words += ["--tokenizer", tokenizer] if tokenizer else []
    words += ["--chat-template", "experts"] if chat else []
    words += ["--fold-convolutions"] if folds else []
    return shlex.join([*words, "--output", "merged"])


def costs_of(method: str, source: Source) -> tuple[int, int]:
    """Return the bytes that a merge reads, and those of the tensors that it holds at most.

    A merge of files also reads each of them for its hash.
    """
    layouts = [layout_of(model) for model in source.models.values()]
    chosen = get_method(method)
    passes = 1 if chosen.prepare is None else 2
    files = {f for model in source.models.values() for f in getattr(model, "shards", ())}
    read, most = sum(file.stat().st_size for file in files), 0
    for key in source.selection.keys:
        tensors = [layout[key] for layout in layouts if key in layout]
        if key not in source.selection.merged or key in source.aliases:
            read += tensors[0].nbytes
            continue
        read += passes * sum(tensor.nbytes for tensor in tensors)
        size, shape = precision(tensors, None).itemsize, tensors[0].shape
        held = (len(source.experts) + 3) * tensors[0].numel()
        if chosen.elsewhere is not None and len(shape) > 1:
            held += 4 * min(shape[0], shape[1:].numel()) ** 2
        most = max(most, size * held)
    return read, most
