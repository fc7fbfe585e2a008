"""One layer in a network: the losses of thousands of candidates for its units at once.

A candidate changes some output units of the layer. Whatever runs before the layer is computed once;
the rest runs on a batch of candidates, as a low-rank update in a chain of linear layers.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mergelib.cogram.network import CONVOLUTIONS, Layer, Network
from mergelib.cogram.trace import Trace, answers, replaced

ELEMENTWISE = (
    *(nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.LeakyReLU, nn.ELU),
    *(nn.Identity, nn.Dropout),
)
BUDGET = 2**17  # numbers in a batch of candidates' outputs; such a batch stays in a core's cache


class Site:
    """A linear or convolutional layer with its inputs, its output units and its matrix.

    ``units`` has shape ``(rows, N, ...)`` and ``matrix`` ``(rows, fan_in + 1)``, weights and
    biases. Change units by `write`; `commit` puts the matrix into the network.
    """

    def __init__(self, network: Network, layer: Layer) -> None:
        self.network, self.layer = network, layer
        self.matrix = layer.matrix(layer.tensors)
        self._features: dict[int, Tensor] = {}
        self._tail: _LowRank | _Replay
        chain = _chain(network.model, layer.module)
        if chain is not None and (entering := _through(chain[0], network.inputs)).dim() == 2:
            self.input = entering
            self._tail = _LowRank(self.outputs(self.matrix).contiguous(), *chain[1:])
        else:
            self._tail = _Replay(network, layer)
            self.input = self._tail.input

    @property
    def units(self) -> Tensor:
        """The layer's output, ``(rows, N, ...)``."""
        return self._tail.units

    def outputs(self, matrix: Tensor) -> Tensor:
        """Return the units for a matrix, which stays in the network until `commit`."""
        self.layer.write(self.layer.from_matrix(matrix))
        output: Tensor = self.layer.module(self.input)
        return output.movedim(_channel(self.layer), 0)

    def features(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return what entries ``(K,)`` of the matrix multiply, ``(K, N, ...)``; ones for biases."""
        groups = getattr(self.layer.module, "groups", 1)
        if groups == 1:
            return self._group_features(0)[columns]
        members = (rows * groups // len(self.units)).tolist()
        parts = zip(members, columns.tolist(), strict=True)
        return torch.stack([self._group_features(group)[column] for group, column in parts])

    def _group_features(self, group: int) -> Tensor:
        """Return inputs of one group of channels, ``(fan_in + 1, N, ...)``."""
        module = self.layer.module
        if group not in self._features:
            if isinstance(module, nn.Linear):
                inputs = self.input.movedim(-1, 0)
            else:
                channels = self.input.chunk(getattr(module, "groups", 1), 1)[group]
                inputs = _patches(module, channels).movedim(1, 0)
            if module.bias is not None:
                inputs = torch.cat([inputs, torch.ones_like(inputs[:1])])
            self._features[group] = inputs
        return self._features[group]

    def losses(self, rows: Tensor, units: Tensor) -> Tensor:
        """Return losses ``(K,)`` of candidates with units ``(K, r, N, ...)`` in rows ``(K, r)``."""
        size = max(1, BUDGET // self._tail.size)
        parts = zip(rows.split(size), units.split(size), strict=True)
        return torch.cat([self.network.losses(self._tail.outputs(*part)) for part in parts])

    def at(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """Return `losses` as a function of units ``(K, r, N, ...)`` for fixed rows ``(r,)``."""
        outputs = self._tail.at(rows)
        return lambda units: self.network.losses(outputs(units))

    def write(self, rows: Tensor, units: Tensor) -> None:
        """Set units ``(r, N, ...)`` of rows ``(r,)``."""
        self._tail.write(rows, units)

    def commit(self) -> None:
        """Put the matrix into the network."""
        self.layer.write(self.layer.from_matrix(self.matrix))


class _Replay:
    """The rest of any model after a layer, run again with stored outputs of finished modules."""

    def __init__(self, network: Network, layer: Layer) -> None:
        self.network, self.layer = network, layer
        trace = Trace(network, layer.module)
        self.input, self.finished = trace.input, trace.prefix(layer.module)
        self.units = trace.given(layer.module).movedim(_channel(layer), 0).contiguous()
        self.size = self.units.numel()
        every = torch.arange(len(self.units), device=self.units.device)[None]
        again = self.outputs(every, self.units[None])[0]
        if not torch.allclose(again, trace.output, rtol=1e-9, atol=1e-12):
            self.finished = {}  # some have side effects, as an in-place ReLU on a shortcut

    def outputs(self, rows: Tensor, units: Tensor) -> Tensor:
        """Return the model's outputs ``(K, N, ...)`` with units of rows ``(K, r)`` changed."""
        changed = self.units.expand(len(rows), *self.units.shape).clone()
        changed[torch.arange(len(rows), device=rows.device)[:, None], rows] = units
        return self._run(changed.movedim(1, 2 if _channel(self.layer) == 1 else -1))

    def at(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda units: self.outputs(rows.expand(len(units), -1), units)

    def write(self, rows: Tensor, units: Tensor) -> None:
        self.units[rows] = units

    def _run(self, candidates: Tensor) -> Tensor:
        """Return the model's outputs ``(K, N, ...)`` for outputs ``(K, N, ...)`` of the layer."""
        count = len(candidates)

        def again(x: Tensor) -> Tensor:
            if len(x) != len(self.network.inputs):  # a table, the same for every example
                return x.clone()
            return x.expand(count, *x.shape).flatten(0, 1).clone()

        forwards = answers(self.finished, again)
        forwards[self.layer.module] = lambda *_, **__: candidates.flatten(0, 1)
        with replaced(forwards):
            outputs: Tensor = self.network.model(again(self.network.inputs))
        stacked: Tensor = outputs.unflatten(0, (count, -1))
        return stacked


class _LowRank:
    """The rest of a chain after a layer: elementwise modules, a linear layer, and more modules."""

    def __init__(
        self,
        units: Tensor,
        elementwise: list[nn.Module],
        following: nn.Linear | None,
        rest: list[nn.Module],
    ) -> None:
        for module in elementwise:
            if hasattr(module, "inplace"):
                setattr(module, "inplace", False)  # noqa: B010
        self.elementwise, self.rest, self.units = partial(_through, elementwise), rest, units
        self.hidden = self.elementwise(units)
        if following is None:  # the layer is the last one, and each unit is its own output
            self.weight = torch.eye(len(units)).to(units)
            self.output = self.hidden.T.contiguous()
        else:
            self.weight = following.weight.T.contiguous()
            self.output = following(self.hidden.T)
        self.size = self.output.numel()

    def outputs(self, rows: Tensor, units: Tensor) -> Tensor:
        """Return the model's outputs ``(K, N, ...)`` for units ``(K, r, N)`` in rows ``(K, r)``."""
        moved = self.elementwise(units) - self.hidden[rows]
        return self._finish(_plus(self.output, moved.mT, self.weight[rows]))

    def at(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        weight = self.weight[rows]
        others = self.output - self.hidden[rows].T @ weight
        return lambda units: self._finish(_plus(others, self.elementwise(units).mT, weight))

    def _finish(self, outputs: Tensor) -> Tensor:
        if not self.rest:
            return outputs
        through = _through(self.rest, outputs.flatten(0, 1))
        candidates: Tensor = through.unflatten(0, outputs.shape[:2])
        return candidates

    def write(self, rows: Tensor, units: Tensor) -> None:
        hidden = self.elementwise(units)
        self.output = self.output + (hidden - self.hidden[rows]).T @ self.weight[rows]
        self.hidden[rows] = hidden
        self.units[rows] = units


def _channel(layer: Layer) -> int:
    """Return the unit dimension of the layer's output."""
    return 1 if isinstance(layer.module, CONVOLUTIONS) else -1


def _chain(
    model: nn.Module, layer: nn.Module
) -> tuple[list[nn.Module], list[nn.Module], nn.Linear | None, list[nn.Module]] | None:
    """Split a chain around a linear layer: before, elementwise modules, next linear layer, rest."""
    if not isinstance(model, nn.Sequential) or not isinstance(layer, nn.Linear):
        return None
    if type(model).forward is not nn.Sequential.forward:
        return None
    modules = list(model)
    if layer not in modules:
        return None
    place = modules.index(layer)
    before, after = modules[:place], modules[place + 1 :]
    count = next((i for i, module in enumerate(after) if not isinstance(module, ELEMENTWISE)), None)
    if count is None:
        return before, after, None, []
    following = after[count]
    if not isinstance(following, nn.Linear):
        return None
    return before, after[:count], following, after[count + 1 :]


def _plus(x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return ``x + left @ right``; rank one is faster entry by entry."""
    return torch.addcmul(x, left, right) if right.shape[-2] == 1 else x + left @ right


def _through(modules: list[nn.Module], x: Tensor) -> Tensor:
    for module in modules:
        x = module(x)
    return x


def _patches(module: Any, x: Tensor) -> Tensor:
    """Return the inputs of each filter weight as channels, by a convolution with unit filters."""
    single = copy.copy(module)
    single.groups = 1
    shape = module.weight.shape[1:]
    unit = torch.eye(shape.numel(), dtype=x.dtype, device=x.device).view(-1, *shape)
    patches: Tensor = single._conv_forward(x, unit, None)
    return patches
