"""The one door to all procedures: `mergelib.adapt`."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from mergelib.procedures.common import Adapted
from mergelib.registry import get_method
from mergelib.statedict import Experts, StateDict


def adapt(
    method: str,
    experts: Experts,
    *,
    pretrained: StateDict | None = None,
    model: nn.Module | None = None,
    data: Mapping[str, Any] | None = None,
    heads: Mapping[str, nn.Module] | None = None,
    **hyperparameters: Any,
) -> Adapted:
    """Merge experts with the help of data.

    Args:
        method: a procedure of `mergelib.methods`.
        experts: mapping of name to state dict, or a list of state dicts; as for `merge`.
        pretrained: the state dict they were fine-tuned from. This and the three below are asked
            for where the procedure takes them, and not looked at elsewhere.
        model: the architecture; its own weights are left alone.
        data: task to the model's inputs, or to a pair of inputs and labels, as each procedure
            describes them.
        heads: task to what turns the model's output into logits, for procedures that predict.
        **hyperparameters: the procedure's own.

    Raises:
        ValueError: an unknown method, a model, data or heads that are missing, and what the
            procedure refuses.
        TypeError: a hyperparameter that the method does not have.
    """
    chosen = get_method(method, "procedure")
    chosen.check(hyperparameters, pretrained=pretrained is not None)
    procedure: Callable[..., Adapted] = chosen.function
    given: dict[str, Any] = {"pretrained": pretrained, "model": model, "data": data, "heads": heads}
    taken = {name: value for name, value in given.items() if name in chosen.parameters}
    for name, value in taken.items():
        if value is None:
            raise ValueError(f"{method} needs {name}: pass {name}=")
    return procedure(experts, **taken, **hyperparameters)
