"""Merge checkpoints that need not fit into memory.

The output's header follows from the inputs' headers. Tensors are then read from every input, merged
by the same loop as in memory, and written one at a time.
"""

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mergelib.card import Merge, write_card
from mergelib.inspection.companions import (
    check_all,
    copies_of,
    copy_needed,
    module_weights,
    stamped,
)
from mergelib.inspection.layouts import HEAD, tied_alike
from mergelib.inspection.tokens import choose_files, match_vocabularies, write_files
from mergelib.inspection.vocabularies import read_json
from mergelib.io import (
    DIFFUSION,
    WHOLE,
    AnyPath,
    Checkpoint,
    Memory,
    change_notes,
    hashing,
    note_ties,
    open_model,
    renamed,
    resolve_base,
    resolved,
    staged,
    write_tensors,
)
from mergelib.merging import IsMatrix, compare, merge_tensors
from mergelib.messages.refusals import as_dtype, check_device
from mergelib.messages.warned import warn
from mergelib.parts import Missing, Nan, Parts, Patterns
from mergelib.registry import get_method
from mergelib.statedict import StateDict, is_matrix, named, names_table
from mergelib.version import __version__

_PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".pkl"}
# Notes of the base that are not true of the result: our own, and hashes of the weights' bytes.
_STALE = re.compile(r"^mergelib\.|hash|sha_?\d|md5|crc|checksum", re.IGNORECASE)


