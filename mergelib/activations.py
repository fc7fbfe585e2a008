"""What the layers of a network are given: the inputs of its linear layers, seen by hooks."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mergelib.statedict import StateDict


@torch.no_grad()
def layer_inputs(
    model: nn.Module, inputs: Tensor, state: StateDict | None = None
) -> dict[str, Tensor]:
    """What the linear layers of a model are given: key of the weight to rows ``(count, n)``.

    Positions of a sequence count as rows of their own.

    Args:
        model: run as it is, in its own mode.
        inputs: what it takes.
        state: weights in place of the model's own.
    """
    seen: dict[str, Tensor] = {}

    def keep(key: str, given: Tensor) -> None:
        seen[key] = given.detach().flatten(0, -2)

    handles = [
        module.register_forward_pre_hook(lambda _, given, key=f"{name}.weight": keep(key, given[0]))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        functional_call(model, {} if state is None else dict(state), (inputs,))
    finally:
        for handle in handles:
            handle.remove()
    return seen
