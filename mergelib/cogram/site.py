"""A layer in its place: the losses of thousands of candidates for its units, at once.

A candidate changes some output units of one layer. So what comes before the layer is computed once
(`Site` keeps what every finished module gave), and what comes after it runs on a batch of
candidates. In a chain of linear layers the next layer needs only a low-rank update.
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
    """A linear or convolutional layer in its place, with what goes in and what comes of it.

    The rest of the network sees only its output units, one per row of its matrix, which are kept
    with the units first: ``units`` is of shape ``(rows, N, ...)``. ``matrix``, of shape
    ``(rows, fan_in + 1)``, holds the weights and biases that make them; whoever changes it changes
    the units by `write`. In the end `commit` puts the matrix into the network, which until then
    holds any.

    Args:
        network: as it stands.
        layer: a refinable one.
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
        """What the layer gives, ``(rows, N, ...)``."""
        return self._tail.units

    def outputs(self, matrix: Tensor) -> Tensor:
        """The units ``(rows, N, ...)`` that the layer gives with this matrix.

        It stays in the network until `commit`.
        """
        self.layer.write(self.layer.from_matrix(matrix))
        output: Tensor = self.layer.module(self.input)
        return output.movedim(_channel(self.layer), 0)

    def features(self, rows: Tensor, columns: Tensor) -> Tensor:
        """What entries of the matrix multiply, ``(K, N, ...)``; ones for a bias.

        Args:
            rows: int64 ``(K,)``.
            columns: int64 ``(K,)``.
        """
        groups = getattr(self.layer.module, "groups", 1)
        if groups == 1:
            return self._group_features(0)[columns]
        members = (rows * groups // len(self.units)).tolist()
        parts = zip(members, columns.tolist(), strict=True)
        return torch.stack([self._group_features(group)[column] for group, column in parts])

    def _group_features(self, group: int) -> Tensor:
        """``(fan_in + 1, N, ...)``, for one group of a convolution's channels."""
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
        """Losses ``(K,)`` of candidates that each change some units.

        Args:
            rows: which ones, int64 of shape ``(K, r)``.
            units: what they become, shape ``(K, r, N, ...)``.
        """
        size = max(1, BUDGET // self._tail.size)
        parts = zip(rows.split(size), units.split(size), strict=True)
        return torch.cat([self.network.losses(self._tail.outputs(*part)) for part in parts])

    def at(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """`losses` of candidates ``(K, r, N, ...)`` that all change the same units ``(r,)``."""
        outputs = self._tail.at(rows)
        return lambda units: self.network.losses(outputs(units))

    def write(self, rows: Tensor, units: Tensor) -> None:
        """Units ``(r, N, ...)`` that the layer gives from now on, for rows ``(r,)``."""
        self._tail.write(rows, units)

    def commit(self) -> None:
        """Put the matrix into the network."""
        self.layer.write(self.layer.from_matrix(self.matrix))


class _Replay:
    """What follows a layer of any model: run again, where modules that finished before it answer.

    Args:
        network: as it stands.
        layer: a refinable one. Its input and output units are kept.
    """

    def __init__(self, network: Network, layer: Layer) -> None:
        self.network, self.layer = network, layer
        trace = Trace(network, layer.module)
        self.input, self.finished = trace.input, trace.prefix(layer.module)
        self.units = trace.given(layer.module).movedim(_channel(layer), 0).contiguous()
        self.size = self.units.numel()
        every = torch.arange(len(self.units), device=self.units.device)[None]
        again = self.outputs(every, self.units[None])[0]
        if not torch.allclose(again, trace.output, rtol=1e-9, atol=1e-12):
            self.finished = {}  # some work by side effects, as an in-place ReLU on a shortcut

    def outputs(self, rows: Tensor, units: Tensor) -> Tensor:
        """The model's outputs ``(K, N, ...)`` with units ``(K, r)`` changed."""
        changed = self.units.expand(len(rows), *self.units.shape).clone()
        changed[torch.arange(len(rows), device=rows.device)[:, None], rows] = units
        return self._run(changed.movedim(1, 2 if _channel(self.layer) == 1 else -1))

    def at(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """The same for candidates that all change the same units ``(r,)``."""
        return lambda units: self.outputs(rows.expand(len(units), -1), units)

    def write(self, rows: Tensor, units: Tensor) -> None:
        """Units ``(r, N, ...)`` of the layer from now on."""
        self.units[rows] = units

    def _run(self, candidates: Tensor) -> Tensor:
        """The model's outputs ``(K, N, ...)``, given the layer's ``(K, N, ...)``."""
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
    """What follows a layer of a chain: elementwise modules, a linear layer, the rest.

    A changed unit changes the next layer's output by a matrix of rank one; that is kept up to date.
    """

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
        """The model's outputs ``(K, N, ...)`` with units ``(K, r)`` changed to ``(K, r, N)``."""
        moved = self.elementwise(units) - self.hidden[rows]
        return self._finish(_plus(self.output, moved.mT, self.weight[rows]))

    def at(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """The same for candidates that all change the same units ``(r,)``."""
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
        """Units ``(r, N)`` of the layer from now on."""
        hidden = self.elementwise(units)
        self.output = self.output + (hidden - self.hidden[rows]).T @ self.weight[rows]
        self.hidden[rows] = hidden
        self.units[rows] = units


def _channel(layer: Layer) -> int:
    """The dimension of the layer's output that counts its units."""
    return 1 if isinstance(layer.module, CONVOLUTIONS) else -1


def _chain(
    model: nn.Module, layer: nn.Module
) -> tuple[list[nn.Module], list[nn.Module], nn.Linear | None, list[nn.Module]] | None:
    """A sequential model around a linear layer of vectors, if a chain of such layers follows.

    What comes before the layer, elementwise modules after it, the next linear layer, the rest.
    """
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
    """``x + left @ right``; a product of rank one is faster entry by entry."""
    return torch.addcmul(x, left, right) if right.shape[-2] == 1 else x + left @ right


def _through(modules: list[nn.Module], x: Tensor) -> Tensor:
    """One module after the other."""
    for module in modules:
        x = module(x)
    return x


def _patches(module: Any, x: Tensor) -> Tensor:
    """What each weight of a filter meets, as channels: a convolution of one group, unit filters."""
    single = copy.copy(module)
    single.groups = 1
    shape = module.weight.shape[1:]
    unit = torch.eye(shape.numel(), dtype=x.dtype, device=x.device).view(-1, *shape)
    patches: Tensor = single._conv_forward(x, unit, None)
    return patches
