"""A task's mean loss as a function of a model's parameters, with its derivatives by example."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from mergelib.messages.brief import Brief
from mergelib.problems.calling import transform_of, transformed
from mergelib.problems.examples import Examples, Inputs
from mergelib.problems.gradients import (
    ExampleGradients,
    LossOfOne,
    Tensors,
    example_loss,
    example_losses,
)
from mergelib.problems.problem import Problem
from mergelib.statedict import StateDict, flatten, unflatten

Product = Callable[[Tensor], Tensor]

exact_attention = partial(sdpa_kernel, SDPBackend.MATH)  # the fused one has no second derivative


@dataclass(frozen=True, repr=False)
class TaskLoss(Brief):
    """The mean loss f_t of a task's examples, as a function of a model's parameters."""

    point: Tensors  # θ, the parameters by name
    loss: LossOfOne  # of one example, from parameters, its inputs and its label
    examples: Examples  # with labels; inputs as ``loss`` takes them
    batch_size: int = 32  # examples at once; each takes the memory of one gradient

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, rows: Tensor | slice) -> "TaskLoss":
        """The mean loss of some of the examples."""
        return TaskLoss(self.point, self.loss, self.examples[rows], self.batch_size)

    def values(self) -> Tensor:
        """The loss of every example at θ, ``(n,)``."""
        with torch.no_grad():
            return torch.cat([self._losses(self.point, *batch) for batch in self._batches()])

    def gradient(self) -> Tensor:
        parts = [flatten(grad(self._total)(self.point, x, y)) for x, y in self._batches()]
        return torch.stack(parts).sum(0).detach() / len(self)

    def hessian(self) -> Product:
        """The map v ↦ ∇²f_t(θ) v of ``(d,)``, which keeps what its passes back need in memory."""
        batches = [partial(self._total, x=x, y=y) for x, y in self._batches()]
        products = [_hessian(total, self.point) for total in batches]

        def along(direction: Tensor) -> Tensor:
            parts = unflatten(direction, self.point)
            return torch.stack([flatten(each(parts)) for each in products]).sum(0) / len(self)

        return along

    def example_gradients(self) -> Iterator[Tensor]:
        """∇ℓ(θ; z) of all examples, batch by batch ``(B, d)``."""
        gradients = ExampleGradients()
        for x, y in self._batches():
            with exact_attention():
                yield _rows(gradients(self.loss, self.point, x, y))

    def example_hessians(self, rows: slice) -> Product:
        """The map v ↦ ∇²ℓ(θ; z) v of some examples, each along its own direction, ``(B, d)``."""
        batch = self.examples[rows].to(next(iter(self.point.values())).device)
        copies = {name: part.expand(len(batch), *part.shape) for name, part in self.point.items()}

        def total(points: Tensors) -> Tensor:
            with exact_attention():
                labels = batch.pair[1]
                return example_losses(self.loss, points, batch.inputs, labels, own=True).sum()

        along, split = _hessian(total, copies), vmap(partial(unflatten, like=self.point))
        return lambda directions: _rows(along(split(directions)))

    def _losses(self, point: Tensors, x: Inputs, y: Tensor) -> Tensor:
        with exact_attention():
            return example_losses(self.loss, point, x, y)

    def _total(self, point: Tensors, x: Inputs, y: Tensor) -> Tensor:
        return self._losses(point, x, y).sum()

    def _batches(self) -> Iterator[tuple[Inputs, Tensor]]:
        device = next(iter(self.point.values())).device
        for batch in self.examples.batches(self.batch_size):
            moved = batch.to(device)
            yield moved.inputs, moved.pair[1]


def task_losses(problem: Problem, state: StateDict, *, batch_size: int = 32) -> dict[str, TaskLoss]:
    """The cross-entropy of every task with data, around a state, in evaluation mode."""
    model = copy.deepcopy(problem.model).eval()
    found = {}
    for task, examples in problem.data.items():
        head = copy.deepcopy(problem.heads[task]).eval()
        point, loss = example_loss(model, state, head, F.cross_entropy)
        ready = transformed(examples.inputs, transform_of(problem.transform, task))
        found[task] = TaskLoss(point, loss, Examples(ready, examples.labels), batch_size)
    return found


def _hessian(total: Callable[[Tensors], Tensor], point: Tensors) -> Callable[[Tensors], Tensors]:
    """The product with the Hessian of ``total`` at a point, by its symmetry a pass backwards."""
    back = vjp(grad(total), point)[1]

    def product(direction: Tensors) -> Tensors:
        with torch.no_grad():
            (found,) = back(direction)
        return {name: value.detach() for name, value in found.items()}

    return product


def _rows(gradients: Tensors) -> Tensor:
    return torch.cat([value.flatten(1) for value in gradients.values()], dim=1)
