"""LiGO as it was published (Wang et al., 2023, and the code of VITA-Group/LiGO): `learn_ligo`.

`learn_growth` has SAIL's maps, of which LiGO is the case of one source. The publication differs
from it, and here are its choices:

* a map of width is [I; B]. I is frozen, so that old units are the source's, and only B is learned;
* what reads takes the same map as what writes. Copies are not counted, and no norm or score of
  attention is repaired, so a start keeps no function;
* one map for the whole residual stream (tables, norms, inputs and outputs of layers), and in each
  layer one for queries, one for keys, one for values, over heads and their sizes together, and one
  for hidden units;
* weights of depth are free, with no softmax, and each entry of each layer has its own, so that
  those of weights and of biases differ;
* a stack with noise between 0 and 0.03 begins the depth, uniform numbers the rows of B; both are
  divided by their sums;
* one source, 100 steps, and nothing but these maps is learned.

What cannot be followed: a fused matrix of queries, keys and values is one entry, with one row of
depth. Lists that do not get longer stay as they are, where LiGO mixes their layers too. A tied
table stays tied, so that its map is also that of the output, which LiGO unties. Batch norms, which
none of its networks has, are refused. And the rate is ours to choose, constant and without weight
decay: the command in LiGO's README ends after 100 of 10,000 warm-up steps, at a rate of 2e-6, by
which the maps hardly move.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergelib.sail.growth.growing import grow, mixed, planned
from mergelib.sail.growth.learning import Criterion, Descent, LearnedGrowth, Maps
from mergelib.sail.growth.width import Widening, kronecker
from mergelib.statedict import is_statistic
from mergelib.structure import Structure

NOISE = 0.03  # of depth at the start


class Block(NamedTuple):
    """What has one map.

    Attributes:
        groups: whose product grows by it: heads with their sizes, else a single group.
        writer: for queries and keys the module and the place in it, as they have a map each.
    """

    groups: tuple[str, ...]
    writer: tuple[str, int] | None = None


class BlockWidening(Widening):
    """The maps [I; B] of one network to a wider one.

    Args:
        structure: of the wider network.
        sizes: how many units each of its groups had before.

    Attributes:
        rows: B of every block that grows, shape (new, source), float64.
    """

    def __init__(self, structure: Structure, sizes: Mapping[str, int]) -> None:
        super().__init__(structure, sizes, "interpolate")  # whose maps are not used
        self.rows: dict[Block, Tensor] = {}

    def begin(self, generator: torch.Generator | None) -> None:
        """Draw all B: uniform rows of sum 1."""
        for key, axes in self.structure.axes.items():
            for number in range(len(axes)):
                for block in (block for part in self._parts(key, number) for block in part):
                    known = self.known(block.groups)
                    if block in self.rows or known.all():
                        continue
                    shape = int((~known).sum()), int(known.sum())
                    drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
                    self.rows[block] = drawn / drawn.sum(1, keepdim=True)

    def axis(self, key: str, number: int) -> Tensor:
        """The map of one axis of a parameter, shape (target, source), float64."""
        parts = self._parts(key, number)
        maps = [kronecker([self._map_of(block) for block in part]) for part in parts]
        whole: Tensor = torch.block_diag(*maps)
        return whole

    def _parts(self, key: str, number: int) -> list[list[Block]]:
        """The blocks whose product each part of an axis is."""
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
        known = self.known(block.groups)
        count = int(known.sum())
        if block not in self.rows:
            return torch.eye(count, dtype=torch.float64)
        rows = self.rows[block]
        stacked = torch.cat([torch.eye(count).to(rows), rows])
        order = torch.cat([known.nonzero(), (~known).nonzero()]).flatten().argsort()
        return stacked[order.to(rows.device)]


class PublishedLiGO(Maps):
    """T of one source, with every B and the weights of depth as parameters.

    Args:
        source: the smaller network, which is left alone.
        target: the larger one, which is left alone too.
        generator: draws the start.

    Raises:
        ValueError: what `mergelib.grow` refuses; batch norms, naming the key; a target without a
            wider group or a longer list.
    """

    def __init__(
        self, source: nn.Module, target: nn.Module, generator: torch.Generator | None = None
    ) -> None:
        how: dict[str, Any] = {"width": "interpolate", "depth": "stack"}
        # With a gap, each layer's entries come from all layers, the stacked one foremost.
        plan = planned(source, target, state=None, gap=1.0, **how)
        start = grow(source, target, **how)
        for key in filter(is_statistic, start):
            raise ValueError(
                f"{key!r} is a statistic of a batch norm, which LiGO has no maps for as it was "
                "published: use learn_growth"
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
            raise ValueError("nothing to learn: no group of the target is wider, no list longer")

    def mapping(self) -> Callable[[str], Tensor]:
        """By the maps and weights of depth as they are."""
        origins = dict(self._plan.origins)
        for key, row in zip(self._mixed, self.depths, strict=True):
            origins[key] = tuple(
                (name, share) for (name, _), share in zip(origins[key], row, strict=True)
            )
        weights, widening = self._plan.weights, self._widening
        return lambda key: widening.apply(key, mixed(weights, origins[key]))


def learn_ligo(
    source: nn.Module,
    target: nn.Module,
    data: Any,
    *,
    steps: int = 100,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    loss: Criterion = F.cross_entropy,
    seed: int = 0,
) -> LearnedGrowth:
    """Grow a network by LiGO's maps, learned on the target's data; see the module.

    Args:
        source: the smaller network.
        target: the larger one, whose shapes are wanted.
        data: of the target, inputs with labels, as `mergelib.adapt` reads those of a task.
        steps: of Adam.
        batch_size: examples of a step.
        learning_rate: of Adam, constant.
        loss: from outputs ``(M, C)`` and labels ``(M,)`` to a scalar; positions of sequences are
            rows of their own.
        seed: of the start and of batches.

    Returns:
        See `LearnedGrowth`; the source is called ``source``.

    Raises:
        ValueError: what `PublishedLiGO` refuses; data without labels; settings out of range.
        FloatingPointError: a loss that is not finite.
    """
    import pandas as pd

    descent = Descent(target, data, steps, batch_size, learning_rate, loss, seed)
    maps = PublishedLiGO(source, target, torch.Generator().manual_seed(seed))
    losses = descent.learn([maps], [1.0])
    with torch.no_grad():
        state = maps()
    learned = sum(parameter.numel() for parameter in maps.parameters())
    history = pd.DataFrame({"source": losses})
    return LearnedGrowth(state, {"source": state}, history, len(losses), learned)


def _noisy(
    pattern: Sequence[float], generator: torch.Generator | None, device: torch.device
) -> nn.Parameter:
    """Weights of depth at the start: noise, and 1 where a pattern is highest; of sum 1."""
    row = NOISE * torch.rand(len(pattern), generator=generator, dtype=torch.float64)
    row[pattern.index(max(pattern))] = 1
    return nn.Parameter((row / row.sum()).to(device))