@torch.no_grad()
def merge_files(
    method: str,
    experts: Mapping[str, AnyPath] | Sequence[AnyPath],
    output: AnyPath,
    *,
    pretrained: AnyPath | None = None,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    missing: Missing = "error",
    rename: Mapping[str, str] | None = None,
    nan: Nan = "error",
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    tokenizer: str | None = None,
    chat_template: str | None = None,
    is_matrix: IsMatrix = is_matrix,
    max_shard_size: int | str | None = None,
    dequantise: bool = False,
    overwrite: bool = False,
    **hyperparameters: Any,
) -> Path:
    """Merge checkpoints that need not fit into memory, one tensor at a time.

    The result equals that of `mergelib.merge` bit for bit. At most (experts + 3) copies of the
    largest tensor, in the precision of the computation, are in memory at once. Methods that
    factorise need about four squares of a matrix's smaller side in addition to three copies of the
    matrix; ``knots`` and ``doge`` as many further copies as there are experts. Pickles that are
    compressed, or in PyTorch's old format, are read whole.

    >>> for name in ("a", "b"):
    ...     save_state_dict({"w": torch.rand(2, 3)}, f"{name}.safetensors")
    >>> merge_files("average", ["a.safetensors", "b.safetensors"], "merged.safetensors").name
    'merged.safetensors'

    Args:
        method: a name from `mergelib.methods`, such as ``"ties"`` or ``"ties+svc"``.
        experts: at least one file or folder that `Checkpoint` reads, as a list or with names. An
            adapter's folder means its base with the adapter applied; so does ``"BASE+ADAPTER"``.
            ``"FILE::KEY"`` chooses one of several sets of weights in a pickle.
        output: a ``.safetensors`` file, or a folder. A folder also receives configuration,
            tokenizer, modules of Sentence-Transformers and licence from the pretrained model's
            folder, or from the first expert's that has one. With ``missing="experts"`` they come
            from the first expert that has an averaged key. Its ``README.md`` is a model card with a
            recipe that `mergelib.run_recipe` runs again.
        pretrained: file or folder of the base model; most methods need it. By default the one that
            the configuration of adapters names.
        include: patterns of keys to merge; this and the next seven options are those of
            `mergelib.merge`.
        exclude: patterns of keys not to merge.
        missing: what happens to keys that models do not share.
        rename: patterns of experts' keys with the names that the reference has.
        nan: what happens to NaN and Inf.
        device: where to compute.
        dtype: that of the result's floating tensors, also in the folder's ``config.json``; by
            default that of the pretrained model's (else the first expert's).
        tokenizer: whose vocabulary the result has, for models in folders with different ones:
            ``"base"`` (the pretrained model, else the first expert), ``"union"`` (it and all
            further tokens) or an expert's name or path, whose files an output folder then gets.
            Rows are matched by token. A token that a model lacks gets the pretrained model's row,
            or if there is none, the mean of the models that have it.
        chat_template: whose chat template and end token an output folder gets: ``"experts"`` (which
            must agree), or an expert's name or path.
        is_matrix: predicate (key, tensor) of what low-rank methods treat as a matrix.
        max_shard_size: bytes, or text like ``"5GB"``, per file of an output folder; by default the
            folder is sharded like the reference.
        dequantise: whether to merge FP8 and MXFP4 weights times their scales, not quantised.
        overwrite: replace an existing output; a folder only if a merge wrote it.
        **hyperparameters: the method's own.

    Returns:
        The output's path. The file keeps the reference's metadata, without hashes, and adds
        ``mergelib.method``, ``.hyperparameters``, ``.parts``, ``.inputs`` (name to SHA-256; for
        several files, as shards or an adapter's weights and configuration, the hash of the lines
        that ``sha256sum`` prints), ``.files`` and ``.version``. Tied tensors are merged once and
        stored under every name.

    Raises:
        FileNotFoundError: if an input does not exist.
        OSError: if the output cannot be written; the error names it.
        ValueError: for everything that `mergelib.merge` refuses, for an input that is damaged,
            needs code or changes meanwhile, and for an output that exists, is an input, or would be
            read in place of one. Nothing is written then.
        TypeError: if the method lacks a hyperparameter.

    Warns:
        UserWarning: as `mergelib.merge`; also if the experts agree on a chat template, tokens or
            modules and the copied folder differs, or if an output layer is no longer tied.
    """
    check_device(device)
    written = as_dtype(dtype)
    chosen, models = get_method(method), named(experts)
    stamps = stamped(models.values())
    pretrained = resolve_base(models, pretrained)
    stamps += stamped([pretrained])
    copies = stamped([pretrained, *models.values()], copied=True)
    chosen.check(hyperparameters, pretrained=pretrained is not None)
    parts = Parts(include, exclude, missing, rename, nan)
    memory = Memory()
    how: dict[str, Any] = {"memory": memory, "dequantise": dequantise}
    base = None if pretrained is None else open_model(pretrained, **how)
    checkpoints = {name: open_model(path, base, **how) for name, path in models.items()}
    inputs = checkpoints if base is None else {"pretrained": base, **checkpoints}
    output, single = Path(output), Path(output).suffix == ".safetensors"
    names = {str(path): name for name, path in models.items()} | {name: name for name in inputs}
    read = tied_alike({**inputs, **renamed(checkpoints, base, rename)})
    matched, own, files, places, sizes = matching = match_vocabularies(read, names, tokenizer)
    states = {name: matched[name] for name in models}
    source = compare(states, matched.get("pretrained"), parts, matched, written)
    reference = next(iter(inputs.values()))
    options: dict[str, Any] = {"device": device, "matrices": is_matrix, "shown": True}
    merged = merge_tensors(chosen, source, hyperparameters, **options)
    if single and max_shard_size is not None:
        raise ValueError(f"max_shard_size needs a folder as output, not the file {output}")
    check_output(output, inputs, folder=not single, overwrite=overwrite)
    layout = {key: kind.to(source.written(kind)) for key, kind in source.layout.items()}
    shards = _split(reference, layout, max_shard_size)
    if single and (chat_template or files):
        raise ValueError(f"a tokenizer or chat template needs a folder as output, not {output}")
    if not single:
        modules = module_weights(inputs)
        owners = source.selection.owners
        origin, chat = choose_files(inputs, owners, matching, names, chat_template)
    metadata = {
        "format": "pt",
        **{key: text for key, text in reference.metadata.items() if not _STALE.search(key)},
        **note_ties({key: first for key, first in source.aliases.items() if key in layout}),
        **provenance(method, {**chosen.hyperparameters, **hyperparameters}, parts, inputs),
        **({"mergelib.tokenizer": tokenizer} if tokenizer else {}),
    }
    with hashing(inputs) as hashes, staged(output, folder=not single) as target:
        if single:
            write_tensors(target, layout, merged, metadata)
        else:
            diffusers = origin is not None and any(origin.glob(f"{DIFFUSION}.*"))
            stem = DIFFUSION if diffusers else "model"
            _write_shards(target, stem, layout, shards, merged, metadata)
        metadata |= hashes()
        for file in [target] if single else target.glob("*.safetensors"):
            change_notes(file, metadata)
        if not single:
            if origin is not None:
                copy_needed(origin, target, modules=True)
                copy_needed(own or origin, target, modules=True)
                for part, weights in modules.items():
                    (target / part / "pytorch_model.bin").unlink(missing_ok=True)
                    same = dict[str, Any](pretrained=weights.pop("pretrained", None), nan=nan)
                    same |= {"device": device, "dtype": dtype, "is_matrix": is_matrix}
                    place, same["overwrite"] = target / part / "model.safetensors", True
                    merge_files(method, weights, place, **same, **hyperparameters)
                _settle(target, "vocab", len(places), sizes)
                write_files(target, files)
                write_files(target, chat)
                if written is not None:
                    _settle(target, r"^(torch_)?dtype$", str(written).removeprefix("torch."))
                if dequantise:
                    _settle(target, "^quantization_config$", None)
                _settle_ties(target)
            fields = dict[str, Any](dtype=written, dequantise=dequantise, is_matrix=is_matrix)
            fields["max_shard_size"] = max_shard_size
            for option, value in (("tokenizer", tokenizer), ("chat_template", chat_template)):
                name = names.get(value or "", "")
                fields[option] = "base" if name == "pretrained" else models.get(name, value)
            write_card(target, output, [Merge([*models.values()], pretrained, fields, metadata)])
        for checkpoint in inputs.values():
            checkpoint.check()
        check_all([*stamps, *([] if single else copies_of(copies, origin, own))])
    return output


