"""Grow a network: initialise a larger network from a smaller trained one."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import torch
from torch import Tensor, nn

from mergelib.align.matching import check_state
from mergelib.io import Model, as_state
from mergelib.messages.brief import Brief
from mergelib.problems.checks import check_choice
from mergelib.sail.growth.depth import (
    Depth,
    GrownList,
    Origin,
    closed_keys,
    grown_lists,
    next_layers,
    origins,
)
from mergelib.sail.growth.width import COPYING, Widening, Width, shuffled_directions
from mergelib.statedict import StateDict, tied_keys
from mergelib.structure import Structure, structure_of

FIXED = {"fixed": "fixed (input, vocabulary, position or kernel)"}


@torch.no_grad()
def grow(
    source: nn.Module,
    target: nn.Module,
    *,
    state: Model | None = None,
    width: Width = "replicate",
    depth: Depth = "identity",
    gap: float = math.inf,
    noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Return weights for a wider and deeper network, made from a smaller one's (SAIL, section 4.1).

    Args:
        source: the smaller network, of a family that `mergelib.structure` knows.
        target: the larger network; it stays as it is, and new free entries keep its initial values.
        state: the smaller network's weights (state dict, module or path); by default its own.
        width: ``"replicate"`` copies units and divides their readers by the number of copies
            (Net2Net, Chen et al., 2016). ``"mean"`` adds units that have no readers yet, and the
            mean to the stream of a pre-norm transformer. Both keep the function; ``"replicate"``
            under a layer norm only for whole multiples. ``"svd"`` (appendix F.1 with W = E U and W
            = E V), ``"svd_random"`` (W random) and ``"interpolate"`` do not. Nor does ``"aki"``
            (bert2BERT, Chen et al., 2022), which is ``"replicate"`` at any width, except that new
            heads and hidden units in a list of equal layers get the next layer's weights. The last
            layer and the residual stream have copies, made in turn, where the paper draws them.
        depth: how longer lists of layers are filled. ``"identity"`` adds layers with closed
            residual branches, which keeps the function; ``"stack"``, ``"stack_top"``,
            ``"interlace"`` and ``"interpolate"`` follow Eq. 9, see
            `mergelib.sail.growth.depth.depth_rows`.
        gap: of the softmax over Eq. 9's rows; by default there is none.
        noise: for ``"replicate"``, ``"svd"`` and the streams of ``"aki"``: standard deviation,
            relative to a weight's root mean square, of noise on copies that cancels in their sum.
            Without noise copies have equal gradients and stay equal, so use some (such as 0.3)
            before training.
        generator: draws noise and random directions; by default PyTorch's global one.

    Returns:
        A state dict with the target's keys and ties, in the source's dtypes and on its devices;
        integer tensors are the source's.

    Raises:
        ValueError: networks, weights or options do not fit; the message names the module, group or
            key.

    >>> net = lambda width: nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))
    >>> tuple(grow(net(8), net(16))["0.weight"].shape)
    (16, 4)
    """
    if not noise >= 0 or (noise and width not in COPYING):
        schemes = ", ".join(map(repr, COPYING))
        raise ValueError(
            f"noise is {noise}, expected at least 0, and exactly 0 except for {schemes}"
        )
    plan = planned(source, target, state=state, width=width, depth=depth, gap=gap)
    return plan.state(lambda key: _finished(plan, key, noise, generator))


