"""State dicts moved to a device as a whole, ties kept."""

import torch
from torch import Tensor

from mergelib.merging import tied_keys
from mergelib.statedict import StateDict


def state_to(state: StateDict, device: torch.device | str) -> dict[str, Tensor]:
    """The state dict on a device; tied tensors stay tied."""
    if all(tensor.device == torch.device(device) for tensor in state.values()):
        return dict(state)
    aliases = tied_keys(state)
    moved = {key: tensor.to(device) for key, tensor in state.items() if key not in aliases}
    return {key: moved[aliases.get(key, key)] for key in state}
