"""What a structure is: groups of axes that must change together.

A hidden unit is a row of one weight, an entry of its bias and a column of the next weight. Whoever
permutes, adds or removes units must treat all of them alike: they are one *group*. Every axis of
every parameter is made of groups. Most axes are one group; a fused ``qkv`` weight writes, one after
the other, (heads × size), (heads × size), (heads × size); a linear layer behind a flattened picture
reads (channels × places). So an axis is a concatenation of products of groups, its *layout*.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from mergelib.messages.brief import Brief
from mergelib.statedict import StateDict

Kind = Literal["units", "stream", "heads", "head", "fixed"]
Role = Literal["write", "read", "both", "scale", "shift", "index", "kernel"]
Norm = Literal["none", "layer", "other"]
Layout = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Group:
    """Indices of several axes that belong together.

    Attributes:
        name: the module that writes the group first, or the axis for what is fixed.
        kind: ``"units"`` (hidden units or channels), ``"stream"`` (the residual stream, or that of
            one stage), ``"heads"`` (attention heads, as blocks), ``"head"`` (the dimensions inside
            each head), ``"fixed"`` (inputs, kernels, positions, vocabularies).
        size: how many indices; for the dimensions of heads, of one head.
        permutable: whether any permutation leaves the function as it is. False for what is fixed,
            and for what the model's output shows.
        within: for the dimensions of heads, the group of heads; each head may have a permutation of
            its own.
        norm: what takes statistics *across* the units. ``"layer"``: layer norms do, and each reader
            stands behind one that leaves the units themselves as they are (pre-norm transformers);
            ``"other"``: layer norms elsewhere, or norms of another kind; ``"none"``: nothing does.
    """

    name: str
    kind: Kind
    size: int
    permutable: bool
    within: str | None = None
    norm: Norm = "none"


@dataclass(frozen=True)
class Axis:
    """One axis of a parameter.

    Attributes:
        layout: parts one after the other, each a product of groups, the last varying fastest.
        role: what the parameter does there: ``"write"`` (outputs of a map, biases, the vectors of a
            table), ``"read"`` (inputs of a map), ``"both"`` (a tied table), ``"scale"`` (one factor
            or statistic per unit, as in norms, or the outputs of a map that are such factors),
            ``"shift"`` (what norms add), ``"index"`` (rows of a table), ``"kernel"``.
        behind: for what reads, the layer norm that it stands behind, if any.
    """

    layout: Layout
    role: Role
    behind: str | None = None


@dataclass(frozen=True)
class Member:
    """A group's place in a parameter: its key, and which axis."""

    key: str
    axis: int
    role: Role


@dataclass(frozen=True, repr=False)
class Structure(Brief):
    """Which axes of which parameters belong together; `structure_of` derives it from a model.

    Attributes:
        groups: by name, in the order of the forward pass.
        axes: for every floating entry of the state dict, its axes.
    """

    groups: Mapping[str, Group]
    axes: Mapping[str, tuple[Axis, ...]]

    def members(self, name: str) -> tuple[Member, ...]:
        """Where a group occurs.

        Raises:
            ValueError: if there is no such group.
        """
        self.group(name)
        return tuple(
            Member(key, number, axis.role)
            for key, axes in self.axes.items()
            for number, axis in enumerate(axes)
            if any(name in factors for factors in axis.layout)
        )

    def group(self, name: str) -> Group:
        """A group by name.

        Raises:
            ValueError: if there is no such group.
        """
        if name not in self.groups:
            raise ValueError(f"no group {name!r}; there are {', '.join(self.groups)}")
        return self.groups[name]

    def permutable(self) -> tuple[str, ...]:
        """The names of the groups that may be permuted without changing the function."""
        return tuple(group.name for group in self.groups.values() if group.permutable)

    def inside(self, name: str) -> tuple[str, ...]:
        """The groups of dimensions inside the heads of this group."""
        return tuple(group.name for group in self.groups.values() if group.within == name)

    def gates(self) -> dict[str, Axis]:
        """The maps whose outputs multiply features, one by one: key of the weight to that axis."""
        return {
            key: axis
            for key, axes in self.axes.items()
            for axis in axes
            if axis.role == "scale" and any(other.role == "read" for other in axes)
        }

    def part_sizes(self, axis: Axis) -> Iterator[tuple[tuple[str, ...], int]]:
        """The parts of an axis and how many indices each has."""
        for factors in axis.layout:
            yield factors, math.prod(self.groups[name].size for name in factors)

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape that a parameter must have."""
        return tuple(sum(size for _, size in self.part_sizes(axis)) for axis in self.axes[key])

    def check(self, state: StateDict, what: str) -> None:
        """Check that a state dict has this structure; integer entries are not looked at.

        Raises:
            ValueError: naming the first key that is missing, unknown, or of another shape.
        """
        for key in self.axes:
            if key not in state:
                raise ValueError(f"{what} lacks key {key!r} of the structure")
        for key, tensor in state.items():
            if key not in self.axes:
                if tensor.is_floating_point():
                    raise ValueError(f"{what} has the key {key!r}, which the structure has not")
            elif tuple(tensor.shape) != self.shape(key):
                raise ValueError(
                    f"{what}[{key!r}] has shape {tuple(tensor.shape)}, expected {self.shape(key)}"
                )

    def is_matrix(self, key: str, tensor: Tensor) -> bool:
        """Whether a parameter is a linear map with more than one input and output.

        True for linear layers, folded convolutions and output layers of their own; tables of tokens
        or positions, also tied ones, and norms are no matrices. For ``is_matrix=`` of `merge`.

        Raises:
            ValueError: for a floating entry that the structure does not have.
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
        """A linear map as a matrix ``(outputs, inputs · kernel)``, however it is stored.

        A convolution is folded, and what is stored as (inputs, outputs) is transposed.

        Raises:
            ValueError: if `is_matrix` denies it.
        """
        if not self.is_matrix(key, tensor):
            raise ValueError(f"{key!r} is no matrix")
        roles = [axis.role for axis in self.axes[key]]
        return tensor.movedim((roles.index("write"), roles.index("read")), (0, 1)).flatten(1)
