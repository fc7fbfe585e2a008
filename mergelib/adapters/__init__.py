"""Merge LoRA adapters into one LoRA adapter.

An adapter adds s B A to a weight. The weighted sum Σ_t w_t s_t B_t A_t is one product, of the
concatenations [w_1 s_1 B_1, w_2 s_2 B_2, …] and [A_1; A_2; …], whose rank is the sum of the ranks.
For a smaller rank, QR decompositions of both concatenations give the singular values of the sum
from a matrix as small as its rank. Other rules need the full updates, one weight at a time.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mergelib.adapters.comparing import compare_adapters, open_adapters, tell_of_copies
from mergelib.adapters.factors import (
    Device,
    check_whole,
    is_sum,
    rounded_once,
    summed,
    truncated,
    weights_of,
)
from mergelib.adapters.writing import PREFIX, configuration, under_names
from mergelib.card import Merge, write_card
from mergelib.inspection.companions import check_all, copies_of, copy_needed, stamped
from mergelib.io import AnyPath, WithAdapter, hashing, staged, write_tensors
from mergelib.messages.kinds import Size, check_fits
from mergelib.messages.refusals import as_dtype, check_device
from mergelib.parts import Parts, Patterns
from mergelib.registry import get_method
from mergelib.statedict import named
from mergelib.streaming import check_output, provenance

if TYPE_CHECKING:
    import pandas as pd


@torch.no_grad()
def merge_adapters(
    method: str,
    adapters: Mapping[str, AnyPath] | Sequence[AnyPath],
    output: AnyPath,
    *,
    pretrained: AnyPath | None = None,
    rank: int | None = None,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    rename: Mapping[str, str] | None = None,
    device: Device = None,
    dtype: torch.dtype | str | None = None,
    overwrite: bool = False,
    **hyperparameters: Any,
) -> "pd.DataFrame":
    """Merge LoRA adapters into one adapter that PEFT loads; the base model need not be here.

    The method merges the updates ΔW = s B A, and a module that an adapter lacks counts as zero, so
    ``average`` with ``weights=[1, -1]`` gives ΔW_1 − ΔW_2. Weighted sums (``average``,
    ``task_arithmetic``, ``fednova``, ``wsm``) are exact up to rounding: their factors are
    concatenated, and the ranks add up. Results of other methods are truncated to a ``rank``. The
    merged adapter has α = r in every module.

    Args:
        method: a name from `mergelib.methods`.
        adapters: at least one folder that PEFT's ``save_pretrained`` wrote, as a list or with
            names.
        output: a folder. It receives ``adapter_config.json``, ``adapter_model.safetensors``, a
            model card, and tokenizer files of the first adapter's folder.
        pretrained: file or folder of the base; by default the folder that ``adapter_config.json``
            names, if it is here. Only DoRA and modules that were trained whole
            (``modules_to_save``) can need it.
        rank: the largest rank of a module. Larger updates are truncated to their largest singular
            values.
        include: patterns of keys to merge, as in `mergelib.merge`; the others are left out.
        exclude: patterns of keys to leave out, such as ``"*classifier*"``.
        rename: patterns of keys with the names of the base, or if it is not here, of the first
            adapter, as in `mergelib.merge`. Keys are the names of weights, as in ``include``.
        device: where to compute.
        dtype: that of the result. By default factors are float32, in which PEFT computes, and
            modules that were trained whole keep their dtype.
        overwrite: replace an existing output, if a merge wrote it.
        **hyperparameters: the method's own.

    Returns:
        A table with the rank of each module and its relative error ‖ΔW − B A‖ / ‖ΔW‖ in the
        Frobenius norm, where ΔW is the method's result before truncation and rounding.

    Raises:
        FileNotFoundError: if an input does not exist.
        ValueError: for adapters that are not LoRA or not of one base; for a result that no LoRA
            adapter of this rank represents, as that of DoRA or TIES without ``rank``; for what
            `mergelib.merge_files` refuses. Nothing is written then.
        TypeError: if the method lacks a hyperparameter.
    """
    check_device(device)
    check_fits({"rank": Size | None}, {"rank": rank})
    written, chosen = as_dtype(dtype), get_method(method)
    parts = Parts(include, exclude, rename=rename)
    chosen.check(hyperparameters)
    models = named(adapters)
    stamps = stamped([pretrained, *models.values()])
    copies = stamped(models.values(), copied=True)
    opened, base, base_name = open_adapters(models, pretrained, rename)
    source, state = compare_adapters(opened, base, parts)
    files = {name: WithAdapter(adapter.path, None) for name, adapter in opened.items()}
    inputs = files if base is None else {**files, "pretrained": base}
    check_output(Path(output), inputs, folder=True, overwrite=overwrite)
    tell_of_copies(opened)
    settings = {**chosen.hyperparameters, **hyperparameters, "rank": rank}
    with hashing(files) as hashes:
        notes = {"format": "pt", **provenance(method, settings, parts, files), **hashes()}
    weights = weights_of(chosen, source, hyperparameters)
    if is_sum(chosen, source, opened, rank):
        merging = summed(chosen, source, opened, weights, rank, device)
    else:
        merging = truncated(chosen, source, opened, hyperparameters, rank, device)
    check_whole(chosen, source, weights)
    first = min(opened.values(), key=lambda adapter: len(adapter.renamed[1]))
    table: dict[str, dict[str, float]] = {}
    whole = []
    for key, merged in merging:
        old, new = first.renamed
        name = old + key.removeprefix(new)
        if isinstance(merged, Tensor):
            state[PREFIX + name] = merged if written is None else rounded_once(key, merged, written)
            whole.append(name)
            continue
        module = name.rpartition(".")[0]
        named_factors, error = under_names(key, module, merged, source, written or torch.float32)
        table[module] = {"rank": len(merged.a), "relative error": error}
        state |= named_factors
    if not state:
        raise ValueError(f"nothing to write: all updates that {method} gives are zero")
    ranks = {module: int(row["rank"]) for module, row in table.items()}
    config = configuration(first, opened, ranks, whole, base_name)
    with staged(Path(output), folder=True) as target:
        write_tensors(target / "adapter_model.safetensors", state, state.items(), notes)
        (target / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
        copy_needed(first.path, target, modules=False)
        fields = {"as_adapter": True, "rank": rank, "dtype": written}
        write_card(target, Path(output), [Merge([*models.values()], pretrained, fields, notes)])
        for adapter in opened.values():
            adapter.check()
        check_all([*stamps, *copies_of(copies, first.path)])
    import pandas as pd

    rows = pd.Index(table, name="module")
    return pd.DataFrame(table.values(), index=rows, columns=["rank", "relative error"])
