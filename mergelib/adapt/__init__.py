"""Procedures: merging methods that look at data.

They take the model and what turns its output into predictions besides the experts. What data each
needs, and how much of it, stands in `mergelib.methods`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from mergelib.adapt.adamerging import adamerging
from mergelib.adapt.common import Adapted
from mergelib.adapt.fisher import fisher
from mergelib.adapt.frank_wolfe import frank_wolfe
from mergelib.adapt.regmean import regmean
from mergelib.adapt.soups import greedy_soup
from mergelib.registry import get_method
from mergelib.statedict import Experts, StateDict

__all__ = ["Adapted", "adamerging", "adapt", "fisher", "frank_wolfe", "greedy_soup", "regmean"]


def adapt(
    method: str,
    experts: Experts,
    *,
    pretrained: StateDict,
    model: nn.Module,
    data: Mapping[str, Any],
    heads: Mapping[str, nn.Module] | None = None,
    **hyperparameters: Any,
) -> Adapted:
    """Merge experts with the help of data.

    Args:
        method: a procedure of `mergelib.methods`.
        experts: mapping of name to state dict, or a list of state dicts; as for `merge`.
        pretrained: the state dict they were fine-tuned from.
        model: the architecture; its own weights are left alone.
        data: task to the model's inputs, or to a pair of inputs and labels, as each procedure
            describes them.
        heads: task to what turns the model's output into logits, for procedures that predict.
        **hyperparameters: the procedure's own.

    Raises:
        ValueError: an unknown method, and what the procedure refuses.
        TypeError: a hyperparameter that the method does not have.
    """
    chosen = get_method(method, "procedure")
    chosen.check(hyperparameters, pretrained=True)
    procedure: Callable[..., Adapted] = chosen.function
    given: dict[str, Any] = {"model": model, "data": data}
    if "heads" in chosen.parameters:
        if heads is None:
            raise ValueError(f"{method} needs heads: pass heads=")
        given["heads"] = heads
    return procedure(experts, pretrained, **given, **hyperparameters)
