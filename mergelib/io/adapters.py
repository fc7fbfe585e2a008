"""Apply LoRA adapters to their base model, tensor by tensor, while it is read.

An adapter (Hu et al. 2022) adds s B A to a weight, with s = α/r, or α/√r if it is rank-stabilised
(Kalajdzievski 2023). DoRA (Liu et al. 2024) then gives every output row the norm m. Products are
taken before anything is merged, because the mean of products is not the product of means.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mergelib.io.checkpoint import AnyPath, Checkpoint
from mergelib.io.files import Memory
from mergelib.statedict import StateDict, layout_of, tied_keys, weight_key

CONFIG = "adapter_config.json"
_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_FACTOR = re.compile(r"^(.*)\.lora_((?:embedding_)?[AB]|magnitude_vector)(\.weight|\.bias)?$")
# Entries of a configuration that are computed here, or do not change what the tensors mean.
_KNOWN = {
    *("peft_type", "peft_version", "task_type", "auto_mapping", "inference_mode", "revision"),
    *("base_model_name_or_path", "target_modules", "exclude_modules", "modules_to_save", "r"),
    *("lora_alpha", "lora_dropout", "lora_bias", "fan_in_fan_out", "bias", "rank_pattern"),
    *("alpha_pattern", "use_rslora", "use_dora", "init_lora_weights", "layers_to_transform"),
    *("layers_pattern", "megatron_core", "runtime_config", "qalora_group_size", "eva_config"),
    *("loftq_config", "corda_config", "lora_ga_config", "ensure_weight_tying"),
}
_CHANGES_BASE = re.compile(r"pissa|olora|corda|loftq|lora_ga", re.IGNORECASE)
_ELSE = "merge it into its base with PEFT (model.merge_and_unload(), then save_pretrained)"


class WithAdapter(Checkpoint):
    """A base model with an adapter, which is applied when a tensor is read.

    Adapted weights are float32, or float64 as the base's, so that nothing is rounded before the
    merge. Modules that were trained whole (``modules_to_save``, biases) replace the base's.

    Args:
        path: an adapter's folder, as PEFT writes it.
        base: the model that it was trained on, in memory or a `Checkpoint`.
        memory: buffers, as `Checkpoint` has.

    Raises:
        ValueError: for an adapter that is not LoRA or DoRA, that was trained with an option that is
            not computed here, or that does not fit the base; and as `Checkpoint` does.
    """

    def __init__(self, path: AnyPath, base: StateDict, *, memory: Memory | None = None) -> None:
        folder = Path(path)
        file = next((folder / name for name in _FILES if (folder / name).is_file()), None)
        if file is None:
            raise ValueError(f"{folder} holds no adapter: expected {' or '.join(_FILES)}")
        super().__init__(file, memory=memory)
        self.path, self.base = folder, base
        self._config = read_config(folder)
        self._check_kind()
        self.metadata = dict(getattr(base, "metadata", {}))
        self._parts = self._matched()
        added = [key for key in self._parts if key not in base]
        self.shards = {**getattr(base, "shards", {}), file: added}  # in the order of iteration

    def _check_kind(self) -> None:
        kind = str(self._config.get("peft_type", "LORA")).upper()
        if kind != "LORA":
            raise ValueError(f"{self.path} holds an adapter of the kind {kind}, not LoRA: {_ELSE}")
        unknown = [name for name, value in self._config.items() if value and name not in _KNOWN]
        start = str(self._config.get("init_lora_weights", True))
        unknown += [f"init_lora_weights={start}"] * bool(_CHANGES_BASE.match(start))
        if unknown:
            raise ValueError(
                f"{self.path} was trained with {unknown[0]}, which is not computed here: {_ELSE}"
            )

    def _matched(self) -> dict[str, dict[str, str]]:
        """Return base key to the adapter's keys by role: factors, or "whole" for a saved tensor."""
        parts: dict[str, dict[str, str]] = defaultdict(dict)
        for key in self._entries:
            plain = key.removeprefix("base_model.model.").replace(".modules_to_save.", ".")
            plain = plain.replace(".base_layer.", ".")
            factor = _FACTOR.match(plain)
            if ".original_module." in plain:  # what a module was before it was trained whole
                continue
            if factor is None:
                parts[plain]["whole"] = key
            elif factor[3] == ".bias":
                parts[f"{factor[1]}.bias"] |= {
                    "bias": key,
                    "A": key.replace("_B.bias", "_A.weight"),
                }
            else:
                parts[weight_key(factor[1])][factor[2]] = key
        adapted = [key for key, roles in parts.items() if roles.keys() != {"whole"}]
        layout = layout_of(self.base)
        old, new = _prefixes(adapted, layout)
        self._named = {new + key.removeprefix(old): key for key in parts}
        moved = {key: parts[own] for key, own in self._named.items()}
        absent = [key for key in adapted if new + key.removeprefix(old) not in layout]
        if absent or not adapted:
            raise ValueError(
                f"{len(adapted) - len(absent)} of {len(adapted)} adapted tensors are in the base: "
                f"{self.path} adapts {next(iter(absent or parts), 'nothing')!r}, and the base has "
                f"{next(iter(layout), 'nothing')!r}: pass the model that the adapter was trained on"
            )
        for key, roles in moved.items():
            self._check_shape(key, roles, tuple(layout[key].shape) if key in layout else ())
        return moved

    def _check_shape(self, key: str, roles: Mapping[str, str], shape: tuple[int, ...]) -> None:
        known = {role: self._entries[n] for role, n in roles.items() if n in self._entries}
        sizes = {role: tuple(entry.shape) for role, entry in known.items()}
        shape = sizes.pop("whole", shape)
        if not sizes:
            return
        if {"A", "B"} <= sizes.keys():
            rows, columns = sizes["B"][0], sizes["A"][1:]
            whole = (*columns, rows) if self._transposed else (rows, *columns)
            fits = whole == shape and sizes["A"][0] == sizes["B"][1]
        elif {"embedding_A", "embedding_B"} == sizes.keys():
            whole = sizes["embedding_A"][1], sizes["embedding_B"][0]
            fits = whole == shape and sizes["embedding_A"][0] == sizes["embedding_B"][1]
        else:
            fits = sizes.keys() == {"bias", "A"} and sizes["bias"] == shape
        if not fits:
            listed = ", ".join(f"{role} {list(size)}" for role, size in sizes.items())
            raise ValueError(
                f"{self.path} does not fit the base: {key!r} has shape {list(shape)}, and the "
                f"adapter has {listed}"
            )

    @property
    def _transposed(self) -> bool:
        return bool(self._config.get("fan_in_fan_out"))

    def _scale(self, key: str, rank: int) -> float:
        """Return α/r, or α/√r, of a module; patterns are those of PEFT."""
        module, alpha = self._named[key].rpartition(".")[0], self._config.get("lora_alpha", 8)
        for pattern, own in (self._config.get("alpha_pattern") or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                alpha = own
                break
        return float(alpha / (rank**0.5 if self._config.get("use_rslora") else rank))

    def __getitem__(self, key: str) -> Tensor:
        roles = self._parts.get(key)
        if roles is None:
            return self.base[key]
        read = {role: super(WithAdapter, self).__getitem__(name) for role, name in roles.items()}
        base = read.pop("whole") if "whole" in read else self.base[key]
        if not read:
            return base
        dtype = torch.promote_types(base.dtype, torch.float32)
        factors = {role: tensor.to(base.device, dtype) for role, tensor in read.items()}
        return self._applied(key, base.to(dtype), factors)

    def _applied(self, key: str, base: Tensor, read: Mapping[str, Tensor]) -> Tensor:
        if "bias" in read:
            return base + self._scale(key, len(read["A"])) * read["bias"]
        if "embedding_A" in read:
            a, b = read["embedding_A"], read["embedding_B"]
            return base + self._scale(key, len(a)) * (b @ a).T
        a, b = read["A"], read["B"]
        update = self._scale(key, len(a)) * (b.flatten(1) @ a.flatten(1))
        if self._transposed:
            update = update.T
        result = base + update.view(base.shape)
        if "magnitude_vector" not in read:
            return result
        rows = result.T if self._transposed else result.flatten(1)
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        rows = rows * (read["magnitude_vector"].view(-1, 1) / norms)
        return (rows.T if self._transposed else rows).reshape(base.shape)

    def __contains__(self, key: object) -> bool:
        return key in self.base or key in self._parts

    def __iter__(self) -> Iterator[str]:
        yield from self.base
        yield from (key for key in self._parts if key not in self.base)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def layout(self) -> dict[str, Tensor]:
        """Shapes and dtypes as tensors on the meta device."""
        layout = {key: tensor.to("meta") for key, tensor in layout_of(self.base).items()}
        for key, roles in self._parts.items():
            if "whole" in roles:
                entry = self._entries[roles["whole"]]
                layout[key] = torch.empty(entry.shape, dtype=entry.dtype, device="meta")
            if roles.keys() != {"whole"}:
                wide = torch.promote_types(layout[key].dtype, torch.float32)
                layout[key] = layout[key].to(wide)
        return layout

    @cached_property
    def tied(self) -> dict[str, str]:
        """The base's ties, without those of adapted tensors."""
        ties = tied_keys(self.base).items()
        return {k: first for k, first in ties if not {k, first} & self._parts.keys()}

    def check(self) -> None:
        """Raise ``ValueError`` if a file has changed since its header was read."""
        super().check()
        if isinstance(self.base, Checkpoint):
            self.base.check()


def read_config(folder: Path) -> dict[str, Any]:
    """Return an adapter's configuration; ValueError if it cannot be read."""
    try:
        content = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{folder / CONFIG} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{folder / CONFIG} is not a JSON object")
    return content


def _prefixes(keys: list[str], layout: StateDict) -> tuple[str, str]:
    """Return what to remove from all keys, and what to put in its place, so that the base has them.

    A model is saved with or without its head, so names may differ by whole leading parts.
    """
    if not keys or all(key in layout for key in keys):
        return "", ""
    first = keys[0].split(".")
    for i in range(len(first) - 1):
        old, rest = ".".join([*first[:i], ""]) if i else "", ".".join(first[i:])
        for there in layout:
            if there != rest and not there.endswith(f".{rest}"):
                continue
            new = there.removesuffix(rest)
            if all(k.startswith(old) and new + k.removeprefix(old) in layout for k in keys):
                return old, new
    return "", ""
