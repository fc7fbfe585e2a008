"""One layer in a network: the losses of thousands of candidates for its units at once.

A candidate changes some output units of the layer. Whatever runs before the layer is computed once;
the rest runs on a batch of candidates, as a low-rank update in a chain of linear layers.
"""

import copy
from collections.abc import Callable
from functools import cached_property
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from mergelib.cogram.network import CONVOLUTIONS, Layer, Network, Trace, replayed

ELEMENTWISE = (
    *(nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.LeakyReLU, nn.ELU),
    *(nn.Identity, nn.Dropout),
)
BUDGET = 2**17  # numbers in a batch of candidates' outputs; such a batch stays in a core's cache


def site_of(network: Network, layer: Layer) -> "Site":
    """Return the site of a linear or convolutional layer."""
    model, module = network.model, layer.module
    modules: list[nn.Module] = []
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        modules = list(model)
    if isinstance(module, nn.Linear) and module in modules:
        place = modules.index(module)
        entering, after = nn.Sequential(*modules[:place])(network.inputs), modules[place + 1 :]
        elementwise = [*takewhile(lambda module: isinstance(module, ELEMENTWISE), after)]
        following = after[len(elementwise)] if len(elementwise) < len(after) else None
        if entering.dim() == 2 and isinstance(following, nn.Linear | None):
            rest = after[len(elementwise) + 1 :]
            return _Chain(network, layer, entering, elementwise, following, rest)
    return Site(network, layer, Trace(network, module))


