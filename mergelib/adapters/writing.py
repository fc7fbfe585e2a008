"""The names, shapes and configuration under which PEFT reads a merged adapter."""

import re
from collections.abc import Mapping, Sequence
from statistics import mode
from typing import Any

import torch
from torch import Tensor

from mergelib.adapters.comparing import Adapters
from mergelib.adapters.factors import Factors, rounded_once
from mergelib.io import WithAdapter
from mergelib.merging import Source

PREFIX = "base_model.model."  # before all keys that PEFT saves


def under_names(
    key: str, module: str, factors: Factors, source: Source, dtype: torch.dtype
) -> tuple[dict[str, Tensor], float]:
    """Return rounded factors under PEFT's names, and their error."""
    b, a = (rounded_once(key, factor, dtype) for factor in factors[:2])
    error = factors.error(b.double(), a.double())
    shape = source.reference[key].shape
    if len(shape) > 2:  # a convolution
        a, b = a.reshape(-1, *shape[1:]), b.reshape(*b.shape, *(1 for _ in shape[2:]))
    form = "lora_{}.weight" if source.kinds[key] else "lora_embedding_{}"
    names = (f"{PREFIX}{module}.{form.format(letter)}" for letter in "AB")
    return {name: f.cpu().contiguous() for name, f in zip(names, (a, b), strict=True)}, error


def configuration(
    first: WithAdapter,
    opened: Adapters,
    ranks: Mapping[str, int],
    whole: Sequence[str],
    base: str,
) -> dict[str, Any]:
    """Return the configuration of the merged adapter, with α = r in every module."""
    configs = [adapter.config for adapter in opened.values()]
    usual = mode(ranks.values()) if ranks else 8
    # PEFT searches for patterns, which are therefore tied to the whole name.
    pattern = {f"^{re.escape(name)}": rank for name, rank in ranks.items() if rank != usual}
    saved = dict.fromkeys(name for each in configs for name in each.get("modules_to_save") or ())
    biases = [each.get("bias") or "none" for each in configs]
    bias = next((kind for kind in ("all", "lora_only") if kind in biases), "none")
    parts = [part for adapter in opened.values() for part in adapter.parts.items()]
    heads = {key for key, roles in parts if roles.keys() == {"whole"}}
    copied = ["auto_mapping", "revision", "fan_in_fan_out"]
    copied += ["task_type"] * (len(heads) == len(whole))  # some tasks require their head
    return {
        "peft_type": "LORA",
        **{name: first.config[name] for name in copied if name in first.config},
        "base_model_name_or_path": base or None,
        "inference_mode": True,
        "r": usual,
        "lora_alpha": usual,
        "lora_dropout": 0.0,
        "rank_pattern": pattern,
        "alpha_pattern": pattern,
        "target_modules": list(ranks),
        "modules_to_save": [n for n in saved if any(f".{n}." in f".{key}" for key in whole)]
        or None,
        "bias": bias,
    }
