"""Losses of single examples as functions of a model's parameters, and their gradients."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from mergelib.messages.brief import Brief
from mergelib.problems.calling import call_with, tied_names
from mergelib.problems.examples import Inputs
from mergelib.statedict import StateDict

Tensors = dict[str, Tensor]
LossOfOne = Callable[[Tensors, Inputs, Tensor], Tensor]
Criterion = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, repr=False)
class ExampleLoss(Brief):
    """The loss of one example as a function of parameters, inputs and label.

    The ``criterion`` maps logits ``(M, C)`` and labels ``(M,)`` of one example to a scalar;
    ``constants`` are tensors that are not parameters, such as BatchNorm's statistics.
    """

    model: nn.Module
    head: nn.Module
    constants: Tensors
    criterion: Criterion

    def logits(self, parameters: Tensors, inputs: Inputs) -> Tensor:
        """Return the logits of a batch of inputs."""
        logits: Tensor = self.head(call_with(self.model, {**self.constants, **parameters}, inputs))
        return logits

    def __call__(self, parameters: Tensors, inputs: Inputs, label: Tensor) -> Tensor:
        logits = self.logits(parameters, _alone(inputs))
        return self.criterion(logits.flatten(0, -2), label.flatten())


def example_loss(
    model: nn.Module, state: StateDict, head: nn.Module, criterion: Criterion
) -> tuple[Tensors, ExampleLoss]:
    """Return a state's parameters, in float32 on the model's device, and the `ExampleLoss`."""
    device = next(model.parameters()).device
    names = [name for name, _ in model.named_parameters()]
    parameters = {name: state[name].detach().float().to(device) for name in names}
    parameter_names = {*parameters, *tied_names(model)}
    constants = {
        key: value.to(device) for key, value in state.items() if key not in parameter_names
    }
    return parameters, ExampleLoss(model, head, constants, criterion)


def example_losses(
    loss: LossOfOne, parameters: Tensors, x: Inputs, y: Tensor, *, own: bool = False
) -> Tensor:
    """Return the loss of each example, ``(B,)``: vectorised, or one by one if that fails.

    With ``own`` every example has parameters of its own, stacked in the first dimension.
    """
    try:
        losses: Tensor = vmap(loss, in_dims=(0 if own else None, 0, 0))(parameters, x, y)
        return losses
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # an error of the model itself is met again
        parts = [_row(parameters, i) if own else parameters for i in range(len(y))]
        return torch.stack([loss(parts[i], _row(x, i), y[i]) for i in range(len(y))])


class ExampleGradients:
    """Gradients of single examples: vectorised, or one by one after that has failed."""

    def __init__(self) -> None:
        self._one_by_one = False

    def __call__(self, loss: LossOfOne, parameters: Tensors, x: Inputs, y: Tensor) -> Tensors:
        """Return the gradients of a batch by parameter; the first dimension counts examples.

        Fused attention cannot be vectorised: use ``sdpa_kernel(SDPBackend.MATH)``. A
        UserWarning reports a model that cannot be vectorised either way.
        """
        if not self._one_by_one:
            try:
                gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
                return {name: g.detach() for name, g in gradients.items()}
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                reason = str(error).strip().split("\n")[0]
        rows = [grad(loss)(parameters, _row(x, i), y[i]) for i in range(len(y))]
        if not self._one_by_one:  # after the loop, which meets errors of the model itself as well
            self._one_by_one = True
            warnings.warn(
                f"the model's examples cannot be vectorised, so they run one by one: {reason}",
                stacklevel=2,
            )
        return {name: torch.stack([row[name].detach() for row in rows]) for name in parameters}


def _row(inputs: Any, row: int) -> Any:
    """Return one example, without the dimension that counts examples."""
    return inputs[row] if isinstance(inputs, Tensor) else {n: x[row] for n, x in inputs.items()}


def _alone(one: Any) -> Any:
    """Return one example as a batch."""
    return one[None] if isinstance(one, Tensor) else {n: x[None] for n, x in one.items()}