def check_output(
    output: Path, inputs: Mapping[str, Checkpoint], *, folder: bool, overwrite: bool
) -> None:
    """Raise ``ValueError`` for an output that must not be written, before anything is computed."""
    if output.suffix in _PICKLES:
        raise ValueError(f"{output}: merged weights are written as safetensors only")
    for name, checkpoint in inputs.items():
        check_apart(output, name, checkpoint.path, checkpoint.shards)
    try:
        mode = output.stat().st_mode
        empty = stat.S_ISDIR(mode) and not os.listdir(output)
    except (FileNotFoundError, NotADirectoryError):  # nothing there; the latter is met in writing
        return
    if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
        kind = "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "device"
        raise ValueError(f"output {output} is a {kind} already")
    if folder and empty:
        return
    if not overwrite:
        raise ValueError(f"output {output} exists; pass overwrite=True to replace it")
    if folder and not _is_merged(output):
        raise ValueError(f"output {output} is a folder that no merge wrote; remove it yourself")


def check_apart(output: Path, name: str, model: Path, files: Iterable[Path]) -> None:
    """Raise ``ValueError`` if an output would replace a model's files, or be read instead."""
    target = resolved(output)
    for path in (model.resolve(), *(file.resolve() for file in files)):
        if target == path or target in path.parents:
            raise ValueError(f"output {output} is or holds {name} ({model})")
    if target.parent == model.resolve() and target.name in WHOLE:
        raise ValueError(f"output {output} would be read in place of {name}, in whose folder")


def _is_merged(folder: Path) -> bool:
    """Whether a merge wrote the folder; read again if another merge replaces it meanwhile."""
    before = None
    while True:
        try:
            status = folder.stat()
        except FileNotFoundError:
            return True  # it no longer stands in the way
        if before == (before := (status.st_ino, status.st_ctime_ns)):
            return False
        for weights in (folder, folder / "adapter_model.safetensors"):
            with contextlib.suppress(ValueError, OSError):
                return "mergelib.method" in Checkpoint(weights).metadata


def _split(
    reference: Checkpoint, layout: StateDict, max_shard_size: int | str | None
) -> list[list[str]]:
    """Return the keys of every output shard, in order."""
    if max_shard_size is None:
        ours = ([key for key in keys if key in layout] for keys in reference.shards.values())
        kept = [keys for keys in ours if keys]
        placed = {*chain(*kept)}
        kept[-1] += [key for key in layout if key not in placed]
        return kept
    limit = _bytes(max_shard_size)
    shards: list[list[str]] = [[]]
    filled = 0
    for key, tensor in layout.items():
        if shards[-1] and filled + tensor.nbytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(key)
        filled += tensor.nbytes
    return shards


