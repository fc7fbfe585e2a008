"""The network that CoGraM works on: its layers, its loss on the data, and stored forward passes.

Losses are computed in double precision, because decisions depend on their sixth digit and must not
depend on the order of summation.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from mergelib.activations import hooked
from mergelib.messages.brief import Brief
from mergelib.problems.calling import transform_of, transformed
from mergelib.problems.checks import check_classes
from mergelib.problems.problem import Problem
from mergelib.statedict import StateDict, tied_keys

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
FEW = 8  # candidates, for which one call counts for more than its arithmetic

Tensors = dict[str, Tensor]
Prefix = dict[nn.Module, list[Any]]


@dataclass(frozen=True, repr=False)
class Layer(Brief):
    """A module that owns tensors."""

    name: str  # its path, empty for the model itself
    module: nn.Module  # in the working copy of the network
    tensors: Tensors  # floating parameters and buffers by local name
    refinable: bool  # it has units: it is linear or convolutional, runs once and shares nothing

    def part_of(self, state: StateDict) -> Tensors:
        """Return this layer's tensors in a state dict, in double precision."""
        prefix = f"{self.name}." if self.name else ""
        return {
            key: state[prefix + key].to(tensor.device, torch.float64)
            for key, tensor in self.tensors.items()
        }

    def write(self, tensors: Tensors) -> None:
        """Copy other values into this layer's tensors."""
        for key, tensor in self.tensors.items():
            tensor.copy_(tensors[key])

    def matrix(self, tensors: Tensors) -> Tensor:
        """Return weights and bias as ``(rows, fan_in + 1)``, one row per unit."""
        weight, bias = tensors["weight"].flatten(1), tensors.get("bias")
        return weight.clone() if bias is None else torch.cat([weight, bias[:, None]], 1)

    def from_matrix(self, matrix: Tensor) -> Tensors:
        """Return the tensors for such a matrix."""
        weight = self.tensors["weight"]
        count = weight[0].numel()
        tensors = {"weight": matrix[:, :count].view_as(weight)}
        return tensors if "bias" not in self.tensors else {**tensors, "bias": matrix[:, -1]}


class Network:
    """A working copy of the model in double precision, with the data of all tasks.

    Raises:
        ValueError: targets do not fit a head's output; the message names the task.
    """

    def __init__(self, problem: Problem, state: StateDict, loss: str) -> None:
        self.model = copy.deepcopy(problem.model).double().eval().requires_grad_(False)
        self.model.load_state_dict(state)
        device = next(self.model.parameters()).device
        heads, data = problem.heads, problem.data
        ready = [
            transformed(examples[:].inputs, transform_of(problem.transform, task))
            for task, examples in data.items()
        ]
        self._inputs = torch.cat([_double(x.to(device)) for x in ready if isinstance(x, Tensor)])
        self.targets = [_double(examples.pair[1].to(device)) for examples in data.values()]
        self.heads = [copy.deepcopy(heads[task]).double().eval().to(device) for task in data]
        self.sizes = dict(zip(data, map(len, ready), strict=True))
        self.entropy = loss == "cross_entropy"
        parts = self.model(self.inputs).split([*self.sizes.values()])
        for number, (task, head, part) in enumerate(zip(data, self.heads, parts, strict=True)):
            targets, shape = self.targets[number], head(part).shape
            expected = shape[:-1] if self.entropy else shape
            if targets.shape != expected:
                raise ValueError(
                    f"targets of task {task!r} have shape {tuple(targets.shape)}, "
                    f"expected {tuple(expected)}"
                )
            if self.entropy:
                check_classes(task, targets, shape[-1])
                # weights of log-probabilities in the loss: -1/N for each right class
                right = functional.one_hot(targets, shape[-1]).double().flatten()
                self.targets[number] = right / -targets.numel()

    @property
    def inputs(self) -> Tensor:
        """The inputs of all tasks, copied, because some models change theirs in place."""
        return self._inputs.clone()

    def loss(self) -> float:
        """Return the loss of the network as it is."""
        return self.losses(self.model(self.inputs)[None]).item()

    def losses(self, outputs: Tensor) -> Tensor:
        """Return losses ``(K,)`` from outputs ``(K, N, ...)`` of candidates."""
        parts = outputs.split([*self.sizes.values()], 1) if len(self.sizes) > 1 else [outputs]
        losses = []
        for head, targets, part in zip(self.heads, self.targets, parts, strict=True):
            logits = part
            if not isinstance(head, nn.Identity):
                logits = head(part.flatten(0, 1)).unflatten(0, part.shape[:2])
            if not self.entropy:
                losses.append((logits - targets).square().flatten(1).mean(1))
            elif len(logits) > FEW:
                normalisers = logits.logsumexp(-1).flatten(1).mean(1)
                losses.append(normalisers + logits.flatten(1) @ targets)
            else:
                losses.append(logits.log_softmax(-1).flatten(1) @ targets)
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean(0)

    def layers(self) -> list[Layer]:
        """Return layers with floating tensors in the order of the forward pass, tied ones once."""
        trace = Trace(self)
        state = self.model.state_dict()
        tied = tied_keys(state)
        owned: dict[str, Tensors] = {}
        for key, tensor in state.items():
            if tensor.is_floating_point() and key not in tied:
                owner, _, name = key.rpartition(".")
                owned.setdefault(owner, {})[name] = tensor
        shared = {key.rpartition(".")[0] for pair in tied.items() for key in pair}
        layers = []
        for owner, tensors in owned.items():
            module = self.model.get_submodule(owner)
            kind = isinstance(module, (nn.Linear, *CONVOLUTIONS))
            refinable = kind and owner not in shared and trace.runs[module] == 1
            layers.append(Layer(owner, module, tensors, refinable))
        places = {module: place for place, module in enumerate(trace.begun)}
        return sorted(layers, key=lambda layer: places.get(layer.module, len(places)))


