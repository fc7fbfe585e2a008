"""Losses of single examples as functions of a model's parameters, and their gradients."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import overload

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
    """The loss of one example, from parameters by name, its inputs and its label.

    Attributes:
        model: the architecture; its mode is the caller's.
        head: from its output to logits.
        constants: what of the state is no parameter, as the statistics of BatchNorm.
        criterion: from logits ``(M, C)`` and labels ``(M,)`` of one example to a scalar.
    """

    model: nn.Module
    head: nn.Module
    constants: Tensors
    criterion: Criterion

    def logits(self, parameters: Tensors, inputs: Inputs) -> Tensor:
        """What model and head give for a batch of inputs."""
        logits: Tensor = self.head(call_with(self.model, {**self.constants, **parameters}, inputs))
        return logits

    def __call__(self, parameters: Tensors, inputs: Inputs, label: Tensor) -> Tensor:
        logits = self.logits(parameters, _alone(inputs))
        return self.criterion(logits.flatten(0, -2), label.flatten())


def example_loss(
    model: nn.Module, state: StateDict, head: nn.Module, criterion: Criterion
) -> tuple[Tensors, ExampleLoss]:
    """The parameters that a state holds, in float32 on the model's device, and an example's loss.

    Args:
        model: the architecture.
        state: its weights.
        head: from its output to logits.
        criterion: see `ExampleLoss`.
    """
    device = next(model.parameters()).device
    names = [name for name, _ in model.named_parameters()]
    parameters = {name: state[name].detach().float().to(device) for name in names}
    known = {*parameters, *tied_names(model)}
    constants = {key: value.to(device) for key, value in state.items() if key not in known}
    return parameters, ExampleLoss(model, head, constants, criterion)


def example_losses(
    loss: LossOfOne, parameters: Tensors, x: Inputs, y: Tensor, *, own: bool = False
) -> Tensor:
    """The loss of each example of a batch, ``(B,)``: vectorised, or one by one if that fails.

    Args:
        loss: of one example.
        parameters: by name.
        x: inputs, examples first.
        y: labels.
        own: parameters are of each example, examples first.
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
    """Gradients of single examples: vectorised, or one by one once that has failed."""

    def __init__(self) -> None:
        self._one_by_one = False

    def __call__(self, loss: LossOfOne, parameters: Tensors, x: Inputs, y: Tensor) -> Tensors:
        """The gradient of each example of a batch, by parameter, examples first.

        Fused attention has no rule for this: call it under ``sdpa_kernel(SDPBackend.MATH)``.

        Warns:
            UserWarning: if PyTorch cannot vectorise the model, so that examples go one by one.
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
                f"the model's examples cannot be vectorised, so they go one by one: {reason}",
                stacklevel=2,
            )
        return {name: torch.stack([row[name].detach() for row in rows]) for name in parameters}


@overload
def _row(inputs: Tensors, row: int) -> Tensors: ...


@overload
def _row(inputs: Inputs, row: int) -> Inputs: ...


def _row(inputs: Inputs, row: int) -> Inputs:
    """One example, without the dimension that counts them."""
    if isinstance(inputs, Tensor):
        return inputs[row]
    return {name: x[row] for name, x in inputs.items()}


def _alone(example: Inputs) -> Inputs:
    """One example as a batch."""
    if isinstance(example, Tensor):
        return example[None]
    return {name: x[None] for name, x in example.items()}
