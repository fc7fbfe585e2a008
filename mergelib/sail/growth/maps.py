"""Learned maps from one network's weights to those of a larger one."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mergelib.messages.warned import warn
from mergelib.sail.growth.depth import Depth
from mergelib.sail.growth.growing import Plan, grow, planned
from mergelib.sail.growth.width import COPYING, Width
from mergelib.statedict import is_statistic

NOTHING = "there is nothing to learn: the target has no wider layer and no longer list to mix"


class Maps(nn.Module, ABC):
    """Computes a larger network's entries from a smaller one's; what is learned are parameters.

    ``start`` holds all initial entries; statistics, counters and new layers keep these values.
    """

    def __init__(self, plan: Plan, start: dict[str, Tensor]) -> None:
        super().__init__()
        self._plan, self._start = plan, start
        self._reached = [
            key
            for key, value in start.items()
            if plan.origins[key] and value.is_floating_point()
            if key not in plan.ties and not is_statistic(key)
        ]

    @abstractmethod
    def mapping(self) -> Callable[[str], Tensor]:
        """Return the function from a mapped key to its entry, with a graph, at least float32."""

    def forward(self) -> dict[str, Tensor]:
        """Return T(θ), a state dict with a graph, in the source's dtypes."""
        mapped, reached = self.mapping(), {*self._reached}
        state: dict[str, Tensor] = {}
        for key, start in self._start.items():
            first = self._plan.ties.get(key)
            if first is not None:
                state[key] = state[first]
            else:
                state[key] = mapped(key).to(start.dtype) if key in reached else start
        return state


class Transformation(Maps):
    """SAIL's maps of one source: parameters are E and R and the depth logits s.

    They begin where `grow` does, and take its arguments, except ``"svd_random"`` and an infinite
    ``gap`` with mixed lists. Noise, free entries of ``"mean"`` and closed new layers are fixed.
    Running statistics other than batch norms' are a ``ValueError``.
    """

    def __init__(
        self,
        source: nn.Module,
        target: nn.Module,
        *,
        width: Width = "mean",
        depth: Depth = "identity",
        gap: float = 6.0,
        noise: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        if width == "svd_random":
            raise ValueError(
                "width 'svd_random' has no maps of groups to learn, as it draws directions per "
                "weight; choose another width"
            )
        how: dict[str, Any] = {"width": width, "depth": depth}
        how["gap"] = math.inf if depth == "identity" else gap
        plan = planned(source, target, state=None, **how)
        super().__init__(plan, grow(source, target, **how, noise=noise, generator=generator))
        for key in filter(is_statistic, self._start):
            if not isinstance(target.get_submodule(key.rpartition(".")[0]), _BatchNorm):
                raise ValueError(
                    f"{key!r} is a running statistic of a module other than a batch norm, so it "
                    "can neither be learned nor re-estimated; use grow"
                )
        self._rest: dict[str, Tensor] = {}
        for key in self._reached:
            mapped = plan.mapped(key)
            self._rest[key] = self._start[key].to(mapped) - mapped
        device = next(iter(self._start.values())).device
        self._maps = {use: matrix.to(device) for use, matrix in plan.widening.maps.items()}
        self._uses = [use for use in self._maps if plan.widening.grows(use[0])]
        self.maps = nn.ParameterList(self._maps[use].clone() for use in self._uses)
        lists = {path: grown.rows for path, grown in plan.lists.items()}
        mixed = {path: rows for path, rows in lists.items() if _is_mixed(rows)}
        for path, rows in mixed.items():
            if not rows.all():
                raise ValueError(
                    f"the depth weights of {path!r} contain a 0, which a softmax cannot; lower gap"
                )
        self._lists = list(mixed)
        self.logits = nn.ParameterList(rows.log().to(device) for rows in mixed.values())
        if not self._uses and not self._lists:
            raise ValueError(NOTHING)
        if self._uses and width in COPYING and not noise:
            warn(
                "copies of units and their maps get equal gradients, so they stay copies with the "
                "rank of the source; pass noise, e.g. 0.05"
            )

    def mapping(self) -> Callable[[str], Tensor]:
        """Use the current maps and logits, and add the fixed part."""
        lists = dict(self._plan.lists)
        for path, logits in zip(self._lists, self.logits, strict=True):
            lists[path] = replace(lists[path], rows=torch.softmax(logits, 1))
        maps = {**self._maps, **dict(zip(self._uses, self.maps, strict=True))}
        plan = replace(self._plan, lists=lists, widening=self._plan.widening.replaced(maps))
        return lambda key: plan.mapped(key) + self._rest[key]


def _is_mixed(rows: Tensor) -> bool:
    """Whether layers are averages of several source layers, so that their rows can be learned."""
    return rows.shape[1] > 1 and bool(rows.any(1).all())
