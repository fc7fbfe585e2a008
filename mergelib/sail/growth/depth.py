"""Which layers of a shallow network fill a deeper one (SAIL, Eq. 9 and appendix F.2).

A list of modules that is longer in the target is grown: its layers of equal shape (all but the
first in most ResNet stages) become θ̃^k = Σ_i d_ki θ^i with rows d_k on the simplex. A shorter list
keeps some layers. All other entries come from the entry of the same name.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from mergelib.messages.brief import Brief
from mergelib.statedict import check_keys, is_statistic
from mergelib.structure import Structure

Depth = Literal["identity", "stack", "interlace", "interpolate", "stack_top"]
# Those that SAIL has; ``"stack_top"`` is that of bert2BERT.
DEPTHS: tuple[Depth, ...] = ("identity", "stack", "interlace", "interpolate")

# Keys of the source with their coefficients, a scalar each; none for a layer that is new.
Origin = tuple[tuple[str, Tensor], ...]


@dataclass(frozen=True, repr=False)
class GrownList(Brief):
    """A list of modules whose length changes."""

    first: int  # index of the first layer that has the shapes of all later ones
    rows: Tensor  # d_ki, (target layers, source layers) from there on; a zero row is a new layer


def depth_rows(scheme: Depth, source: int, target: int, gap: float = math.inf) -> Tensor:
    """Return the weight of each source layer in each target layer, d_ki of Eq. 9, float64.

    ``"stack"`` repeats the whole list from its bottom; ``"stack_top"`` does too, but fills an
    incomplete repetition with the top layers (Chen et al., 2022, Algorithm 1); ``"interlace"``
    repeats each layer in place; ``"interpolate"`` mixes the two nearest; ``"identity"`` appends new
    layers (zero rows). With a finite ``gap``, rows are softmax(gap · pattern) as in appendix F.2.
    """
    place = torch.arange(target)
    pattern = torch.zeros(target, source, dtype=torch.float64)
    if scheme == "stack":
        pattern[place, place % source] = 1
    elif scheme == "stack_top":
        rest = target % source
        pattern[place, (place + (place >= target - rest) * (source - rest)) % source] = 1
    elif scheme == "interlace":
        pattern[place, place * source // target] = 1
    elif scheme == "interpolate":
        at = torch.linspace(0, source - 1, target, dtype=torch.float64)
        pattern = (1 - (at[:, None] - torch.arange(source)).abs()).clamp_min(0)
    else:
        pattern[:source] = torch.eye(source, dtype=torch.float64)
    return pattern if math.isinf(gap) else torch.softmax(gap * pattern, 1)


def grown_lists(
    source: nn.Module, target: nn.Module, depth: Depth, gap: float
) -> dict[str, GrownList]:
    """Return the outermost lists of modules whose length changes, by path."""
    return _lists(source, target, partial(_grown_rows, depth, gap))


def kept_lists(
    source: nn.Module, target: nn.Module, layers: Mapping[str, Sequence[int]]
) -> dict[str, GrownList]:
    """Return the outermost lists of modules that are shorter in the target, by path.

    ``layers`` is as in `mergelib.shrink`.
    """
    lists = _lists(source, target, partial(_kept_rows, layers))
    for path in layers:
        if path not in lists:
            raise ValueError(
                f"layers names {path!r}, which is not a list that gets shorter; those that do: "
                + (", ".join(lists) or "none")
            )
    return lists


def origins(
    source: Iterable[str], target: Iterable[str], lists: Mapping[str, GrownList]
) -> dict[str, Origin]:
    """Return the source entries and weights from which every target entry is made."""
    parts = {key: _origin(key, lists) for key in target}
    needed = {name: None for origin in parts.values() for name, _ in origin}
    fixed = {key for key in source if not any(_inside(key, path) for path in lists)}
    what = "the target; only widths and the numbers of layers in lists may differ"
    check_keys(needed, fixed | (needed.keys() & set(source)), "the source", what)
    return parts


def next_layers(source: nn.Module) -> dict[str, str]:
    """Return the next layer's entry for each entry of a list of equal layers, except the last."""
    following: dict[str, str] = {}
    outer_lists: list[str] = []
    for path, module in source.named_modules():
        start = f"{path}." if path else ""
        nested = any(start.startswith(outer) for outer in outer_lists)
        if nested or not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        layers = list(module)
        equal = range(_first_alike(layers), len(layers))
        if len(equal) > 1:
            outer_lists.append(start)
        for number in equal[:-1]:
            for key in layers[number].state_dict():
                following[f"{start}{number}.{key}"] = f"{start}{number + 1}.{key}"
    return following


