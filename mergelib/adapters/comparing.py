"""Open adapters, and compare what they add to the weights of one base."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from mergelib.hashing import sha256_of
from mergelib.inspection.companions import check_companions
from mergelib.io import AnyPath, Checkpoint, WithAdapter, find_base, renamed, resolve_base, split
from mergelib.merging import Source
from mergelib.messages.renames import explain_names
from mergelib.messages.warned import warn
from mergelib.parts import Parts, Selection
from mergelib.statedict import StateDict

Adapters = Mapping[str, WithAdapter]

FULL = "merge into a full model (merge_files, mergelib merge)"
OR_EXCLUDE = "pass the base as pretrained=, or leave the module out with exclude="


def open_adapters(
    models: Mapping[str, AnyPath], pretrained: AnyPath | None, rename: Mapping[str, str] | None
) -> tuple[dict[str, WithAdapter], Checkpoint | None, str]:
    """Return the adapters by name, their base if it is here, and how they call it.

    Their tensors are renamed as `renamed` does with models.
    """
    folders: dict[str, Path] = {}
    bases: dict[str, str] = {}
    for name, path in models.items():
        before, folder = split(path)
        if folder is None:
            Checkpoint(path)  # which refuses what is not there
            raise ValueError(
                f"{path} is not the folder of an adapter (adapter_config.json and "
                "adapter_model.safetensors): full models are merged by merge_files (mergelib merge)"
            )
        text, place = find_base(folder)
        place = before or place
        folders[name], bases[name] = folder, str(place.resolve()) if place else text
    named_here = {text for text in bases.values() if text}
    if pretrained is None and len(named_here) > 1:
        listed = ", ".join(f"{name}: {text!r}" for name, text in bases.items())
        raise ValueError(
            f"adapters of different bases ({listed}) are not merged: if they are one model, pass "
            "its file or folder as pretrained="
        )
    if pretrained is not None:
        resolve_base(models, pretrained)
    base_name = next(iter(named_here), "") if len(named_here) == 1 else str(pretrained or "")
    if pretrained is None and Path(base_name).is_dir():
        pretrained = base_name or None
    base = None if pretrained is None else Checkpoint(pretrained)
    names: dict[str, dict[str, str]] = {}
    if rename:
        own = {name: WithAdapter(folder, None).layout for name, folder in folders.items()}
        new = renamed(own, base, rename)
        names = {name: dict(zip(new[name], own[name], strict=True)) for name in own}
    opened = {n: WithAdapter(folder, base, names=names.get(n)) for n, folder in folders.items()}
    (what, first), *others = opened.items()
    for name, adapter in others if base is None else ():
        shared = adapter.parts.keys() & first.parts.keys()
        if not shared and (hint := explain_names(name, adapter.parts, what, first.parts)):
            warn(f"{name} and {what} have no tensor in common{hint}")
    tasks = {str(adapter.config.get("task_type")) for adapter in opened.values()}
    if base is None and len(tasks) > 1:
        raise ValueError(
            f"adapters of different tasks ({', '.join(sorted(tasks))}) may name modules "
            "differently: pass the base as pretrained="
        )
    return opened, base, base_name


def tell_of_copies(adapters: Adapters) -> None:
    """Warn about adapters with equal files."""
    groups: dict[str, list[str]] = {}
    for name, adapter in adapters.items():
        (file,) = (file for file in adapter.shards if file.parent == adapter.path)
        groups.setdefault(sha256_of(file), []).append(name)
    for names in groups.values():
        if len(names) > 1:
            warn(
                f"{' and '.join(names)} are one adapter, which therefore counts {len(names)} "
                "times: pass each adapter once"
            )


class _Updates(Mapping[str, Tensor]):
    """What an adapter adds to each weight, zero if nothing, and tensors that were trained whole.

    Attributes:
        layout: shapes and dtypes.
        tied: none are.
    """

    def __init__(
        self, adapter: WithAdapter, zeros: StateDict, held: StateDict, layout: StateDict
    ) -> None:
        self._adapter, self._zeros, self._held, self.layout = adapter, zeros, held, layout
        self.tied: dict[str, str] = {}

    def __getitem__(self, key: str) -> Tensor:
        roles = self._adapter.parts.get(key)
        if key not in self._zeros:
            return self._held[key] if roles is None else self._adapter[key]
        if roles is None:
            return self._zeros[key]
        if "magnitude_vector" in roles:
            return self._adapter[key] - self._adapter.base[key]
        return self._adapter.update(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout)

    def __len__(self) -> int:
        return len(self.layout)


def compare_adapters(
    opened: Adapters, base: Checkpoint | None, parts: Parts
) -> tuple[Source, dict[str, Tensor]]:
    """Return the updates, with zeros as their base, and tensors to be copied.

    Keys in the ``kinds`` of the source are updates; True stands for layers that are not tables.
    """
    selected = parts.selected(dict.fromkeys(k for a in opened.values() for k in a.parts))
    shapes: dict[str, Tensor] = {}
    kinds: dict[str, bool] = {}
    copied: dict[str, Tensor] = {}
    for adapter in opened.values():
        layout = adapter.layout
        for key, roles in adapter.parts.items():
            if key not in selected:
                continue
            known = key in shapes
            expected, here = shapes.setdefault(key, layout[key]).shape, layout[key].shape
            updated = roles.keys() != {"whole"}
            if here != expected or (known and updated != (key in kinds)):
                raise ValueError(
                    f"{adapter.path} does not fit the adapters before it: {key!r} has shape "
                    f"{list(here)}, expected {list(expected)}, or was trained whole in one of "
                    "them: merge adapters of one base, or leave the module out with exclude="
                )
            if updated:
                kinds[key] = "A" in roles
                _check_update(adapter, key, base, copied)
    zeros = {key: torch.zeros(()).expand(shapes[key].shape) for key in kinds}
    held: dict[str, Tensor] = {}
    for key in shapes.keys() - kinds.keys():
        if base is not None and key in base:
            held[key] = base[key]
            continue
        for adapter in opened.values():
            if key not in adapter.parts:
                raise ValueError(
                    f"{adapter.path} lacks {key!r}, which was trained whole in another adapter, "
                    f"and so does the base, if it is here: {OR_EXCLUDE}"
                )
    complete = len(held) + len(zeros) == len(shapes)
    check_companions({n: a.path for n, a in opened.items()}, shapes, {*shapes}, {*shapes})
    experts = {
        name: _Updates(adapter, zeros, held, {**shapes, **zeros})
        for name, adapter in opened.items()
    }
    selection = Selection(tuple(shapes), frozenset(shapes))
    return Source(experts, {**zeros, **held} if complete else None, selection, {}, kinds), copied


def _check_update(
    adapter: WithAdapter, key: str, base: Checkpoint | None, copied: dict[str, Tensor]
) -> None:
    """Refuse updates that are not merged; add a table that PEFT saved beside factors to copies."""
    roles = adapter.parts[key]
    if "bias" in roles:
        raise ValueError(
            f"{adapter.path} was trained with lora_bias ({key!r}), which is not merged into an "
            f"adapter: {FULL}"
        )
    if "magnitude_vector" in roles and base is None:
        raise ValueError(dora_refusal(adapter, key))
    if "whole" in roles:
        name, tensor = roles["whole"], adapter.stored(roles["whole"])
        if not torch.equal(copied.setdefault(name, tensor), tensor):
            raise ValueError(
                f"{adapter.path} stores a table {name!r} that differs from the one in the adapters "
                "before it: bring them to one table, or leave it out with exclude="
            )


def dora_refusal(adapter: WithAdapter, key: str) -> str:
    """Return the error message for DoRA without a rank or base."""
    return (
        f"{adapter.path} is a DoRA adapter ({key!r}), whose update has full rank: pass rank= and "
        f"the base as pretrained=, so that the update is truncated, or {FULL}"
    )
