"""Procedures: merging methods that look at data.

They take the model and what turns its output into predictions besides the experts. What data each
needs, and how much of it, stands in `mergelib.methods`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from mergelib.adapt.adamerging import Adapted, adamerging
from mergelib.registry import get_method
from mergelib.statedict import Experts, StateDict

__all__ = ["Adapted", "adamerging", "adapt"]


def adapt(
    method: str,
    experts: Experts,
    *,
    pretrained: StateDict,
    model: nn.Module,
    heads: Mapping[str, nn.Module],
    data: Mapping[str, Tensor],
    **hyperparameters: Any,
) -> Adapted:
    """Merge experts with the help of data.

    Args:
        method: a procedure of `mergelib.methods`.
        experts: mapping of name to state dict, or a list of state dicts; as for `merge`.
        pretrained: the state dict they were fine-tuned from.
        model: the architecture; its own weights are left alone.
        heads: task to what turns the model's output into logits.
        data: task to the model's inputs, as each procedure describes them.
        **hyperparameters: the procedure's own.

    Raises:
        ValueError: an unknown method, and what the procedure refuses.
        TypeError: a hyperparameter that the method does not have.
    """
    chosen = get_method(method, "procedure")
    chosen.check(hyperparameters, pretrained=True)
    procedure: Callable[..., Adapted] = chosen.function
    return procedure(experts, pretrained, model=model, heads=heads, data=data, **hyperparameters)
