"""Groups of axes that must change together, and the structure that lists them; see README.md."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mergelib.messages.brief import Brief
from mergelib.statedict import StateDict, check_compatible

Kind = Literal["units", "stream", "heads", "head", "fixed"]
Role = Literal["write", "read", "both", "scale", "shift", "index", "kernel"]
Norm = Literal["none", "layer", "other"]
Layout = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Group:
    """Indices of several axes that belong together; README.md explains kinds and norms."""

    name: str  # the module that first writes the group, or the axis if it is fixed
    kind: Kind
    size: int  # for the dimensions of heads, that of one head
    permutable: bool  # every permutation keeps the function; False if the output shows the group
    within: str | None = None  # for the dimensions of heads, the group of heads
    norm: Norm = "none"  # which norms take statistics across the units


@dataclass(frozen=True)
class Axis:
    """One axis of a parameter; README.md explains layouts and roles."""

    layout: Layout  # consecutive parts, each a product of groups, the last group varying fastest
    role: Role
    behind: str | None = None  # the layer norm before a reader, if any


@dataclass(frozen=True)
class Member:
    """One occurrence of a group: parameter key and axis."""

    key: str
    axis: int
    role: Role


@dataclass(frozen=True, repr=False)
class Structure(Brief):
    """Groups by name in the order of the forward pass, and the axes of every floating entry."""

    groups: Mapping[str, Group]
    axes: Mapping[str, tuple[Axis, ...]]

    def members(self, name: str) -> tuple[Member, ...]:
        """Return all occurrences of a group; ``ValueError`` if it does not exist."""
        self.group(name)
        return tuple(
            Member(key, number, axis.role)
            for key, axes in self.axes.items()
            for number, axis in enumerate(axes)
            if any(name in factors for factors in axis.layout)
        )

    def group(self, name: str) -> Group:
        """Return a group by name; ``ValueError`` if it does not exist."""
        if name not in self.groups:
            raise ValueError(f"there is no group {name!r}; groups are: {', '.join(self.groups)}")
        return self.groups[name]

    def permutable(self) -> tuple[str, ...]:
        """Return the names of the groups whose permutations keep the function."""
        return tuple(group.name for group in self.groups.values() if group.permutable)

    def inside(self, name: str) -> tuple[str, ...]:
        """Return the groups of dimensions inside the heads of this group."""
        return tuple(group.name for group in self.groups.values() if group.within == name)

    def gates(self) -> dict[str, Axis]:
        """Return the maps whose outputs multiply features, by the key of the weight."""
        return {
            key: axis
            for key, axes in self.axes.items()
            for axis in axes
            if axis.role == "scale" and any(other.role == "read" for other in axes)
        }

    def part_sizes(self, axis: Axis) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yield the parts of an axis with their sizes."""
        for factors in axis.layout:
            yield factors, math.prod(self.groups[name].size for name in factors)

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape that a parameter must have."""
        return tuple(sum(size for _, size in self.part_sizes(axis)) for axis in self.axes[key])

    def check(self, state: StateDict, what: str) -> None:
        """Raise ``ValueError`` for the first key that is missing, unknown or of another shape."""
        expected = {key: torch.empty(self.shape(key), device="meta") for key in self.axes}
        compared = {k: t for k, t in state.items() if k in self.axes or t.is_floating_point()}
        check_compatible(expected, {what: compared}, "the structure", mixed=True)

    def is_matrix(self, key: str, tensor: Tensor) -> bool:
        """Whether a parameter is a linear map with several inputs and outputs; for ``is_matrix=``.

        True for linear layers, folded convolutions and untied output layers; False for tables and
        norms. An unknown floating entry is a ``ValueError``.
        """
        if not tensor.is_floating_point():
            return False
        if key not in self.axes:
            raise ValueError(f"the structure has no key {key!r}")
        roles = [axis.role for axis in self.axes[key]]
        if roles.count("write") != 1 or roles.count("read") != 1:
            return False
        rows = self.shape(key)[roles.index("write")]
        return rows > 1 and tensor.numel() > rows

    def matrix(self, key: str, tensor: Tensor) -> Tensor:
        """Return a linear map as a matrix ``(outputs, inputs · kernel)``, however it is stored."""
        if not self.is_matrix(key, tensor):
            raise ValueError(f"{key!r} is not a matrix")
        roles = [axis.role for axis in self.axes[key]]
        return tensor.movedim((roles.index("write"), roles.index("read")), (0, 1)).flatten(1)