@dataclass(frozen=True, repr=False)
class Plan(Brief):
    """How the entries of a network, the target, are made from another's, the source's."""

    weights: StateDict  # of the source
    fresh: StateDict  # the target's initial weights
    lists: Mapping[str, GrownList]  # those whose length changes
    widening: Widening
    origins: Mapping[str, Origin]  # the source entries of every target entry
    next_layers: Mapping[str, str]  # entries that new units come from, if from the next layer

    @cached_property
    def ties(self) -> dict[str, str]:
        """Entries that are tied to an earlier one."""
        return tied_keys(self.fresh)

    def mapped(self, key: str) -> Tensor:
        """Return a floating entry by Eq. 9 and then Eq. 8, at least float32."""
        origin = self.origins[key]
        wide = self.widening.apply(key, mixed(self.weights, origin))
        if not self.next_layers:
            return wide
        later = tuple((self.next_layers.get(name, name), share) for name, share in origin)
        added = self.widening.new(key).to(wide.device)
        return torch.where(added, self.widening.apply(key, mixed(self.weights, later)), wide)

    def state(self, made: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Return the target's state dict in the source's dtypes.

        ``made`` returns a floating entry that has an origin, by its key.
        """
        state: dict[str, Tensor] = {}
        closed = closed_keys(self.widening.structure, self.lists)
        for key, start in self.fresh.items():
            if key in self.ties:
                state[key] = state[self.ties[key]]
            elif not self.origins[key]:
                state[key] = torch.zeros_like(start) if key in closed else start.clone()
            elif not start.is_floating_point():
                nearest = max(self.origins[key], key=lambda part: float(part[1]))
                state[key] = self.weights[nearest[0]].clone()
            else:
                kind = self.weights[self.origins[key][0][0]].dtype
                state[key] = made(key).to(kind, copy=True).contiguous()
        return state


def planned(
    source: nn.Module,
    target: nn.Module,
    *,
    state: Model | None,
    width: Width,
    depth: Depth,
    gap: float,
) -> Plan:
    """Return the plan that `grow` follows; see there for arguments and errors."""
    check_choice("width", width, get_args(Width))
    check_choice("depth", depth, get_args(Depth))
    if not gap > 0 or (not math.isinf(gap) and depth == "identity"):
        raise ValueError(
            f"gap is {gap}, expected a positive number, and inf if depth is 'identity'"
        )
    lists = grown_lists(source, target, depth, gap)
    plan = plan_of(source, target, state, lists, width)
    check_sizes(plan.widening, FIXED)
    _check_function(plan.widening)
    return plan


def plan_of(
    source: nn.Module,
    target: nn.Module,
    state: Model | None,
    lists: Mapping[str, GrownList],
    width: Width,
) -> Plan:
    """Return a plan for these lists of layers; errors are those of `grow`."""
    before, after = structure_of(source), structure_of(target)
    weights = as_state(source if state is None else state)
    check_state(weights, before, "state")
    fresh: StateDict = target.state_dict()
    sources = origins(weights, fresh, lists)
    widening = Widening(after, group_sizes(before, after, sources), width)
    layers = next_layers(source) if width == "aki" else {}
    if width == "aki" and not layers:
        raise ValueError(
            "width 'aki' takes new units from the next layer, but the source has no list of layers "
            "of one shape; use 'replicate'"
        )
    plan = Plan(weights, fresh, lists, widening, sources, layers)
    for key, first in plan.ties.items():
        pair = [mixed(weights, plan.origins[name]) for name in (key, first) if plan.origins[name]]
        if len(pair) == 2 and not torch.equal(*pair):
            raise ValueError(
                f"{key!r} is tied to {first!r} in the target, but they differ in the source; use a "
                "target without that tie"
            )
    return plan


def _finished(plan: Plan, key: str, noise: float, generator: torch.Generator | None) -> Tensor:
    """Return one mapped parameter with its free entries, random directions or noise."""
    widening, start, wide = plan.widening, plan.fresh[key], plan.mapped(key)
    if widening.scheme == "mean":
        return torch.where(widening.new(key).to(wide.device), start.to(wide), wide)
    if widening.scheme == "svd_random" and widening.structure.is_matrix(key, start):
        source = mixed(plan.weights, plan.origins[key])
        if wide.shape == source.shape:
            return wide
        return shuffled_directions(widening.structure, key, source, wide, generator)
    if noise:
        wide = wide + noise * wide.square().mean().sqrt() * widening.spread(key, wide, generator)
    return wide


def mixed(weights: StateDict, origin: Origin) -> Tensor:
    """Return Eq. 9 for one parameter, in its dtype."""
    if len(origin) == 1 and origin[0][1] == 1:
        return weights[origin[0][0]]
    parts = [share * weights[key].double() for key, share in origin]
    return torch.stack(parts).sum(0).to(weights[origin[0][0]].dtype)


def group_sizes(
    before: Structure, after: Structure, sources: Mapping[str, Origin]
) -> dict[str, int]:
    """Return the size that each group of the target has in the source."""
    sizes: dict[str, int] = {}
    for key, axes in after.axes.items():
        if not sources[key]:
            continue
        for axis, other in zip(axes, before.axes[sources[key][0][0]], strict=True):
            for factors, earlier in zip(axis.layout, other.layout, strict=True):
                for name, old in zip(factors, earlier, strict=True):
                    size = before.groups[old].size
                    if sizes.setdefault(name, size) != size:
                        raise ValueError(
                            f"{name!r} of the target comes from groups of different sizes in the "
                            f"source: {sizes[name]} and {size}"
                        )
    return {name: sizes.get(name, group.size) for name, group in after.groups.items()}


def check_sizes(widening: Widening, reasons: Mapping[str, str], *, shrinking: bool = False) -> None:
    """Check that every group that changes may do so; ``reasons`` are of kinds that may not."""
    groups = widening.structure.groups
    for name in filter(widening.grows, groups):
        old, new, group = widening.sizes[name], groups[name].size, groups[name]
        reason = reasons.get(group.kind)
        if reason is None and shrinking and group.norm != "none":
            reason = "normalised across its units"
        if reason is None and not group.permutable and group.within is None:
            reason = "visible in the model's output; put a head behind it"
        if reason is not None:
            raise ValueError(
                f"{name!r} has {old} entries in the source and {new} in the target, but it is "
                + reason
                + ("; only hidden units and channels can be shrunk" if shrinking else "")
            )
        if (new > old) == shrinking:
            raise ValueError(
                f"{name!r} has {new} units in the target, {'more' if shrinking else 'fewer'} than "
                f"the source's {old}"
            )


def _check_function(widening: Widening) -> None:
    """Check that a scheme that should keep the function does."""
    reason = _obstacle(widening, widening.scheme)
    other: Width = "mean" if widening.scheme == "replicate" else "replicate"
    if reason and not _obstacle(widening, other):
        raise ValueError(f"{reason}; use width={other!r}")
    if reason:
        raise ValueError(
            f"{reason}, and width {other!r} cannot keep the function either: grow to whole "
            "multiples with width='replicate', or choose a width that does not keep the function, "
            "such as 'svd' or 'interpolate'"
        )


def _obstacle(widening: Widening, scheme: Width) -> str:
    """Return why a function-preserving scheme fails for these networks; empty if it does not."""
    gates = widening.structure.gates().items()
    gated = {name: key for key, axis in gates for factors in axis.layout for name in factors}
    for name, group in widening.structure.groups.items():
        old, new = widening.sizes[name], group.size
        if old == new:
            continue
        if scheme == "replicate" and group.norm != "none" and new % old:
            return (
                f"{name!r} grows from {old} to {new}, no whole multiple, but a norm takes "
                "statistics across its units, which must all have equally many copies"
            )
        cause = "is read without a layer norm, or through a norm of another kind"
        if name in gated:
            cause = f"is multiplied unit by unit by the output of {gated[name]!r}"
        if scheme == "mean" and (name in gated or group.norm == "other"):
            return f"{name!r} {cause}, so width 'mean' cannot keep the function"
    return ""