def closed_keys(structure: Structure, lists: Mapping[str, GrownList]) -> set[str]:
    """Return the entries of new layers to set to zero so that these layers change nothing.

    They belong to the batch norm or gate that ends the residual branch, or else write the stream.
    """
    closed: set[str] = set()
    for path, grown in lists.items():
        for place in (~grown.rows.any(1)).nonzero().flatten().tolist():
            layer = f"{path}.{grown.first + place}"
            ends = _branch_ends(structure, layer)
            if not ends:
                raise ValueError(
                    f"{layer!r} has no residual branch that could be closed; depth 'identity' "
                    "needs layers that add to a stream, with norms inside their branches"
                )
            closed |= ends
    return closed


def _branch_ends(structure: Structure, layer: str) -> set[str]:
    """Return the keys that end a layer's residual branches; empty if it has none."""
    axes_of = {key: axes for key, axes in structure.axes.items() if _inside(key, layer)}
    gates = structure.gates()
    axes = [a for key, row in axes_of.items() for a in row if key not in gates or a.role != "read"]
    names = {name for axis in axes for factors in axis.layout for name in factors}
    if sum(structure.groups[name].kind == "stream" for name in names) != 1:
        return set()
    roles = {key: _on_stream(structure, key) for key in axes_of}
    last = {_owner(k) for k, role in roles.items() if role and (is_statistic(k) or k in gates)}
    ends = {key for key in roles if _owner(key) in last and not is_statistic(key)}
    return ends or {key for key, role in roles.items() if role == "write"}


def _on_stream(structure: Structure, key: str) -> str | None:
    """Return a parameter's role on a residual stream without a norm in it, unless it reads it."""
    for axis in structure.axes[key]:
        groups = [structure.groups[name] for factors in axis.layout for name in factors]
        streams = (group.kind == "stream" and group.norm != "other" for group in groups)
        if axis.role != "read" and any(streams):
            return axis.role
    return None


def _owner(key: str) -> str:
    return key.rpartition(".")[0]


def _lists(
    source: nn.Module, target: nn.Module, rows: Callable[[str, int, int, int], Tensor]
) -> dict[str, GrownList]:
    """Return the lists whose length changes, with ``rows`` of path, first layer and lengths."""
    modules = dict(source.named_modules())
    kinds = (nn.ModuleList, nn.Sequential)
    lists: dict[str, GrownList] = {}
    for path, module in target.named_modules():
        other = modules.get(path)
        if not (isinstance(module, kinds) and isinstance(other, kinds)):
            continue
        if len(module) != len(other) and not any(_inside(path, outer) for outer in lists):
            first = max(_first_alike(list(other)), _first_alike(list(module)))
            first = min(first, len(module))  # without equal layers, the last ones are dropped
            lists[path] = GrownList(first, rows(path, first, len(other), len(module)))
    return lists


def _grown_rows(
    depth: Depth, gap: float, path: str, first: int, source: int, target: int
) -> Tensor:
    if target < source:
        raise ValueError(
            f"{path!r} has {target} layers in the target, fewer than the source's {source}; to "
            "choose among them use shrink"
        )
    if source - first < 1 and depth != "identity":
        raise ValueError(f"{path!r} has no layer that depth {depth!r} could repeat")
    return depth_rows(depth, max(source - first, 0), target - first, gap)


def _kept_rows(
    layers: Mapping[str, Sequence[int]], path: str, first: int, source: int, target: int
) -> Tensor:
    if target > source:
        raise ValueError(
            f"{path!r} has {target} layers in the target, more than the source's {source}: use grow"
        )
    if path not in layers:
        return depth_rows("interlace", source - first, target - first)
    numbers = layers[path]
    head, free = list(numbers[:first]), list(numbers[first:])
    fits = head == list(range(first)) and all(n in range(first, source) for n in free)
    if not fits or len(numbers) != target:
        start = f"{', '.join(map(str, range(first)))}, then " if first else ""
        raise ValueError(
            f"layers[{path!r}] is {list(numbers)}, expected {start}{target - first} numbers from "
            f"{first} to {source - 1}"
        )
    return torch.eye(source, dtype=torch.float64)[free, first:]


def _first_alike(layers: list[nn.Module]) -> int:
    """Return the first layer from which on all have the shapes of the last."""
    shapes = [[(k, v.shape) for k, v in layer.state_dict().items()] for layer in layers]
    first = len(layers) - 1
    while first > 0 and shapes[first - 1] == shapes[-1]:
        first -= 1
    return first


def _origin(key: str, lists: Mapping[str, GrownList]) -> Origin:
    for path, grown in lists.items():
        if _inside(key, path):
            number, _, rest = key[len(path) + 1 :].partition(".")
            place = int(number) - grown.first
            if place < 0:
                break
            return tuple(
                (f"{path}.{grown.first + i}.{rest}", share)
                for i, share in enumerate(grown.rows[place])
                if share
            )
    return ((key, torch.ones(())),)


def _inside(key: str, path: str) -> bool:
    return key.startswith(f"{path}.")
