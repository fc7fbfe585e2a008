"""A stored forward pass, so that modules before a layer need not run again."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from mergelib.cogram.network import Network

Prefix = dict[nn.Module, list[Any]]


class Trace:
    """One forward pass: every module's output, and how many outputs existed when it first began.

    ``input`` is the first input of the ``watched`` module, ``output`` the model's output.
    """

    def __init__(self, network: Network, watched: nn.Module | None = None) -> None:
        self._outputs: list[tuple[nn.Module, Any]] = []
        self._first: dict[nn.Module, int] = {}

        def begin(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if module is watched and module not in self._first:
                self.input = inputs[0].clone()
            self._first.setdefault(module, len(self._outputs))

        def end(module: nn.Module, _: tuple[Any, ...], output: Any) -> None:
            # a copy, because later modules may change it in place
            self._outputs.append((module, tree_map_only(Tensor, torch.clone, output)))

        modules = list(network.model.modules())
        handles = [module.register_forward_pre_hook(begin) for module in modules]
        handles += [module.register_forward_hook(end) for module in modules]
        try:
            self.output: Tensor = network.model(network.inputs)
        finally:
            for handle in handles:
                handle.remove()
        self._runs = Counter(module for module, _ in self._outputs)

    def __contains__(self, module: nn.Module) -> bool:
        return module in self._first

    def given(self, module: nn.Module) -> Any:
        """Return the output of a module's first run."""
        return next(output for other, output in self._outputs if other is module)

    def prefix(self, module: nn.Module) -> Prefix:
        """Return all outputs of the outermost modules that had finished when this one began."""
        before: Prefix = {}
        for other, output in self._outputs[: self._first.get(module, 0)]:
            before.setdefault(other, []).append(output)
        finished = {
            other: outputs for other, outputs in before.items() if len(outputs) == self._runs[other]
        }
        inner = {child for other in finished for child in other.modules() if child is not other}
        return {other: outputs for other, outputs in finished.items() if other not in inner}

    def forget(self, module: nn.Module) -> None:
        """Drop outputs after a module began; prefixes of earlier modules do not contain them."""
        del self._outputs[self._first.get(module, len(self._outputs)) :]


def answers(
    prefix: Prefix, change: Callable[[Tensor], Tensor]
) -> dict[nn.Module, Callable[..., Any]]:
    """Return forward functions that return the stored outputs in turn, after ``change``."""
    return {
        module: lambda *_, queue=[*outputs], **__: tree_map_only(Tensor, change, queue.pop(0))
        for module, outputs in prefix.items()
    }


@contextmanager
def replaced(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replace the forward functions of some modules within a ``with`` block."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it bypasses an encoder's modules
    for module, forward in forwards.items():
        module.forward = forward  # shadows the class's
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in forwards:
            del module.forward
