"""A run of the network, kept, so that what comes before a layer need not be run again."""

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
    """One run of a network: what every module gave, and what had been given when it first began.

    Args:
        network: as it stands.
        watched: a module whose first input is kept too.

    Attributes:
        output: of the model.
        input: of the watched module.
    """

    def __init__(self, network: Network, watched: nn.Module | None = None) -> None:
        self._given: list[tuple[nn.Module, Any]] = []
        self._begun: dict[nn.Module, int] = {}

        def begin(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if module is watched and module not in self._begun:
                self.input = inputs[0].clone()
            self._begun.setdefault(module, len(self._given))

        def end(module: nn.Module, _: tuple[Any, ...], output: Any) -> None:
            # a copy, as what follows may change it in place
            self._given.append((module, tree_map_only(Tensor, torch.clone, output)))

        modules = list(network.model.modules())
        handles = [module.register_forward_pre_hook(begin) for module in modules]
        handles += [module.register_forward_hook(end) for module in modules]
        try:
            self.output: Tensor = network.model(network.inputs)
        finally:
            for handle in handles:
                handle.remove()
        self._runs = Counter(module for module, _ in self._given)

    def __contains__(self, module: nn.Module) -> bool:
        return module in self._begun

    def given(self, module: nn.Module) -> Any:
        """What a module gave when it ran first."""
        return next(output for other, output in self._given if other is module)

    def prefix(self, module: nn.Module) -> Prefix:
        """All outputs of the modules that had run for the last time when this one began.

        Without those inside of another one. Empty for a module that did not run.
        """
        before: Prefix = {}
        for other, output in self._given[: self._begun.get(module, 0)]:
            before.setdefault(other, []).append(output)
        finished = {
            other: outputs for other, outputs in before.items() if len(outputs) == self._runs[other]
        }
        inside = {child for other in finished for child in other.modules() if child is not other}
        return {other: outputs for other, outputs in finished.items() if other not in inside}

    def forget(self, module: nn.Module) -> None:
        """Drop what was given after a module began; prefixes of modules before it don't hold it."""
        del self._given[self._begun.get(module, len(self._given)) :]


def answers(
    prefix: Prefix, change: Callable[[Tensor], Tensor]
) -> dict[nn.Module, Callable[..., Any]]:
    """Forward functions that give what the modules gave, one run after the other, changed."""
    return {
        module: lambda *_, queue=[*outputs], **__: tree_map_only(Tensor, change, queue.pop(0))
        for module, outputs in prefix.items()
    }


@contextmanager
def replaced(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Modules that answer otherwise for a while."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # which passes by the modules inside an encoder
    for module, forward in forwards.items():
        module.forward = forward  # shadows the class's
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in forwards:
            del module.forward
