"""Move state dicts to a device and keep ties; tensors in files are read and moved on access."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from mergelib.statedict import StateDict, layout_of, repeated, tied_keys


class LazyState(Mapping[str, Tensor]):
    """A state dict whose tensors are read, cast and moved on access.

    Every key has a state dict and the key there in ``parts``; ``layout`` holds shapes and dtypes.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[StateDict, str]],
        layout: StateDict,
        device: torch.device | str | None = None,
    ) -> None:
        self._parts, self.layout, self._device = parts, layout, device

    def __getitem__(self, key: str) -> Tensor:
        state, name = self._parts[key]
        return state[name].to(self._device, self.layout[key].dtype)

    def __contains__(self, key: object) -> bool:
        return key in self._parts  # without reading the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def tied(self) -> dict[str, str]:
        """Map each further name of a tied tensor to its first name."""
        states = {id(state): state for state, _ in self._parts.values()}
        ties = {name: tied_keys(state) for name, state in states.items()}
        return repeated(
            {key: (id(s), ties[id(s)].get(name, name)) for key, (s, name) in self._parts.items()}
        )


def is_lazy(state: StateDict) -> bool:
    """Whether every access reads a tensor again, as for a `mergelib.Checkpoint`."""
    return hasattr(state, "layout")


def viewed(
    parts: Mapping[str, tuple[StateDict, str]],
    layout: StateDict,
    device: torch.device | str | None = None,
) -> StateDict:
    """Return a `LazyState` if one of its state dicts is lazy, else its tensors."""
    view = LazyState(parts, layout, device)
    if any(is_lazy(state) for state, _ in parts.values()):
        return view
    tied = view.tied
    loaded = {key: view[key] for key in view if key not in tied}
    return {key: loaded[tied.get(key, key)] for key in view}


def state_to(
    state: StateDict, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> StateDict:
    """Return the state dict on a device, at least in a precision; ties and laziness are kept."""
    layout = layout_of(state)
    if dtype is not None:
        layout = {
            key: t.to("meta", torch.promote_types(t.dtype, dtype)) if t.is_floating_point() else t
            for key, t in layout.items()
        }
        return viewed({key: (state, key) for key in state}, layout, device)
    if device is None:
        return state
    device = torch.empty(0, device=device).device  # "cuda" is the current one, say cuda:0
    looked_at = list(state)[: 1 if is_lazy(state) else None]
    if all(state[key].device == device for key in looked_at):
        return state
    return viewed({key: (state, key) for key in state}, layout, device)