def _bytes(size: int | str) -> int:
    """Return a size in bytes; ``"5GB"`` is 5e9 and ``"5GiB"`` 5 · 2**30."""
    units = {"": 1, "B": 1}
    for power, letter in enumerate("KMGT", 1):
        units |= {f"{letter}B": 1000**power, f"{letter}IB": 1024**power}
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Z]*)\s*", str(size).upper())
    if match is None or match[2] not in units or not float(match[1]):
        raise ValueError(f"max_shard_size is {size!r}, expected bytes or a text like '5GB'")
    return int(float(match[1]) * units[match[2]])


def provenance(
    method: str, hyperparameters: Mapping[str, Any], parts: Parts, inputs: Mapping[str, Checkpoint]
) -> dict[str, str]:
    """Return metadata that record how a file was made, with zeros for the hashes of `hashing`."""
    return {
        "mergelib.method": method,
        "mergelib.hyperparameters": json.dumps(hyperparameters, default=_plain),
        **({} if parts == Parts() else {"mergelib.parts": json.dumps(asdict(parts))}),
        "mergelib.inputs": json.dumps(dict.fromkeys(inputs, "0" * 64)),
        "mergelib.files": json.dumps(
            {name: "::".join(filter(None, (c.path.name, c.key))) for name, c in inputs.items()}
        ),
        "mergelib.version": __version__,
    }


def _plain(value: Any) -> Any:
    """Return arrays and tensors as lists, and other values as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _write_shards(
    folder: Path,
    stem: str,
    layout: StateDict,
    shards: Sequence[Sequence[str]],
    merged: Iterator[tuple[str, Tensor]],
    metadata: Mapping[str, str],
) -> None:
    """Write a model folder's weights in files named ``stem``, with an index if sharded."""
    weight_map: dict[str, str] = {}
    for number, keys in enumerate(shards, 1):
        sharded = f"{stem}-{number:05d}-of-{len(shards):05d}.safetensors"
        name = sharded if len(shards) > 1 else f"{stem}.safetensors"
        part = {key: layout[key] for key in keys}
        write_tensors(folder / name, part, islice(merged, len(keys)), metadata)
        weight_map |= dict.fromkeys(keys, name)
    if len(shards) > 1:
        total = {"total_size": sum(tensor.nbytes for tensor in layout.values())}
        index = json.dumps({"metadata": total, "weight_map": weight_map}, indent=2)
        (folder / f"{stem}.safetensors.index.json").write_text(index + "\n")


def _settle(folder: Path, entry: str, value: object, old: Sequence[int] | None = None) -> None:
    """Change entries of the configuration and of its parts; if ``old`` is given, such values.

    With the value None they are removed.
    """

    def changed(part: dict[str, Any]) -> dict[str, Any]:
        names = [k for k, v in part.items() if re.search(entry, k) and (old is None or v in old)]
        new = {k: value if k in names else v for k, v in part.items()}
        return {k: v for k, v in new.items() if k not in names or value is not None}

    config = read_json(folder / "config.json")
    settled = json.loads(json.dumps(config), object_hook=changed)
    if settled != config:
        (folder / "config.json").write_text(json.dumps(settled, indent=2))


def _settle_ties(folder: Path) -> None:
    """Untie the configuration's output layer if the written values differ from the table's."""
    file = folder / "config.json"
    config = read_json(file)
    if config.get("tie_word_embeddings", True) is False or not config:
        return
    written = Checkpoint(folder)
    kinds = written.layout
    for head, table in product(filter(HEAD.search, kinds), filter(names_table, kinds)):
        if kinds[table].shape == kinds[head].shape and not written.same(head, table):
            file.write_text(json.dumps({**config, "tie_word_embeddings": False}, indent=2))
            warn(
                f"{head!r} and {table!r} differ in the merged model, but config.json tied them: "
                "the result's config.json says tie_word_embeddings = false"
            )
            return
