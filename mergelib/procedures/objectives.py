"""Batches of every task, and the losses of a merged model on them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from mergelib.messages.brief import Brief
from mergelib.problems.calling import (
    Transforms,
    call_with,
    evaluating,
    output_of,
    transform_of,
    transformed,
)
from mergelib.problems.examples import IGNORED, Examples, Inputs, Part, as_examples, join
from mergelib.problems.problem import Problem
from mergelib.procedures.common import complete

Tensors = dict[str, Tensor]


def entropy(logits: Tensor) -> Tensor:
    """Return the mean Shannon entropy of the softmax of logits ``(B, C)``, in nats."""
    logs = torch.log_softmax(logits, dim=1)
    return -(logs.exp() * logs).sum(1).mean()


def prediction_loss(logits: Tensor, labels: Tensor | None) -> Tensor:
    """Return the mean cross-entropy of logits ``(B, C)``, or without labels the entropy; nats."""
    if labels is None:
        return entropy(logits)
    return functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED)


def batch_rows(sizes: Mapping[str, int], batch_size: int, seed: int) -> Iterator[dict[str, Tensor]]:
    """Yield endless batches: task to row indices, each used once before any is used again."""
    generator = torch.Generator().manual_seed(seed)
    queues = {task: torch.empty(0, dtype=torch.long) for task in sizes}
    while True:
        batch = {}
        for task, size in sizes.items():
            while len(queues[task]) < min(batch_size, size):
                more = torch.randperm(size, generator=generator)
                queues[task] = torch.cat([queues[task], more])
            batch[task], queues[task] = queues[task][:batch_size], queues[task][batch_size:]
        yield batch


def batches(
    data: Mapping[str, Examples], batch_size: int, seed: int, device: torch.device
) -> Iterator[dict[str, Examples]]:
    """Yield endless batches of examples on the device; see `batch_rows`."""
    sizes = {task: len(examples) for task, examples in data.items()}
    for batch in batch_rows(sizes, batch_size, seed):
        yield {task: data[task][rows].to(device) for task, rows in batch.items()}


def task_losses(
    run: Callable[..., object],
    heads: Mapping[str, nn.Module],
    inputs: Mapping[str, Inputs | Examples],
    loss: Callable[[str, Tensor], Tensor],
    transform: Transforms,
) -> dict[str, Tensor]:
    """Return the loss of each task, from one pass of all inputs through the model.

    The ``loss`` maps a task and its logits ``(N, …, C)`` to a scalar; ValueError, naming the task,
    if that is not finite.
    """
    ready = {
        task: Examples(transformed(as_examples(batch).inputs, transform_of(transform, task)))
        for task, batch in inputs.items()
    }
    together = join([*ready.values()]).inputs
    outputs = output_of(run(together) if isinstance(together, Tensor) else run(**together))
    parts = outputs.split([len(batch) for batch in ready.values()])
    losses = {}
    for (task, batch), part in zip(ready.items(), parts, strict=True):
        losses[task] = _finite(task, loss(task, heads[task](batch.own_positions(part).clone())))
    return losses


def _finite(task: str, loss: Tensor) -> Tensor:
    if not torch.isfinite(loss):
        raise ValueError(
            f"the loss of task {task!r} became {loss.item()}: look at its inputs and transform, or "
            "lower learning_rate if the first steps went well"
        )
    return loss


def loss_gradients(
    problem: Problem,
    merged: dict[str, Tensor],
    keys: Sequence[str],
    batch: Mapping[str, Examples],
    trained: Sequence[Tensor] = (),
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return each task's loss, and the gradients of their sum by the merged tensors in ``keys``.

    No graph goes through the computation of the merged tensors. Model and heads run in evaluation
    mode; the loss of a task without labels is the entropy. Those by ``trained`` are their ``grad``.
    """
    leaves = [merged[key].requires_grad_() for key in keys]
    state = complete(merged, problem.pretrained)

    def run(*inputs: Tensor, **named: Tensor) -> Tensor:
        return call_with(problem.model, state, inputs[0] if inputs else named)

    with evaluating(problem.model, *problem.heads.values()):
        losses = task_losses(
            run,
            problem.heads,
            {task: examples.unlabelled for task, examples in batch.items()},
            lambda task, logits: prediction_loss(*batch[task].rows_of(logits)),
            problem.transform,
        )
    total = torch.stack(list(losses.values())).sum()
    gradients = torch.autograd.grad(total, [*leaves, *trained])
    for tensor, gradient in zip(trained, gradients[len(leaves) :], strict=True):
        tensor.grad = gradient
    values = {task: loss.item() for task, loss in losses.items()}
    return values, dict(zip(keys, gradients, strict=False))


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
                    yield _finite(task, loss) * (len(batch) / len(examples) / len(self.data))