class Trace:
    """One forward pass: every module's output, and how many outputs existed when it first began.

    ``input`` is the first input of the ``watched`` module, ``output`` the model's output.
    """

    def __init__(self, network: Network, watched: nn.Module | None = None) -> None:
        self.begun: dict[nn.Module, int] = {}
        self._outputs: list[tuple[nn.Module, Any]] = []

        def begin(_name: str, module: nn.Module, inputs: Any) -> None:
            if module is watched:
                self.input: Tensor = inputs[0].clone()
            self.begun.setdefault(module, len(self._outputs))

        def end(_name: str, module: nn.Module, _inputs: Any, output: Any) -> None:
            # a copy, because later modules may change it in place
            self._outputs.append((module, tree_map_only(Tensor, torch.clone, output)))

        with hooked(network.model, begin, end):
            self.output: Tensor = network.model(network.inputs)
        self.runs = Counter(module for module, _ in self._outputs)

    def prefix(self, module: nn.Module) -> Prefix:
        """Return all outputs of the outermost modules that had finished when this one began.

        Later outputs are dropped, so ask for modules from the last to the first.
        """
        before: Prefix = {}
        if module in self.begun:
            del self._outputs[self.begun[module] :]
            for other, output in self._outputs:
                before.setdefault(other, []).append(output)
        finished = {
            other: outputs for other, outputs in before.items() if len(outputs) == self.runs[other]
        }
        inner = {child for other in finished for child in other.modules() if child is not other}
        return {other: outputs for other, outputs in finished.items() if other not in inner}


@contextmanager
def replayed(
    prefix: Prefix,
    change: Callable[[Tensor], Tensor],
    forwards: Mapping[nn.Module, Callable[..., Any]] | None = None,
) -> Iterator[None]:
    """Let modules return their stored outputs in turn, after ``change``, within a ``with`` block.

    ``forwards`` replaces the forward functions of further modules.
    """
    stored = {
        module: lambda *_, queue=[*outputs], **__: tree_map_only(Tensor, change, queue.pop(0))
        for module, outputs in prefix.items()
    }
    replaced = {**stored, **(forwards or {})}
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it bypasses an encoder's modules
    for module, forward in replaced.items():
        module.forward = forward  # shadows the class's
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in replaced:
            del module.forward


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x
