"""Batches of every task, and the losses that a merged model has on them.

What procedures with steps share. Each step takes a batch of every task through the model together.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from mergelib.procedures.common import Transform, complete, evaluating
from mergelib.statedict import StateDict


def entropy(logits: Tensor) -> Tensor:
    """Mean Shannon entropy of the softmax of logits ``(B, C)``, in nats."""
    logs = torch.log_softmax(logits, dim=1)
    return -(logs.exp() * logs).sum(1).mean()


def prediction_loss(logits: Tensor, labels: Tensor | None) -> Tensor:
    """The cross-entropy of logits ``(B, C)``, or without labels their `entropy`; mean, in nats."""
    if labels is None:
        return entropy(logits)
    return functional.cross_entropy(logits, labels.flatten())


def check_steps(steps: int, batch_size: int) -> None:
    """Raise ValueError for fewer than no steps, or an empty batch."""
    if steps < 0:
        raise ValueError(f"steps is {steps}, expected at least 0")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, expected at least 1")


def batch_rows(sizes: Mapping[str, int], batch_size: int, seed: int) -> Iterator[dict[str, Tensor]]:
    """Endless batches: task to indices below its size, each once before any comes again."""
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
    data: Mapping[str, Tensor], batch_size: int, seed: int, device: torch.device
) -> Iterator[dict[str, Tensor]]:
    """Endless batches of inputs, on the device; see `batch_rows`."""
    for rows in batch_rows({task: len(each) for task, each in data.items()}, batch_size, seed):
        yield {
            task: data[task][some.to(data[task].device)].to(device) for task, some in rows.items()
        }


def task_losses(
    run: Callable[[Tensor], Tensor],
    heads: Mapping[str, nn.Module],
    inputs: Mapping[str, Tensor],
    loss: Callable[[str, Tensor], Tensor],
    transform: Transform | None,
) -> dict[str, Tensor]:
    """The loss of each task, from one pass of all inputs through the model.

    Args:
        run: the model.
        heads: task to what turns its output into logits.
        inputs: task to a batch.
        loss: from a task and its logits ``(N, C)``.
        transform: from inputs to the model's.

    Raises:
        ValueError: a loss that is not finite, naming the task.
    """
    together = torch.cat(list(inputs.values()))
    outputs = run(together if transform is None else transform(together))
    parts = outputs.split([len(each) for each in inputs.values()])
    losses = {}
    for task, part in zip(inputs, parts, strict=True):
        losses[task] = loss(task, heads[task](part).flatten(0, -2))
        if not torch.isfinite(losses[task]):
            raise ValueError(
                f"the loss of task {task!r} became {losses[task].item()}: look at its inputs"
            )
    return losses


def loss_gradients(
    model: nn.Module,
    merged: dict[str, Tensor],
    keys: Sequence[str],
    pretrained: StateDict,
    heads: Mapping[str, nn.Module],
    inputs: Mapping[str, Tensor],
    transform: Transform | None,
    labels: Mapping[str, Tensor],
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Each task's loss, and the gradients of their sum.

    The gradients are with respect to the merged tensors themselves, so no graph goes through
    what made these.

    Args:
        model: the architecture, run in evaluation mode.
        merged: its tensors; `complete` adds what they lack.
        keys: of the tensors whose gradients are wanted.
        pretrained: see `complete`.
        heads: task to what turns the model's output into logits.
        inputs: task to a batch.
        transform: from inputs to the model's.
        labels: task to the batch's labels; a task without them has the entropy as its loss.
    """
    moved = [merged[key].requires_grad_() for key in keys]
    state = complete(merged, pretrained)
    with evaluating(model):
        losses = task_losses(
            lambda x: functional_call(model, state, (x,)),
            heads,
            inputs,
            lambda task, logits: prediction_loss(logits, labels.get(task)),
            transform,
        )
    gradients = torch.autograd.grad(torch.stack(list(losses.values())).sum(), moved)
    values = {task: loss.item() for task, loss in losses.items()}
    return values, dict(zip(keys, gradients, strict=True))
