"""Learned maps from one network's weights to those of a larger one."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mergelib.messages.warned import warn
from mergelib.sail.growth.depth import Depth, Origin, origins
from mergelib.sail.growth.growing import Plan, grow, planned
from mergelib.sail.growth.width import COPYING, Width
from mergelib.statedict import is_statistic


class Maps(nn.Module, ABC):
    """Computes a larger network's entries from a smaller one's.

    Parameters are rows of the maps, and depth weights. ``start`` holds all initial entries;
    statistics, counters and new layers keep these values.
    """

    def __init__(
        self, plan: Plan, start: Mapping[str, Tensor], depths: Iterable[Tensor], *, fixed: bool
    ) -> None:
        super().__init__()
        self._plan, self._start = plan, start
        reached = [
            key
            for key, value in start.items()
            if plan.origins[key] and value.is_floating_point()
            if key not in plan.ties and not is_statistic(key)
        ]
        first = {key: plan.mapped(key) for key in reached}
        # the part that no map makes
        self._rest = {
            key: start[key].to(first[key]) - first[key] if fixed else 0 for key in reached
        }
        device = next(iter(start.values())).device
        self._maps = {use: matrix.to(device) for use, matrix in plan.widening.maps.items()}
        rows = {use: plan.widening.learnable(use).to(device) for use in self._maps}
        self._rows = {use: learned for use, learned in rows.items() if len(learned)}
        self.maps = nn.ParameterList(self._maps[use][rows] for use, rows in self._rows.items())
        self.depths = nn.ParameterList(weights.to(device) for weights in depths)
        if not len(self.maps) and not len(self.depths):
            raise ValueError(
                "there is nothing to learn: the target has no wider layer and no longer list to mix"
            )

    @abstractmethod
    def origins(self) -> dict[str, Origin]:
        """Return the source entries of every target entry, with the current depth weights."""

    def plan(self) -> Plan:
        """Return the plan with the current maps and depth weights."""
        maps = dict(self._maps)
        for (use, rows), learned in zip(self._rows.items(), self.maps, strict=True):
            maps[use] = maps[use].index_copy(0, rows, learned)
        widening = self._plan.widening.replaced(maps)
        return replace(self._plan, origins=self.origins(), widening=widening)

    def forward(self) -> dict[str, Tensor]:
        """Return T(θ), a state dict with a graph, in the source's dtypes."""
        plan, state = self.plan(), dict(self._start)
        for key, rest in self._rest.items():
            state[key] = (plan.mapped(key) + rest).to(state[key].dtype)
        return state | {key: state[first] for key, first in self._plan.ties.items()}


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
        gap = math.inf if depth == "identity" else gap
        how: dict[str, Any] = {"width": width, "depth": depth, "gap": gap}
        plan = planned(source, target, state=None, **how)
        start = grow(source, target, **how, noise=noise, generator=generator)
        for key in filter(is_statistic, start):
            if not isinstance(target.get_submodule(key.rpartition(".")[0]), _BatchNorm):
                raise ValueError(
                    f"{key!r} is a running statistic of a module other than a batch norm, so it "
                    "can neither be learned nor re-estimated; use grow"
                )
        # lists whose layers are all averages of several source layers
        mixed = {path: grown for path, grown in plan.lists.items() if grown.rows.shape[1] > 1}
        self._lists = {path: grown for path, grown in mixed.items() if grown.rows.any(1).all()}
        for path, grown in self._lists.items():
            if not grown.rows.all():
                raise ValueError(
                    f"the depth weights of {path!r} contain a 0, which a softmax cannot; lower gap"
                )
        depths = (grown.rows.log() for grown in self._lists.values())
        super().__init__(plan, start, depths, fixed=True)
        if len(self.maps) and width in COPYING and not noise:
            warn(
                "copies of units and their maps get equal gradients, so they stay copies with the "
                "rank of the source; pass noise, e.g. 0.05"
            )

    def origins(self) -> dict[str, Origin]:
        lists = dict(self._plan.lists)
        for (path, grown), logits in zip(self._lists.items(), self.depths, strict=True):
            lists[path] = replace(grown, rows=torch.softmax(logits, 1))
        return origins(self._plan.weights, self._plan.fresh, lists)
