"""Losses on calibration data, as functions of a model's parameters."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mergelib.messages.brief import Brief
from mergelib.problems.calling import Transforms, call_with, evaluating, transform_of, transformed
from mergelib.problems.examples import Part, as_examples
from mergelib.procedures.objectives import prediction_loss

Tensors = dict[str, Tensor]


@dataclass(frozen=True, repr=False)
class CalibrationLoss(Brief):
    """The mean over tasks of a loss on calibration data, as a function of the model's parameters.

    Without labels the loss is the entropy; ``fixed`` are the model's buffers.
    """

    model: nn.Module
    fixed: Tensors
    heads: Mapping[str, nn.Module]
    data: Mapping[str, Part]
    batch_size: int
    transform: Transforms

    def value(self, parameters: Tensors) -> float:
        with torch.no_grad():
            return sum(float(part) for part in self._parts(parameters))

    def gradient(self, parameters: Tensors) -> tuple[float, Tensors]:
        leaves = {key: tensor.detach().requires_grad_() for key, tensor in parameters.items()}
        total = {key: torch.zeros_like(tensor) for key, tensor in parameters.items()}
        loss = 0.0
        for part in self._parts(leaves):
            loss += float(part.detach())
            gradients = torch.autograd.grad(part, list(leaves.values()), allow_unused=True)
            for key, gradient in zip(leaves, gradients, strict=True):
                if gradient is not None:
                    total[key] += gradient
        return loss, total

    def _parts(self, parameters: Tensors) -> Iterator[Tensor]:
        """Yield the loss in parts that sum to it, one per batch."""
        device = next(iter(parameters.values())).device
        with evaluating(self.model, *self.heads.values()):
            for task, part in self.data.items():
                examples = as_examples(part)
                for batch in examples.batches(self.batch_size):
                    batch = batch.to(device)
                    inputs = transformed(batch.inputs, transform_of(self.transform, task))
                    output = call_with(self.model, {**self.fixed, **parameters}, inputs)
                    loss = prediction_loss(*batch.rows_of(self.heads[task](output)))
                    if not torch.isfinite(loss):
                        raise ValueError(
                            f"the loss of task {task!r} is {loss.item()}: look at its inputs"
                        )
                    yield loss * (len(batch) / len(examples) / len(self.data))
