"""Losses on calibration data, as functions of a model's parameters."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mergelib.procedures.common import Transform, evaluating, labelled, unlabelled
from mergelib.procedures.objectives import prediction_loss

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class CalibrationLoss:
    """The mean over tasks of a loss on calibration data, as a function of the model's parameters.

    Attributes:
        model: the architecture.
        fixed: its buffers.
        heads: task to head.
        data: task to inputs and labels, or to inputs alone for the entropy.
        batch_size: inputs at once.
        transform: from a batch of inputs to the model's.
    """

    model: nn.Module
    fixed: Tensors
    heads: Mapping[str, nn.Module]
    data: Mapping[str, tuple[Tensor, Tensor | None]]
    batch_size: int
    transform: Transform | None

    def value(self, parameters: Tensors) -> float:
        with torch.no_grad():
            return sum(float(part) for part in self._parts(parameters))

    def gradient(self, parameters: Tensors) -> tuple[float, Tensors]:
        moved = {key: each.detach().requires_grad_() for key, each in parameters.items()}
        total = {key: torch.zeros_like(each) for key, each in parameters.items()}
        loss = 0.0
        for part in self._parts(moved):
            loss += float(part.detach())
            found = torch.autograd.grad(part, list(moved.values()), allow_unused=True)
            for key, each in zip(moved, found, strict=True):
                if each is not None:
                    total[key] += each
        return loss, total

    def _parts(self, parameters: Tensors) -> Iterator[Tensor]:
        """The loss in parts that add up to it, one a batch."""
        device = next(iter(parameters.values())).device
        with evaluating(self.model):
            for task, (inputs, labels) in self.data.items():
                for rows in torch.arange(len(inputs)).split(self.batch_size):
                    x = inputs[rows].to(device)
                    x = x if self.transform is None else self.transform(x)
                    output = functional_call(self.model, {**self.fixed, **parameters}, (x,))
                    logits = self.heads[task](output).flatten(0, -2)
                    own = None if labels is None else labels[rows].to(device)
                    part = prediction_loss(logits, own)
                    if not torch.isfinite(part):
                        raise ValueError(
                            f"the loss of task {task!r} is {part.item()}: look at its inputs"
                        )
                    yield part * (len(rows) / len(inputs) / len(self.data))


def calibration_data(
    data: Mapping[str, Any], loss: str, method: str
) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Task to inputs and labels, or to inputs and nothing for the entropy, which needs no labels.

    Raises:
        ValueError: labels that are missing, or a task without inputs.
    """
    if loss == "cross_entropy":
        return {**labelled(data, f"{method} with cross_entropy")}
    return {task: (inputs, None) for task, inputs in unlabelled(data).items()}