class Site:
    """A linear or convolutional layer with its inputs, its output units and its matrix.

    ``units`` has shape ``(rows, N, ...)`` and ``matrix`` ``(rows, fan_in + 1)``, weights and
    biases. Change units by `write`; `commit` puts the matrix into the network. The rest of the
    model runs again with stored outputs of finished modules.
    """

    def __init__(self, network: Network, layer: Layer, trace: Trace) -> None:
        self._begin(network, layer, trace.input)
        self._size = self.units.numel()
        self._finished = trace.prefix(layer.module)
        every = torch.arange(len(self.units), device=self.units.device)[None]
        again = self._outputs(every, self.units[None])[0]
        if not torch.allclose(again, trace.output, rtol=1e-9, atol=1e-12):
            self._finished = {}  # some have side effects, as an in-place ReLU on a shortcut

    def _begin(self, network: Network, layer: Layer, entering: Tensor) -> None:
        self.network, self.layer, self.input = network, layer, entering
        self._channel = 1 if isinstance(layer.module, CONVOLUTIONS) else -1
        self.matrix = layer.matrix(layer.tensors)
        self.units = self.outputs(self.matrix).contiguous()

    def outputs(self, matrix: Tensor) -> Tensor:
        """Return the units for a matrix, which stays in the network until `commit`."""
        self.layer.write(self.layer.from_matrix(matrix))
        output: Tensor = self.layer.module(self.input)
        return output.movedim(self._channel, 0)

    def features(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return what entries ``(K,)`` of the matrix multiply, ``(K, N, ...)``; ones for biases."""
        count = len(self._features)
        if count == 1:
            return self._features[0][columns]
        members = (rows * count // len(self.units)).tolist()
        parts = zip(members, columns.tolist(), strict=True)
        return torch.stack([self._features[group][column] for group, column in parts])

    @cached_property
    def _features(self) -> list[Tensor]:
        """The inputs of each group of channels, ``(fan_in + 1, N, ...)``."""
        module: Any = self.layer.module
        if isinstance(module, nn.Linear):
            parts = [self.input.movedim(-1, 0)]
        else:
            chunks = self.input.chunk(module.groups, 1)
            parts = [_patches(module, channels).movedim(1, 0) for channels in chunks]
        if module.bias is None:
            return parts
        return [torch.cat([part, torch.ones_like(part[:1])]) for part in parts]

    def losses(self, rows: Tensor, units: Tensor) -> Tensor:
        """Return losses ``(K,)`` of candidates with units ``(K, r, N, ...)`` in rows ``(K, r)``."""
        size = max(1, BUDGET // self._size)
        parts = zip(rows.split(size), units.split(size), strict=True)
        return torch.cat([self.network.losses(self._outputs(*part)) for part in parts])

    def at(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """Return `losses` as a function of units ``(K, r, N, ...)`` for fixed rows ``(r,)``."""
        return lambda units: self.losses(rows.expand(len(units), -1), units)

    def write(self, rows: Tensor, units: Tensor) -> None:
        """Set units ``(r, N, ...)`` of rows ``(r,)``."""
        self.units[rows] = units

    def commit(self) -> None:
        """Put the matrix into the network."""
        self.layer.write(self.layer.from_matrix(self.matrix))

    def _outputs(self, rows: Tensor, units: Tensor) -> Tensor:
        """Return the model's outputs ``(K, N, ...)`` with units of rows ``(K, r)`` changed."""
        inputs, count = self.network.inputs, len(rows)
        changed = self.units.expand(count, *self.units.shape).clone()
        changed[torch.arange(count, device=rows.device)[:, None], rows] = units
        candidates = changed.movedim(1, 2 if self._channel == 1 else -1).flatten(0, 1)

        def again(x: Tensor) -> Tensor:
            if len(x) != len(inputs):  # a table, the same for every example
                return x.clone()
            return x.expand(count, *x.shape).flatten(0, 1).clone()

        with replayed(self._finished, again, {self.layer.module: lambda *_, **__: candidates}):
            outputs: Tensor = self.network.model(again(inputs))
        stacked: Tensor = outputs.unflatten(0, (count, -1))
        return stacked


class _Chain(Site):
    """A layer of a chain, before elementwise modules, a linear layer, and more modules."""

    def __init__(
        self,
        network: Network,
        layer: Layer,
        entering: Tensor,
        elementwise: list[nn.Module],
        following: nn.Linear | None,
        rest: list[nn.Module],
    ) -> None:
        self._begin(network, layer, entering)
        for module in elementwise:
            if hasattr(module, "inplace"):
                setattr(module, "inplace", False)  # noqa: B010
        self._elementwise, self._rest = nn.Sequential(*elementwise), rest
        self._hidden = self._elementwise(self.units)
        if following is None:  # the layer is the last one, and each unit is its own output
            self._weight = torch.eye(len(self.units)).to(self.units)
            self._output = self._hidden.T.contiguous()
        else:
            self._weight = following.weight.T.contiguous()
            self._output = following(self._hidden.T)
        self._size = self._output.numel()

    def at(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        weight = self._weight[rows]
        others = self._output - self._hidden[rows].T @ weight

        def losses(units: Tensor) -> Tensor:
            outputs = _plus(others, self._elementwise(units).mT, weight)
            return self.network.losses(self._finish(outputs))

        return losses

    def write(self, rows: Tensor, units: Tensor) -> None:
        hidden = self._elementwise(units)
        self._output = self._output + (hidden - self._hidden[rows]).T @ self._weight[rows]
        self._hidden[rows] = hidden
        super().write(rows, units)

    def _outputs(self, rows: Tensor, units: Tensor) -> Tensor:
        moved = self._elementwise(units) - self._hidden[rows]
        return self._finish(_plus(self._output, moved.mT, self._weight[rows]))

    def _finish(self, outputs: Tensor) -> Tensor:
        if not self._rest:
            return outputs
        through = nn.Sequential(*self._rest)(outputs.flatten(0, 1))
        candidates: Tensor = through.unflatten(0, outputs.shape[:2])
        return candidates


def _plus(x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return ``x + left @ right``; rank one is faster entry by entry."""
    return torch.addcmul(x, left, right) if right.shape[-2] == 1 else x + left @ right


def _patches(module: Any, x: Tensor) -> Tensor:
    """Return the inputs of each filter weight as channels, by a convolution with unit filters."""
    single = copy.copy(module)
    single.groups = 1
    shape = module.weight.shape[1:]
    unit = torch.eye(shape.numel(), dtype=x.dtype, device=x.device).view(-1, *shape)
    patches: Tensor = single._conv_forward(x, unit, None)
    return patches
