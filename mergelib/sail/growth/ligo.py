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

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mergelib.sail.growth.growing import grow, mixed, planned
from mergelib.sail.growth.maps import NOTHING, Maps
from mergelib.sail.growth.width import Widening, kronecker
from mergelib.statedict import is_statistic
from mergelib.structure import Structure

NOISE = 0.03  # of depth at the start


class Block(NamedTuple):
    """Groups that share one map."""

    groups: tuple[str, ...]  # whose product grows: heads with their dimensions, or a single group
    writer: tuple[str, int] | None = (
        None  # module and index of queries or keys, which have own maps
    )


class BlockWidening(Widening):
    """The maps [I; B]; ``rows`` holds B of every block that grows, (new, source), float64."""

    def __init__(self, structure: Structure, sizes: Mapping[str, int]) -> None:
        super().__init__(structure, sizes, "interpolate")  # whose maps are not used
        self.rows: dict[Block, Tensor] = {}

    def begin(self, generator: torch.Generator | None) -> None:
        """Draw all B: uniform rows, scaled to sum 1."""
        for key, axes in self.structure.axes.items():
            for number in range(len(axes)):
                for block in (block for part in self._parts(key, number) for block in part):
                    old = self.in_source(block.groups)
                    if block in self.rows or old.all():
                        continue
                    shape = int((~old).sum()), int(old.sum())
                    rows = torch.rand(shape, generator=generator, dtype=torch.float64)
                    self.rows[block] = rows / rows.sum(1, keepdim=True)

    def axis(self, key: str, number: int) -> Tensor:
        """Return the map of one axis of a parameter, shape (target, source), float64."""
        parts = self._parts(key, number)
        maps = [kronecker([self._map_of(block) for block in part]) for part in parts]
        whole: Tensor = torch.block_diag(*maps)
        return whole

    def _parts(self, key: str, number: int) -> list[list[Block]]:
        """Return the blocks whose product each part of an axis is."""
        parts = []
        for place, factors in enumerate(self.structure.axes[key][number].layout):
            if self._scores & {*factors}:
                parts.append([Block(factors, (key.rpartition(".")[0], place))])
            elif any(self.structure.groups[name].kind == "head" for name in factors):
                parts.append([Block(factors)])
            else:
                parts.append([Block((name,)) for name in factors])
        return parts

    def _map_of(self, block: Block) -> Tensor:
        old = self.in_source(block.groups)
        count = int(old.sum())
        if block not in self.rows:
            return torch.eye(count, dtype=torch.float64)
        rows = self.rows[block]
        stacked = torch.cat([torch.eye(count).to(rows), rows])
        order = torch.cat([old.nonzero(), (~old).nonzero()]).flatten().argsort()
        return stacked[order.to(rows.device)]


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
        super().__init__(plan, start)
        device = next(iter(start.values())).device
        self._widening = BlockWidening(plan.widening.structure, plan.widening.sizes)
        self._widening.begin(generator)
        blocks = {
            block: nn.Parameter(rows.to(device)) for block, rows in self._widening.rows.items()
        }
        self._widening.rows.update(blocks)
        self.blocks = nn.ParameterList(blocks.values())
        self._mixed = [key for key in self._reached if len(plan.origins[key]) > 1]
        self.depths = nn.ParameterList(
            _noisy([float(share) for _, share in plan.origins[key]], generator, device)
            for key in self._mixed
        )
        if not blocks and not self._mixed:
            raise ValueError(NOTHING)

    def mapping(self) -> Callable[[str], Tensor]:
        """Use the current maps and depth weights."""
        origins = dict(self._plan.origins)
        for key, row in zip(self._mixed, self.depths, strict=True):
            origins[key] = tuple(
                (name, share) for (name, _), share in zip(origins[key], row, strict=True)
            )
        weights, widening = self._plan.weights, self._widening
        return lambda key: widening.apply(key, mixed(weights, origins[key]))


def _noisy(
    pattern: Sequence[float], generator: torch.Generator | None, device: torch.device
) -> nn.Parameter:
    """Return initial depth weights of sum 1: noise, and 1 at the largest entry of the pattern."""
    row = NOISE * torch.rand(len(pattern), generator=generator, dtype=torch.float64)
    row[pattern.index(max(pattern))] = 1
    return nn.Parameter((row / row.sum()).to(device))
