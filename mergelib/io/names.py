"""Experts whose keys are renamed to those of the reference."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from mergelib.io.checkpoint import Checkpoint
from mergelib.messages.renames import rename_keys
from mergelib.settings import nearest
from mergelib.statedict import StateDict, layout_of, tied_keys


class Renamed(Mapping[str, Tensor]):
    """A model under other names, read on access; ``names`` maps each of these to the model's."""

    def __init__(self, model: StateDict, names: Mapping[str, str] | None = None) -> None:
        self._model, self._names = model, names or {key: key for key in model}
        self.shards: Mapping[Path, list[str]] = getattr(model, "shards", {})
        self.path, self.base = getattr(model, "path", None), getattr(model, "base", None)

    def __getitem__(self, key: str) -> Tensor:
        return self._model[self._names[key]]

    def __contains__(self, key: object) -> bool:
        return key in self._names  # without reading the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def layout(self) -> dict[str, Tensor]:
        """Shapes and dtypes as tensors on the meta device."""
        layout = layout_of(self._model)
        return {key: layout[old] for key, old in self._names.items()}

    @property
    def tied(self) -> dict[str, str]:
        """Map every further name of a tied tensor to its first name."""
        new = {old: key for key, old in reversed([*self._names.items()])}
        return {new[k]: new[first] for k, first in tied_keys(self._model).items() if k in new}


def renamed(
    experts: Mapping[str, StateDict], reference: StateDict | None, rename: Mapping[str, str] | None
) -> dict[str, StateDict]:
    """Return the experts with other names for keys that the reference, or first expert, lacks.

    Each pair of ``rename`` is applied after the one before it.

    Raises:
        ValueError: if a pattern changes nothing, or two keys of an expert get one name.
    """
    what = next(iter(experts)) if reference is None else "pretrained"
    known = experts[what] if reference is None else reference
    pairs, states = dict(rename or {}), dict(experts)
    unused = pairs.copy()
    for name, model in experts.items() if pairs else ():
        keys = [*model]
        for old, new in pairs.items():
            before, keys = keys, rename_keys(keys, old, new, known)
            if keys != before:
                unused.pop(old, None)
        names: dict[str, str] = {}
        for key, old in zip(keys, model, strict=True):
            if names.setdefault(key, old) != old:
                both = f"{names[key]!r} and {old!r}"
                raise ValueError(f"rename gives {both} of {name} one name, {key!r}")
        if keys == [*model]:
            continue
        in_file = isinstance(model, Checkpoint)
        states[name] = Renamed(model, names) if in_file else {k: model[names[k]] for k in names}
    for old in unused:
        left = [key for model in experts.values() for key in model if key not in known]
        raise ValueError(
            f"rename pattern {old!r} matches no key of an expert that {what} lacks"
            f"{nearest(old, left)}"
        )
    return states
