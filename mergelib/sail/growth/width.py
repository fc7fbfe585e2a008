"""Maps from the parameters of a network to those of a wider one (SAIL, Eq. 8).

A group of d units becomes one of d′. Parameters that *write* the group are multiplied by E (d′ ×
d), so that the wider network holds E h. Parameters that *read* it are multiplied by R, and the
function is kept if Rᵀ E = I. A weight (outputs, inputs) becomes E_out W R_inᵀ; every axis uses the
map of its group, so there is one map for a residual stream and one for the dimensions of heads.

A scheme chooses E, and R = E (Eᵀ E)⁻¹. (``"aki"`` has the E of copies and takes W of new units from
the next layer.) Attention scores are inner products divided by the root of the head size, so E is
orthonormal there, times (d′/d)^¼. The stream of a pre-norm transformer is read through layer norms;
see `Widening`.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from functools import cached_property, reduce
from typing import Any, Literal, Self

import torch
from torch import Tensor

from mergelib.sail.growth.depth import Depth, depth_rows
from mergelib.statedict import is_statistic
from mergelib.structure import Axis, Structure

Use = Literal["write", "read", "scale", "shift", "tied scale", "tied shift"]

Width = Literal["replicate", "mean", "svd", "svd_random", "interpolate", "aki"]
# Those that need no list of equal layers.
WIDTHS: tuple[Width, ...] = ("replicate", "mean", "svd", "svd_random", "interpolate")
COPYING: tuple[Width, ...] = ("replicate", "svd", "aki")  # those whose new units are copies

# Mean padding multiplies the stream by c; what stands behind a norm is divided by this power of c.
_POWERS: dict[Use, int] = {"read": 0, "shift": 0, "scale": 1, "tied shift": 1, "tied scale": 2}


def expander(scheme: Width, source: int, target: int) -> Tensor:
    """Return the write map E of a group without a layer norm, shape (target, source), float64.

    ``"replicate"`` and ``"aki"`` copy the units in turn; ``"svd"`` and ``"svd_random"`` also scale
    columns to length 1; ``"mean"`` pads zeros (new units keep their initial weights);
    ``"interpolate"`` mixes neighbours.
    """
    pattern: dict[Width, Depth] = {"mean": "identity", "interpolate": "interpolate"}
    rows = depth_rows(pattern.get(scheme, "stack"), source, target)
    return rows / rows.norm(dim=0) if scheme in ("svd", "svd_random") else rows


class Widening:
    """The maps from one network to a wider one; ``sizes`` are the source's group sizes.

    With ``"mean"``, a stream read through layer norms becomes c (x, m, …, m), with m the mean of x
    and c² = d′/d. This keeps the mean and variance, so the norm's old outputs are divided by c
    again and its new outputs are zero. ``maps`` holds the map (target, source) of each group and
    use, float64, filled on first use.
    """

    def __init__(self, structure: Structure, sizes: Mapping[str, int], scheme: Width) -> None:
        self.structure, self.sizes, self.scheme = structure, sizes, scheme
        self.maps: dict[Any, Tensor] = {}
        self._axis_maps: dict[tuple[tuple[Any, ...], ...], Tensor] = {}

    def replaced(self, maps: Mapping[Any, Tensor]) -> Self:
        """Return a copy with some maps replaced."""
        other = copy.copy(self)
        other.maps, other._axis_maps = {**self.maps, **maps}, {}
        return other

    def grows(self, name: str) -> bool:
        """Whether a group's size changes."""
        return self.sizes[name] != self.structure.groups[name].size

    def axis(self, key: str, number: int) -> Tensor:
        """Return the map of one axis of a parameter, (target, source), float64."""
        parts = self._parts(key, number)
        if parts not in self._axis_maps:
            products = [reduce(torch.kron, map(self._map, part)) for part in parts]
            self._axis_maps[parts] = torch.block_diag(*products)
        matrix = self._axis_maps[parts]
        return matrix.square() if is_statistic(key) and key.endswith("var") else matrix

    def _parts(self, key: str, number: int) -> tuple[tuple[Any, ...], ...]:
        """Return the keys of the maps whose products the parts of an axis have."""
        axis = self.structure.axes[key][number]
        tied = key.rpartition(".")[0] in self._before_tied
        use = "read" if axis.role == "read" or tied else "write"
        uses = {False: use, True: use}  # by whether the group is padded by its mean
        if axis.role in ("scale", "shift"):
            uses[True] = f"tied {axis.role}" if tied else axis.role
        return tuple(
            tuple((name, uses[self._mean_padded(name)]) for name in factors)
            for factors in axis.layout
        )

    def _map(self, use: Any) -> Tensor:
        if use not in self.maps:
            self.maps[use] = self._first_map(use)
        return self.maps[use]

    def learnable(self, use: Any) -> Tensor:
        """Return the rows of a map that may be learned: all if its group grows."""
        return torch.arange(len(self.maps[use]) if self.grows(use[0]) else 0)

    def apply(self, key: str, tensor: Tensor) -> Tensor:
        """Map all axes of a source parameter; the result is at least float32."""
        wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        for number, axis in enumerate(self.structure.axes[key]):
            if self._grows(axis):
                matrix = self.axis(key, number).to(wide)
                wide = torch.tensordot(matrix, wide, dims=([1], [number])).movedim(0, number)
        return wide

    def spread(self, key: str, wide: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return unit-variance noise N (I − E Rᵀ) that readers of copies cancel; elsewhere zero."""
        for number, axis in enumerate(self.structure.axes[key]):
            groups = [self.structure.groups[name] for factors in axis.layout for name in factors]
            # with "aki", only new units of streams are copies
            copied = self.scheme != "aki" or any(group.kind == "stream" for group in groups)
            if axis.role == "read" and self._grows(axis) and copied:
                noise = torch.randn(wide.shape, generator=generator).to(wide)
                read = self.axis(key, number).to(wide)
                write = torch.linalg.pinv(read).T
                parts = torch.tensordot(read.T, noise, dims=([1], [number]))
                visible = torch.tensordot(write, parts, dims=([1], [0])).movedim(0, number)
                hidden: Tensor = noise - visible
                return hidden
        return torch.zeros_like(wide)

    def new(self, key: str) -> Tensor:
        """Return a mask of the entries of new units that are made otherwise; it broadcasts.

        ``"aki"`` takes outputs outside streams from the next layer. ``"mean"`` leaves entries free
        on which nothing depends.
        """
        axes = self.structure.axes[key]
        query = key.rpartition(".")[0] in self._queries and self.scheme == "mean"
        mask = torch.zeros((1,) * len(axes), dtype=torch.bool)
        for number, axis in enumerate(axes):
            written, parts = axis.role in ("write", "scale", "shift"), []
            for place, factors in enumerate(axis.layout):
                groups = [self.structure.groups[name] for name in factors]
                if self.scheme == "aki":
                    free = written and all(group.kind != "stream" for group in groups)
                elif all(group.norm == "none" for group in groups):
                    free = written
                else:
                    free = axis.role == "scale" or (axis.role == "read" and axis.behind is not None)
                # queries: new dimensions of old heads are closed
                seen = self.in_source(factors, factors[1:] if query and place == 0 else ())
                parts.append(~seen & free)
            shape = [-1 if n == number else 1 for n in range(len(axes))]
            mask = mask | torch.cat(parts).view(shape)
        return mask

    def in_source(self, factors: Sequence[str], whole: Sequence[str] = ()) -> Tensor:
        """Return a mask of the indices of a product of groups that the source has.

        The groups in ``whole`` count as if the source had all of their indices.
        """
        sizes = [self.structure.groups[name].size for name in factors]
        masks = [
            torch.arange(size) < (size if name in whole else self.sizes[name])
            for name, size in zip(factors, sizes, strict=True)
        ]
        return reduce(torch.kron, [mask.int() for mask in masks]) != 0

    def _grows(self, axis: Axis) -> bool:
        return any(self.grows(name) for factors in axis.layout for name in factors)

    def _first_map(self, key: Any) -> Tensor:
        name, use = key
        before, now = self.sizes[name], self.structure.groups[name].size
        if before == now:
            return torch.eye(now, dtype=torch.float64)
        write = expander(self.scheme, before, now)
        if self._mean_padded(name):
            c = math.sqrt(now / before)
            if use == "write":
                mean = torch.full((now - before, before), 1 / before, dtype=torch.float64)
                return c * torch.cat([torch.eye(before, dtype=torch.float64), mean])
            return write / c ** _POWERS[use]
        if name in self._scores:
            left, _, right = torch.linalg.svd(write, full_matrices=False)
            nearest: Tensor = left @ right  # with orthonormal columns, E (Eᵀ E)^−½
            return nearest * math.sqrt(math.sqrt(now / before))
        if use == "read":
            if self.scheme != "interpolate":  # columns are disjoint: Eᵀ E is diagonal
                return write / write.square().sum(0)
            write = write @ torch.linalg.inv(write.T @ write)
        return write

    def _mean_padded(self, name: str) -> bool:
        return self.scheme == "mean" and self.structure.groups[name].norm == "layer"

    @cached_property
    def _scores(self) -> set[str]:
        """Groups of head dimensions that are only compared: those of queries and keys."""
        heads = [name for name, group in self.structure.groups.items() if group.kind == "head"]
        roles = {name: {member.role for member in self.structure.members(name)} for name in heads}
        return {name for name in heads if "read" not in roles[name]}

    @cached_property
    def _queries(self) -> set[str]:
        """Modules that write queries: the first writer of each group of `_scores`."""
        return {self.structure.members(name)[0].key.rpartition(".")[0] for name in self._scores}

    @cached_property
    def _before_tied(self) -> set[str]:
        """Norms whose outputs tied tables read."""
        axes = (axis for axes in self.structure.axes.values() for axis in axes)
        return {axis.behind for axis in axes if axis.role == "both" and axis.behind is not None}


def shuffled_directions(
    structure: Structure, key: str, tensor: Tensor, wide: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Return W_in Σ W_outᵀ, shaped like ``wide``, with random W and the source's spectrum (F.1)."""
    values = torch.linalg.svdvals(structure.matrix(key, tensor).to(wide))
    roles = [axis.role for axis in structure.axes[key]]
    folds = (roles.index("write"), roles.index("read")), (0, 1)
    shape = wide.movedim(*folds).shape
    rows, columns = shape[0], math.prod(shape[1:])
    left, right = (
        torch.linalg.qr(torch.randn(size, len(values), generator=generator).to(wide)).Q
        for size in (rows, columns)
    )
    product: Tensor = (left * values) @ right.T
    return product.view(shape).movedim(folds[1], folds[0])
