"""Apply LoRA adapters to their base model, tensor by tensor, while it is read.

An adapter (Hu et al. 2022) adds s B A to a weight, with s = α/r, or α/√r if it is rank-stabilised
(Kalajdzievski 2023). DoRA (Liu et al. 2024) then gives every output row the norm m. Products are
taken before anything is merged, because the mean of products is not the product of means.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mergelib.io.checkpoint import AnyPath, Checkpoint
from mergelib.io.files import InputFile, Memory, input_file
from mergelib.messages.kinds import check_fits
from mergelib.statedict import StateDict, layout_of, tied_keys, weight_key

CONFIG = "adapter_config.json"
_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_FACTOR = re.compile(r"^(.*)\.lora_((?:embedding_)?[AB]|magnitude_vector)(\.weight|\.bias)?$")
_INNER = ("A", "embedding_A")  # factors with a row per rank
# Entries of a configuration that are computed here, or do not change what the tensors mean.
_KNOWN = {
    *("peft_type", "peft_version", "task_type", "auto_mapping", "inference_mode", "revision"),
    *("base_model_name_or_path", "target_modules", "exclude_modules", "modules_to_save", "r"),
    *("lora_alpha", "lora_dropout", "lora_bias", "fan_in_fan_out", "bias", "rank_pattern"),
    *("alpha_pattern", "use_rslora", "use_dora", "init_lora_weights", "layers_to_transform"),
    *("layers_pattern", "megatron_core", "runtime_config", "qalora_group_size", "eva_config"),
    *("loftq_config", "corda_config", "lora_ga_config", "ensure_weight_tying"),
}
_PATTERNS = dict.fromkeys(("rank_pattern", "alpha_pattern"), Mapping[str, float] | None)
_KINDS = {"r": int | None, "lora_alpha": float | None, "modules_to_save": Sequence[str] | None}
_CHANGES_BASE = re.compile(r"pissa|olora|corda|loftq|lora_ga", re.IGNORECASE)
_ELSE = "merge it into its base with PEFT (model.merge_and_unload(), then save_pretrained)"


class WithAdapter(Checkpoint):
    """A base model with an adapter, which is applied when a tensor is read.

    Adapted weights are float32, or float64 as the base's, so that nothing is rounded before the
    merge. Modules that were trained whole (``modules_to_save``, biases) replace the base's.

    Args:
        path: an adapter's folder, as PEFT writes it.
        base: the model that it was trained on, in memory or a `Checkpoint`. None stands for zeros
            under the adapter's own names, so that adapted tensors are updates.
        memory: buffers, as `Checkpoint` has.
        names: the adapter's own names of tensors, by those that replace them.

    Raises:
        ValueError: for an adapter that is not LoRA or DoRA, that was trained with an option that is
            not computed here, or that does not fit the base; and as `Checkpoint` does.
    """

    def __init__(
        self,
        path: AnyPath,
        base: StateDict | None,
        *,
        memory: Memory | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        folder = Path(path)
        file = next((folder / name for name in _FILES if (folder / name).is_file()), None)
        if file is None:
            raise ValueError(f"{folder} holds no adapter: expected {' or '.join(_FILES)}")
        super().__init__(file, memory=memory)
        self.path = folder
        self.config = read_config(folder, self._files)
        self._check_kind()
        own = self._read_names()
        self._own = names or {key: key for key in own}
        parts = {key: own[name] for key, name in self._own.items()}
        self.base = self._zeros(parts) if base is None else base
        self.metadata = dict(getattr(self.base, "metadata", {}))
        self.parts = self._matched(parts)
        added = [key for key in self.parts if key not in self.base]
        self.shards = {**getattr(self.base, "shards", {}), file: added}  # in the order of iteration

    def _check_kind(self) -> None:
        kind = str(self.config.get("peft_type", "LORA")).upper()
        if kind != "LORA":
            raise ValueError(f"{self.path} holds an adapter of the kind {kind}, not LoRA: {_ELSE}")
        unknown = [name for name, value in self.config.items() if value and name not in _KNOWN]
        start = str(self.config.get("init_lora_weights", True))
        unknown += [f"init_lora_weights={start}"] * bool(_CHANGES_BASE.match(start))
        if unknown:
            raise ValueError(
                f"{self.path} was trained with {unknown[0]}, which is not computed here: {_ELSE}"
            )

    def _read_names(self) -> dict[str, dict[str, str]]:
        """Return own names to the file's keys by role: factors, or "whole" for a saved tensor."""
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
        return parts

    def _zeros(self, parts: Mapping[str, Mapping[str, str]]) -> StateDict:
        """Return zeros in place of the adapted tensors, each in one entry of memory."""
        shapes = {key: self._adapted_shape(roles) for key, roles in parts.items()}
        for key, roles in parts.items():
            if shapes[key] is None and "whole" not in roles:
                raise ValueError(
                    f"{self.path} has no two factors that fit for {key!r}, only {', '.join(roles)}"
                )
        return {key: torch.zeros(()).expand(shape) for key, shape in shapes.items() if shape}

    def _matched(self, parts: Mapping[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        """Return base key to the adapter's keys by role."""
        adapted = [key for key, roles in parts.items() if roles.keys() != {"whole"}]
        layout = layout_of(self.base)
        self.renamed = old, new = _prefixes(adapted, layout)
        places = {new + key.removeprefix(old): key for key in parts}
        self._named = {place: self._own[key] for place, key in places.items()}
        moved = {place: parts[key] for place, key in places.items()}
        absent = [key for key in adapted if new + key.removeprefix(old) not in layout]
        if absent or not adapted:
            raise ValueError(
                f"{len(adapted) - len(absent)} of {len(adapted)} adapted tensors are in the base: "
                f"{self.path} adapts {next(iter(absent or parts), 'nothing')!r}, and the base has "
                f"{next(iter(layout), 'nothing')!r}: pass the model that the adapter was trained on"
            )
        for key, roles in moved.items():
            self._check_shape(key, roles, tuple(layout[key].shape) if key in layout else ())
            rank = next((s[0] for r, s in self._sizes(roles).items() if r in _INNER), None)
            noted = self._setting(key, "rank_pattern", self.config.get("r"))
            if rank is not None and noted not in (None, rank):
                raise ValueError(
                    f"{self.path / CONFIG} says r = {noted} of {key!r}, and the adapter's factors "
                    f"have the rank {rank}: copy both files from one adapter's folder"
                )
        return moved

    def _adapted_shape(self, roles: Mapping[str, str]) -> tuple[int, ...] | None:
        """Return the shape of a tensor that factors update; None if they do not fit together."""
        sizes = self._sizes(roles)
        sizes.pop("whole", None)
        a, b = sizes.get("A", ()), sizes.get("B", ())
        if len(a) > 1 and len(b) > 1 and a[0] == b[1] and prod(b) == b[0] * b[1] > 0:
            return (*a[1:], b[0]) if self._transposed else (b[0], *a[1:])
        a, b = sizes.get("embedding_A", ()), sizes.get("embedding_B", ())
        if len(sizes) == len(a) == len(b) == 2 and a[0] == b[1]:
            return a[1], b[0]
        return sizes["bias"] if sizes.keys() == {"bias", "A"} else None

    def _sizes(self, roles: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
        return {r: tuple(self._entries[n].shape) for r, n in roles.items() if n in self._entries}

    def _check_shape(self, key: str, roles: Mapping[str, str], shape: tuple[int, ...]) -> None:
        sizes = self._sizes(roles)
        shape = sizes.pop("whole", shape)
        norms = sizes.get("magnitude_vector")
        rows = shape[-1 if self._transposed else 0] if shape else 1
        if sizes and (self._adapted_shape(roles) != shape or (norms and prod(norms) != rows)):
            listed = ", ".join(f"{role} {list(size)}" for role, size in sizes.items())
            raise ValueError(
                f"{self.path} does not fit the base: {key!r} has shape {list(shape)}, and the "
                f"adapter has {listed}"
            )

    @property
    def _transposed(self) -> bool:
        return bool(self.config.get("fan_in_fan_out"))

    def _scale(self, key: str, rank: int) -> float:
        """Return α/r, or α/√r, of a module."""
        alpha = self._setting(key, "alpha_pattern", self.config.get("lora_alpha", 8))
        return float(alpha / (rank**0.5 if self.config.get("use_rslora") else rank))

    def _setting(self, key: str, patterns: str, usual: Any) -> Any:
        """Return the value of a module; patterns are those of PEFT."""
        module = self._named[key].rpartition(".")[0]
        for pattern, own in (self.config.get(patterns) or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                return own
        return usual

    def __getitem__(self, key: str) -> Tensor:
        roles = self.parts.get(key)
        if roles is None:
            return self.base[key]
        base = self.stored(roles["whole"]) if "whole" in roles else self.base[key]
        if roles.keys() == {"whole"}:
            return base
        dtype = torch.promote_types(base.dtype, torch.float32)
        result = base.to(dtype) + self.update(key, dtype, base.device)
        if "magnitude_vector" not in roles:
            return result
        norm = self.stored(roles["magnitude_vector"]).to(base.device, dtype)
        rows = result.T if self._transposed else result.flatten(1)
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        rows = rows * (norm.view(-1, 1) / norms)
        return (rows.T if self._transposed else rows).reshape(base.shape)

    def stored(self, name: str) -> Tensor:
        """Return a tensor of the adapter's own file."""
        return super().__getitem__(name)

    def factors(self, key: str) -> tuple[Tensor, Tensor, float]:
        """Return the stored B and A of a key, and the factor s of their product."""
        roles = self.parts[key]
        b, a = (self.stored(roles.get(n, roles.get(f"embedding_{n}", ""))) for n in "BA")
        return b, a, self._scale(key, len(a))

    def update(
        self, key: str, dtype: torch.dtype = torch.float32, device: torch.device | None = None
    ) -> Tensor:
        """Return what is added to a tensor before DoRA's norms, s B A."""
        roles = self.parts[key]
        if "bias" in roles:
            rank = len(self.stored(roles["A"]))
            return self._scale(key, rank) * self.stored(roles["bias"]).to(device, dtype)
        b, a, scale = self.factors(key)
        product = b.to(device, dtype).flatten(1) @ a.to(device, dtype).flatten(1)
        product = scale * product
        return (product.T if self.turned(key) else product).reshape(
            self._adapted_shape(roles) or ()
        )

    def turned(self, key: str) -> bool:
        """Whether a weight is stored with one column per output, so that B A is transposed."""
        return "embedding_A" in self.parts[key] or self._transposed

    def __contains__(self, key: object) -> bool:
        return key in self.base or key in self.parts

    def __iter__(self) -> Iterator[str]:
        yield from self.base
        yield from (key for key in self.parts if key not in self.base)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def layout(self) -> dict[str, Tensor]:
        """Shapes and dtypes as tensors on the meta device."""
        layout = {key: tensor.to("meta") for key, tensor in layout_of(self.base).items()}
        for key, roles in self.parts.items():
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
        return {k: first for k, first in ties if not {k, first} & self.parts.keys()}

    @property
    def files(self) -> list[InputFile]:
        """The files of the base, then the adapter's weights and configuration."""
        return [*getattr(self.base, "files", []), *self._files]


def read_config(folder: Path, files: list[InputFile] | None = None) -> dict[str, Any]:
    """Return an adapter's configuration, whose file is added to ``files``.

    A configuration that cannot be read, or has entries of a wrong kind, is a ValueError.
    """
    try:
        file = input_file(folder / CONFIG)
        content = json.loads(file.read(0, file.size).numpy().tobytes())
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        check_fits(_KINDS | _PATTERNS, content)
        for pattern in chain(*(content.get(name) or () for name in _PATTERNS)):
            re.compile(pattern)
    except (OSError, ValueError, RecursionError, re.error) as error:
        raise ValueError(f"{folder / CONFIG} cannot be read: {error}") from None
    if files is not None:
        files.append(file)
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
