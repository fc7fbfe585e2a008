"""State dicts on a device, ties kept; those in files stay there until a tensor is asked for."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from mergelib.merging import tied_keys
from mergelib.statedict import StateDict, layout_of, repeated


class LazyState(Mapping[str, Tensor]):
    """A state dict whose tensors are read, cast and moved whenever they are asked for.

    Args:
        parts: key to the state dict that has its tensor, such as a `mergelib.Checkpoint`, and the
            key there.
        layout: shapes, and the dtypes to cast to, by tensors without memory.
        device: where to move them; by default they stay where they are read.
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
        """Keys of tensors that have an earlier key, to which they are mapped."""
        states = {id(state): state for state, _ in self._parts.values()}
        ties = {name: tied_keys(state) for name, state in states.items()}
        return repeated(
            {key: (id(s), ties[id(s)].get(name, name)) for key, (s, name) in self._parts.items()}
        )


def is_lazy(state: StateDict) -> bool:
    """Whether every access reads a tensor anew, as of a `mergelib.Checkpoint`."""
    return hasattr(state, "layout")


def state_to(state: StateDict, device: torch.device | str) -> StateDict:
    """The state dict on a device; tied tensors stay tied, and lazily read ones lazily read."""
    device = torch.empty(0, device=device).device  # "cuda" is the current one, say cuda:0
    if is_lazy(state):
        here = all(state[key].device == device for key in list(state)[:1])
        parts = {key: (state, key) for key in state}
        return state if here else LazyState(parts, layout_of(state), device)
    if all(tensor.device == device for tensor in state.values()):
        return state
    aliases = tied_keys(state)
    moved = {key: tensor.to(device) for key, tensor in state.items() if key not in aliases}
    return {key: moved[aliases.get(key, key)] for key in state}
