"""Derive a structure by following features through the modules; see README.md."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from mergelib.structure.groups import Axis, Group, Kind, Norm, Role, Structure

Description = Callable[..., Any]
_DESCRIPTIONS: dict[str, Description] = {}
_NORMS: tuple[Norm, ...] = ("none", "layer", "other")  # the later says more


@dataclass(frozen=True)
class Features:
    """The feature axis of an activation: consecutive parts, each a product of groups.

    ``features + other`` concatenates. ``flat`` marks flattened positions, and ``behind`` names the
    layer norm that the features come from. Groups are numbers until all unions are known.
    """

    layout: tuple[tuple[int, ...], ...]
    flat: bool = False
    behind: str | None = None

    def __add__(self, other: "Features") -> "Features":
        return Features(self.layout + other.layout)


@dataclass
class _Draft:
    """A group before unions are resolved; ``same_as`` is the group it was united with."""

    name: str
    kind: Kind
    size: int
    within: int | None = None
    pinned: bool = False
    same_as: int | None = None
    norm: Norm = "none"


@dataclass
class _Trace:
    """All groups and declarations so far."""

    drafts: list[_Draft] = field(default_factory=list)
    axes: dict[int, list[tuple[Features, Role]]] = field(default_factory=dict)  # by id of tensor

    def new(self, name: str, kind: Kind, size: int, within: int | None = None) -> int:
        self.drafts.append(_Draft(name, kind, size, within))
        return len(self.drafts) - 1

    def find(self, number: int) -> int:
        same_as = self.drafts[number].same_as
        return number if same_as is None else self.find(same_as)

    def size(self, features: Features) -> int:
        return sum(math.prod(self.drafts[n].size for n in factors) for factors in features.layout)

    def groups(self, features: Features | None) -> list[_Draft]:
        """Return all groups of some features, after unions."""
        layout = () if features is None else features.layout
        return [self.drafts[self.find(n)] for factors in layout for n in factors]

    def unite(self, a: Features, b: Features, where: str) -> None:
        shapes = [[len(factors) for factors in features.layout] for features in (a, b)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"{where} unites features that consist of different groups")
        for left, right in zip(a.layout, b.layout, strict=True):
            for number, other in zip(left, right, strict=True):
                self._unite(number, other, where)

    def _unite(self, number: int, other: int, where: str) -> None:
        first, second = sorted((self.find(number), self.find(other)))
        if first == second:
            return
        a, b = self.drafts[first], self.drafts[second]
        if a.size != b.size:
            raise ValueError(
                f"{where} unites {a.size} features of {a.name!r} and {b.size} of {b.name!r}"
            )
        kinds: set[Kind] = {a.kind, b.kind}
        if len(kinds) > 1:
            if kinds & {"heads", "head"}:
                raise ValueError(f"{where} unites {a.name!r} ({a.kind}) and {b.name!r} ({b.kind})")
            a.kind = "fixed" if "fixed" in kinds else "stream"
        a.pinned |= b.pinned
        a.norm = max(a.norm, b.norm, key=_NORMS.index)
        b.same_as = first

    def structure(self, model: nn.Module) -> Structure:
        names = self._names()
        self._mark_bare_readers()
        axes: dict[str, tuple[Axis, ...]] = {}
        for key, tensor in model.state_dict(keep_vars=True).items():
            if id(tensor) in self.axes:
                axes[key] = tuple(
                    Axis(
                        tuple(tuple(names[self.find(n)] for n in f) for f in x.layout),
                        role,
                        x.behind,
                    )
                    for x, role in self.axes[id(tensor)]
                )
            elif tensor.is_floating_point():
                raise ValueError(f"{key!r} is not declared in the description of its module")
        used = {name for row in axes.values() for axis in row for f in axis.layout for name in f}
        groups = {}
        for number, name in names.items():
            draft = self.drafts[number]
            within = None if draft.within is None else names[self.find(draft.within)]
            permutable = draft.kind != "fixed" and not draft.pinned
            if name in used:
                groups[name] = Group(name, draft.kind, draft.size, permutable, within, draft.norm)
        return Structure(groups, axes)

    def mark(self, x: Features | None, norm: Norm) -> None:
        """Record a norm across these features; the strongest of ``_NORMS`` stays."""
        for draft in self.groups(x):
            draft.norm = max(draft.norm, norm, key=_NORMS.index)

    def _mark_bare_readers(self) -> None:
        """Mark a group ``"other"`` if only some of its readers are behind a layer norm."""
        for rows in self.axes.values():
            for x, role in rows:
                bare = role in ("read", "both") and x.behind is None
                if bare and any(draft.norm == "layer" for draft in self.groups(x)):
                    self.mark(x, "other")

    def _names(self) -> dict[int, str]:
        names: dict[int, str] = {}
        for number, draft in enumerate(self.drafts):
            if draft.same_as is None:
                name, count = draft.name, 1
                while name in names.values():
                    count += 1
                    name = f"{draft.name} ({count})"
                names[number] = name
        return names


class Scope:
    """What a description works with: its module, the module's path, and the groups so far."""

    def __init__(self, trace: _Trace, module: nn.Module, path: str) -> None:
        self._trace, self._module, self._path = trace, module, path

    def __call__(self, child: str, x: Features | None, **options: Any) -> Any:
        """Follow features through a child module and return its description's result."""
        module = self._module.get_submodule(child)
        return _describe(self._trace, module, self._join(child), x, **options)

    def chain(self, x: Features | None, *children: str) -> Features | None:
        """Follow features through several children in order."""
        for child in children:
            x = self(child, x)
        return x

    def units(self, size: int) -> Features:
        """Return new hidden units or channels."""
        return Features(((self._trace.new(self._path or "model", "units", size),),))

    def attention(self, heads: int, size: int) -> tuple[Features, Features, Features]:
        """Return queries, keys and values of new heads; queries and keys share dimensions."""
        whole = self._trace.new(self._join("heads"), "heads", heads)
        keys = self._trace.new(self._join("keys"), "head", size, whole)
        values = self._trace.new(self._join("values"), "head", size, whole)
        query = Features(((whole, keys),))
        return query, query, Features(((whole, values),))

    def add(self, x: Features | None, y: Features | None) -> Features | None:
        """Return the stream of a residual addition, whose two sides become one group."""
        if x is None or y is None:
            other = y if x is None else x
            return None if other is None else self.pin(self._bare(other))
        self._trace.unite(x, y, self._path or "model")
        x, _ = self._bare(x), self._bare(y)
        for draft in self._trace.groups(x):
            draft.kind = "stream" if draft.kind == "units" else draft.kind
        return x

    def pin(self, x: Features) -> Features:
        """Fix the order of these features, e.g. because the output shows them."""
        for draft in self._trace.groups(x):
            draft.pinned = True
        return x

    def normalise(self, x: Features | None) -> Features | None:
        """Record a norm, other than a layer norm, across these features."""
        self._trace.mark(x, "other")
        return x

    def behind_layer_norm(self, x: Features | None) -> Features | None:
        """Record that this module is a layer norm and return its output features."""
        self._trace.mark(x, "layer")
        return None if x is None else replace(x, behind=self._path)

    def _bare(self, x: Features) -> Features:
        """Return features to add; a layer norm before them is a norm within the stream."""
        if x.behind is not None:
            self._trace.mark(x, "other")
        return replace(x, behind=None)

    def flatten(self, x: Features | None) -> Features | None:
        """Flatten positions and features into one axis, positions varying fastest."""
        return None if x is None else replace(x, flat=True)

    def declare(self, name: str, *axes: tuple[Role, Features | None]) -> None:
        """Declare what each axis of a parameter or buffer of this module consists of.

        Args:
            name: attribute name, possibly dotted; an attribute that is ``None`` is skipped.
            *axes: a role and features per axis; ``None`` for fixed features. A second declaration
                of the same (or a tied) parameter unites the groups.

        Raises:
            ValueError: the number of axes or a size does not match; the message names the
                parameter.
        """
        owner, _, attribute = name.rpartition(".")
        tensor = getattr(self._module.get_submodule(owner), attribute)
        key = self._join(name)
        if tensor is None:
            return
        if tensor.dim() != len(axes):
            raise ValueError(f"{key!r} has {tensor.dim()} axes, but {len(axes)} are declared")
        earlier = self._trace.axes.get(id(tensor))
        agreed: list[tuple[Features, Role]] = []
        for number, ((role, fits), size) in enumerate(zip(axes, tensor.shape, strict=True)):
            y = self._fit(fits, size, f"{key}[{number}]")
            x, before = (y, role) if earlier is None else earlier[number]
            self._trace.unite(x, y, key)
            features = x if y.behind is None else replace(x, behind=y.behind)
            agreed.append((features, role if role == before else "both"))
        self._trace.axes[id(tensor)] = agreed

    def _fit(self, x: Features | None, size: int, axis: str) -> Features:
        """Return features laid out along an axis of this size."""
        if x is None:
            return Features(((self._trace.new(axis, "fixed", size),),))
        incoming = self._trace.size(x)
        if x.flat and incoming and size != incoming and size % incoming == 0:
            places = self._trace.new(axis, "fixed", size // incoming)
            return Features(tuple((*factors, places) for factors in x.layout))
        if size != incoming:
            raise ValueError(f"{axis} has size {size}, but its input has {incoming} features")
        return x

    def _join(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path and name else self._path or name


def describes(*classes: type[nn.Module] | str) -> Callable[[Description], Description]:
    """Register a description ``(module, scope, x) -> features`` for classes or their full names.

    >>> @describes(Residual)                                                    # doctest: +SKIP
    ... def _residual(module, scope, x):
    ...     return scope.add(x, scope.chain(x, "norm", "fc1", "fc2"))
    """

    def register(function: Description) -> Description:
        for name in classes:
            _DESCRIPTIONS[name if isinstance(name, str) else _full_name(name)] = function
        return function

    return register


def structure_of(model: nn.Module) -> Structure:
    """Return the structure of a model on any device, ``"meta"`` included.

    Raises:
        ValueError: a module has no description, a parameter is not described, or sizes do not
            match. The message names it.
    """
    trace = _Trace()
    output = _describe(trace, model, "", None)
    scope = Scope(trace, model, "")
    for features in output if isinstance(output, tuple) else (output,):
        if features is not None:
            scope.pin(features)
    return trace.structure(model)


def _describe(
    trace: _Trace, module: nn.Module, path: str, x: Features | None, **options: Any
) -> Any:
    for kind in type(module).__mro__:
        description = _DESCRIPTIONS.get(_full_name(kind))
        if description is not None:
            return description(module, Scope(trace, module, path), x, **options)
        if "forward" in vars(kind):  # a parent's description does not hold for another forward
            break
    raise ValueError(
        f"module {path or 'model'!r} is a {_full_name(type(module))}, which has no description; "
        "register one with mergelib.structure.describes"
    )


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
