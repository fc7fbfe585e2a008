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
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from mergelib.statedict import is_statistic
from mergelib.structure import Axis, Structure
from mergelib.structure.groups import Role

Use = Literal["write", "read", "scale", "shift", "tied scale", "tied shift"]

Width = Literal["replicate", "mean", "svd", "svd_random", "interpolate", "aki"]
# Those that need no list of equal layers.
WIDTHS: tuple[Width, ...] = ("replicate", "mean", "svd", "svd_random", "interpolate")
COPYING: tuple[Width, ...] = ("replicate", "svd", "aki")  # those whose new units are copies

# Mean padding multiplies the stream by c; what stands behind a norm is divided by this power of c.
_POWERS: dict[Use, int] = {"read": 0, "shift": 0, "scale": 1, "tied shift": 1, "tied scale": 2}
_TIED: dict[Role, Use] = {"scale": "tied scale", "shift": "tied shift"}


def expander(scheme: Width, source: int, target: int) -> Tensor:
    """Return the write map E of a group without a layer norm, shape (target, source), float64.

    ``"replicate"`` and ``"aki"`` copy the units in turn; ``"svd"`` and ``"svd_random"`` also scale
    columns to length 1; ``"mean"`` pads zeros (new units keep their initial weights);
    ``"interpolate"`` mixes neighbours.
    """
    eye = torch.eye(source, dtype=torch.float64)
    if scheme == "mean":
        return torch.eye(target, source, dtype=torch.float64)
    if scheme == "interpolate":
        at = torch.linspace(0, source - 1, target, dtype=torch.float64)
        return (1 - (at[:, None] - torch.arange(source)).abs()).clamp_min(0)
    copies = eye[torch.arange(target) % source]
    return copies / copies.norm(dim=0) if scheme in ("svd", "svd_random") else copies


def orthonormal(matrix: Tensor) -> Tensor:
    """Return the nearest matrix with orthonormal columns, M (Mᵀ M)^−½."""
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    product: Tensor = left @ right
    return product


class Widening:
    """The maps from one network to a wider one; ``sizes`` are the source's group sizes.

    With ``"mean"``, a stream read through layer norms becomes c (x, m, …, m), with m the mean of x
    and c² = d′/d. This keeps the mean and variance, so the norm's old outputs are divided by c
    again and its new outputs are zero. ``maps`` holds the map (target, source) of each group and
    use, float64, filled on first use.
    """

    def __init__(self, structure: Structure, sizes: Mapping[str, int], scheme: Width) -> None:
        self.structure, self.sizes, self.scheme = structure, sizes, scheme
        self.maps: dict[tuple[str, Use], Tensor] = {}
        self._axis_maps: dict[tuple[Axis, bool], Tensor] = {}

    def replaced(self, maps: Mapping[tuple[str, Use], Tensor]) -> "Widening":
        """Return a copy with some maps replaced."""
        other = copy.copy(self)
        other.maps, other._axis_maps = {**self.maps, **maps}, {}
        return other

    def grows(self, name: str) -> bool:
        """Whether a group's size changes."""
        return self.sizes[name] != self.structure.groups[name].size

    def axis(self, key: str, number: int) -> Tensor:
        """Return the map of one axis of a parameter, (target, source), float64."""
        axis = self.structure.axes[key][number]
        tied = key.rpartition(".")[0] in self._before_tied
        if (axis, tied) not in self._axis_maps:
            parts = [
                kronecker([self._map(name, axis.role, tied) for name in factors])
                for factors in axis.layout
            ]
            self._axis_maps[axis, tied] = torch.block_diag(*parts)
        matrix = self._axis_maps[axis, tied]
        return matrix.square() if is_statistic(key) and key.endswith("var") else matrix

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
            if axis.role == "read" and self._grows(axis) and self._copied(axis):
                noise = torch.randn(wide.shape, generator=generator).to(wide)
                read = self.axis(key, number).to(wide)
                write = torch.linalg.pinv(read).T
                parts = torch.tensordot(read.T, noise, dims=([1], [number]))
                visible = torch.tensordot(write, parts, dims=([1], [0])).movedim(0, number)
                hidden: Tensor = noise - visible
                return hidden
        return torch.zeros_like(wide)

    def new(self, key: str) -> Tensor:
        """Return a mask of the entries that ``"mean"`` leaves free, as nothing depends on them."""
        return self._mask(key, lambda axis: self._free(key, axis))

    def added(self, key: str) -> Tensor:
        """Return a mask of the outputs of new units outside streams; it broadcasts."""

        def outputs(axis: Axis) -> Tensor:
            written = axis.role in ("write", "scale", "shift")
            parts = []
            for factors in axis.layout:
                inside = all(self.structure.groups[name].kind != "stream" for name in factors)
                parts.append(~self.in_source(factors) & (inside and written))
            return torch.cat(parts)

        return self._mask(key, outputs)

    def in_source(self, factors: Sequence[str]) -> Tensor:
        """Return a mask of the indices of a product of groups that the source has."""
        groups = [self.structure.groups[name] for name in factors]
        return _all_of([torch.arange(group.size) < self.sizes[group.name] for group in groups])

    def _mask(self, key: str, selects: Callable[[Axis], Tensor]) -> Tensor:
        """Return the entries that ``selects`` selects on at least one axis."""
        axes = self.structure.axes[key]
        mask = torch.zeros((1,) * len(axes), dtype=torch.bool)
        for number, axis in enumerate(axes):
            shape = [-1 if n == number else 1 for n in range(len(axes))]
            mask = mask | selects(axis).view(shape)
        return mask

    def _grows(self, axis: Axis) -> bool:
        return any(self.grows(name) for factors in axis.layout for name in factors)

    def _copied(self, axis: Axis) -> bool:
        """Whether new units are copies in all layers; with ``"aki"`` only those of streams are."""
        names = (name for factors in axis.layout for name in factors)
        return self.scheme != "aki" or any(
            self.structure.groups[name].kind == "stream" for name in names
        )

    def _free(self, key: str, axis: Axis) -> Tensor:
        parts = []
        for place, factors in enumerate(axis.layout):
            groups = [self.structure.groups[name] for name in factors]
            old = [torch.arange(group.size) < self.sizes[group.name] for group in groups]
            if all(group.norm == "none" for group in groups):
                free = axis.role in ("write", "scale", "shift")
            else:
                free = axis.role == "scale" or (axis.role == "read" and axis.behind is not None)
            query = place == 0 and key.rpartition(".")[0] in self._queries
            if query and old[1:]:  # closed: new dimensions of old heads
                old[1:] = [torch.ones_like(inside) for inside in old[1:]]
            parts.append(~_all_of(old) & free)
        return torch.cat(parts)

    def _map(self, name: str, role: Role, tied: bool) -> Tensor:
        """Return the map of a group for a parameter of this role."""
        use: Use = "read" if role == "read" or tied else "write"
        if self._mean_padded(name) and (role == "scale" or role == "shift"):
            use = _TIED[role] if tied else role
        if (name, use) not in self.maps:
            self.maps[name, use] = self._first_map(name, use)
        return self.maps[name, use]

    def _first_map(self, name: str, use: Use) -> Tensor:
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
            return orthonormal(write) * math.sqrt(math.sqrt(now / before))
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


def _all_of(masks: Sequence[Tensor]) -> Tensor:
    return kronecker([mask[:, None].double() for mask in masks])[:, 0] != 0


def kronecker(factors: Sequence[Tensor]) -> Tensor:
    """Return the map of a product of groups from the maps of its factors."""
    result = factors[0]
    for factor in factors[1:]:
        result = torch.kron(result, factor)
    return result
