"""LiGO as published (Wang et al., 2023, and the code of VITA-Group/LiGO), ``maps="ligo"``.

It differs from SAIL's maps for one source in these points:

* A width map is [I; B] with a learned B of random rows of sum 1, so old units stay as they are.
* Readers use the same map as writers, without corrections for copies, norms or scores, so the
  function is not kept initially.
* One map serves the whole residual stream; each layer has one for queries, keys, values (over heads
  and their dimensions together) and hidden units.
* Each entry of each layer has its own depth weights without a softmax, initially a stack with noise
  between 0 and 0.03.

Our deviations: a fused matrix of queries, keys and values is one entry; lists that do not get
longer stay as they are; tied tables stay tied; batch norms are refused; the learning rate is
constant, because the published command ends within the warm-up, where the maps hardly move.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mergelib.sail.growth.depth import Origin
from mergelib.sail.growth.growing import grow, planned
from mergelib.sail.growth.maps import Maps
from mergelib.sail.growth.width import Widening
from mergelib.statedict import is_statistic

NOISE = 0.03  # of depth weights at first, beside a 1 at the largest; then they are scaled to sum 1


class Block(NamedTuple):
    """Groups that share one map."""

    groups: tuple[str, ...]  # whose product grows: heads with their dimensions, or a single group
    # module and index of queries or keys, which have maps of their own
    writer: tuple[str, int] | None = None


class BlockWidening(Widening):
    """The maps [I; B] of blocks; rows of B are uniform at first, scaled to sum 1."""

    def __init__(self, widening: Widening, generator: torch.Generator | None) -> None:
        super().__init__(widening.structure, widening.sizes, widening.scheme)
        self._generator = generator
        for key, axes in self.structure.axes.items():
            for number in range(len(axes)):
                self.axis(key, number)

    def learnable(self, use: Block) -> Tensor:
        """Return the rows B of a map."""
        return (~self.in_source(use.groups)).nonzero().flatten()

    def _parts(self, key: str, number: int) -> tuple[tuple[Block, ...], ...]:
        parts: list[tuple[Block, ...]] = []
        for place, factors in enumerate(self.structure.axes[key][number].layout):
            if self._scores & {*factors}:
                parts.append((Block(factors, (key.rpartition(".")[0], place)),))
            elif any(self.structure.groups[name].kind == "head" for name in factors):
                parts.append((Block(factors),))
            else:
                parts.append(tuple(Block((name,)) for name in factors))
        return tuple(parts)

    def _first_map(self, use: Block) -> Tensor:
        old = self.in_source(use.groups)
        matrix = torch.zeros(len(old), int(old.sum()), dtype=torch.float64)
        matrix[old] = torch.eye(matrix.shape[1], dtype=torch.float64)
        if not old.all():
            shape = int((~old).sum()), matrix.shape[1]
            rows = torch.rand(shape, generator=self._generator, dtype=torch.float64)
            matrix[~old] = rows / rows.sum(1, keepdim=True)
        return matrix


class PublishedLiGO(Maps):
    """LiGO's maps of one source, with every B and the depth weights as parameters."""

    def __init__(
        self, source: nn.Module, target: nn.Module, generator: torch.Generator | None = None
    ) -> None:
        how: dict[str, Any] = {"width": "interpolate", "depth": "stack"}
        # With a gap, each layer's entries come from all layers, the stacked one foremost.
        plan = planned(source, target, state=None, gap=1.0, **how)
        start = grow(source, target, **how)
        for key in filter(is_statistic, start):
            raise ValueError(
                f"{key!r} is a statistic of a batch norm, which LiGO cannot map; use maps='sail'"
            )
        plan = replace(plan, widening=BlockWidening(plan.widening, generator))
        self._mixed = {
            key: origin
            for key, origin in plan.origins.items()
            if len(origin) > 1 and start[key].is_floating_point() and key not in plan.ties
        }
        depths = []
        for origin in self._mixed.values():
            row = NOISE * torch.rand(len(origin), generator=generator, dtype=torch.float64)
            row[torch.stack([share for _, share in origin]).argmax()] = 1
            depths.append(row / row.sum())
        super().__init__(plan, start, depths, fixed=False)

    def origins(self) -> dict[str, Origin]:
        rows = {
            key: tuple((name, share) for (name, _), share in zip(origin, row, strict=True))
            for (key, origin), row in zip(self._mixed.items(), self.depths, strict=True)
        }
        return {**self._plan.origins, **rows}
