"""CoGraM: merge experts layer by layer, and finer where a layer decides too little or too much.

From the last layer to the first, every expert's layer is put into the merged network M, and the
losses decide how they are mixed (Eqs. 3 to 6). Where their spread |ΔL| lies outside the thresholds
of the level, the layer stays as it is and its neurons are judged instead, and a neuron's weights
likewise; a neuron or weight that does not lower the loss is rolled back (Eq. 7). The result is
the M of the next iteration (Eq. 8). Lenz, CoGraM.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mergelib.cogram.decisions import Log, Rules, Thresholds
from mergelib.cogram.network import Layer, Network, Tensors
from mergelib.cogram.orders import sequential, simultaneous
from mergelib.cogram.site import Site
from mergelib.cogram.trace import Prefix, Trace, answers, replaced
from mergelib.procedures.common import (
    Adapted,
    Transform,
    check_choice,
    check_finite,
    check_tasks,
    complete,
    labelled,
)
from mergelib.procedures.fisher import fisher
from mergelib.progress import progress
from mergelib.registry import procedure
from mergelib.statedict import (
    Experts,
    StateDict,
    check_compatible,
    check_keys,
    check_tensor,
    name_experts,
)

ORDERS = {"sequential": sequential, "simultaneous": simultaneous}


@procedure(
    paper="lenz2025cogram",
    data="model, heads, labelled examples or prototypes (one or a few a class)",
)
def cogram(
    experts: Experts,
    *,
    model: nn.Module,
    heads: Mapping[str, nn.Module],
    data: Mapping[str, Any],
    start: StateDict | None = None,
    levels: Sequence[str] = ("layer",),
    thresholds: Thresholds | None = None,
    steepness: float = 5.5,
    shrinkage: float = 0.0,
    order: Literal["sequential", "simultaneous"] = "sequential",
    iterations: int = 1,
    loss: Literal["cross_entropy", "mse"] = "cross_entropy",
    rollback: Sequence[str] = ("neuron", "weight"),
    units: Mapping[str, Tensor] | None = None,
    transform: Transform | None = None,
) -> Adapted:
    """CoGraM: experts mixed layer by layer, or finer, by the loss that each part has in place.

    A layer is a module that owns tensors. A neuron is an output unit of a linear or convolutional
    layer that runs once, with its incoming weights and bias; other layers are merged at the level
    of layers only. Losses are computed in double precision.

    Args:
        experts: A and B, or more: mapping of name to state dict, or a list. They need not share a
            pretrained model.
        model: the architecture; the first dimension of what its modules take and give counts
            examples.
        heads: task to what turns the model's output into logits; identity for a classifier.
        data: task to inputs and labels, on which all losses are taken, or to inputs and targets of
            the output's shape for ``"mse"``; see `prototypes`.
        start: the merged network M to begin with. Without it, Fisher merging on the data.
        levels: some of ``"layer"``, ``"neuron"`` and ``"weight"``.
        thresholds: level to (τ_min, τ_max) in nats, by default (0, inf). A part whose |ΔL| lies
            outside of them is left to the next of ``levels``; at the last one all are merged.
        steepness: λ of Eq. 4, at least 0.
        shrinkage: 0 to 1, how far α is drawn to the plain mean; see `mixing_weights`.
        order: ``"sequential"``: each change is in force for the next decision;
            ``"simultaneous"``: all units of a layer are judged against the same M, then put in
            together. If that does not lower the loss, the better half of them is tried, and so on.
        iterations: passes over the network, at least 1.
        loss: the mean over the tasks of each one's mean.
        rollback: levels at which a change must lower the loss. The paper has none for layers.
        units: layer to rows ``(units, rows)``, int64, that are decided together, as those of an
            attention head; by default every row is a unit.
        transform: from inputs to the model's, e.g. the testbed's `normalise`.

    Returns:
        The merged state, and ``history``, a row a decision: ``iteration``, ``layer``, ``level``,
        ``unit``, ``weight`` (its place among the unit's, bias last; -1 for none), ``case``,
        ``spread`` |ΔL|, ``loss NAME`` and ``alpha NAME`` of every expert, ``before``, ``after``
        (the loss with the mixture; NaN where left to a finer level) and ``accepted``.

    Raises:
        ValueError: fewer than two experts; experts, data, heads or a start that do not fit; NaN in
            them; a setting out of range. The message names it.
    """
    named = name_experts(experts)
    rules = Rules(levels, thresholds or {}, steepness, shrinkage, rollback)
    _check(named, order, iterations, loss)
    check_tasks(data, heads, "head")
    pairs = labelled(data, "cogram")
    for task, (inputs, _) in pairs.items():
        if transform is None and inputs.dtype == torch.uint8:
            raise ValueError(f"inputs of task {task!r} are torch.uint8: pass transform=")
        if inputs.is_floating_point():
            check_finite(f"inputs of task {task!r}", inputs)
    if start is None:
        start = _fisher(named, model, heads, pairs, transform)
    _check_states(model, named, start)
    with torch.no_grad():
        network = Network(model, start, pairs, heads, loss, transform)
        check_finite("the loss of start", torch.tensor(network.loss()))
        layers = network.layers()
        groups = _groups(layers, units or {})
        log = Log(list(named))
        for iteration in progress(range(iterations), desc="cogram", leave=False):
            merger = _Layers(network, rules, log)
            for layer in reversed(layers):
                parts = [layer.part_of(expert) for expert in named.values()]
                log.place = {"iteration": iteration, "layer": layer.name}
                left = "layer" not in levels or not merger.merges(layer, parts)
                if left and layer.refinable and rules.levels[-1] != "layer":
                    matrices = torch.stack([layer.matrix(part) for part in parts])
                    ORDERS[order](Site(network, layer), matrices, groups[layer.name], rules, log)
                    merger.refined()
    merged = network.model.state_dict()
    floating = [key for key, tensor in start.items() if tensor.is_floating_point()]
    state = {key: merged[key].to(start[key]) for key in floating}
    return Adapted(complete(state, start), history=log.table())


class _Layers:
    """Decisions on whole layers, from the last one to the first.

    What comes before a layer does not change as later ones do, so it is run once and kept. Only
    layers that are never called, but read by others, make a new run necessary; they are the last.
    """

    def __init__(self, network: Network, rules: Rules, log: Log) -> None:
        self.network, self.rules, self.log = network, rules, log
        self.loss: float | None = None  # of the network as it is, if known
        self._trace: Trace | None = None

    def merges(self, layer: Layer, parts: list[Tensors]) -> bool:
        """Decide a layer as a whole; False where it is left to its neurons."""
        if self._trace is None or layer.module not in self._trace:
            self._trace = Trace(self.network)
        before = self.network.loss() if self.loss is None else self.loss
        prefix = self._trace.prefix(layer.module)
        if prefix and abs(self._run(prefix) - before) > 1e-9 * max(1.0, before):
            prefix = {}  # some modules work by side effects, as an in-place ReLU on a shortcut
        kept = {key: tensor.clone() for key, tensor in layer.tensors.items()}
        losses = []
        for part in parts:
            layer.write(part)
            losses.append(self._run(prefix))
        last = self.rules.levels[-1] == "layer" or not layer.refinable
        found = torch.tensor([losses], dtype=torch.float64)
        judged = self.rules.judge("layer", found, last=last)
        accepted = False
        if judged.merging:
            weights = judged.weights[0].tolist()
            layer.write(
                {
                    key: sum(
                        weight * part[key] for weight, part in zip(weights, parts, strict=True)
                    )
                    for key in kept
                }
            )
            judged.after[0] = self._run(prefix)
            accepted = judged.after.item() < self.rules.ceiling("layer", before)
        if not accepted:
            layer.write(kept)
        self.loss = judged.after.item() if accepted else before
        self.log.add("layer", -1, -1, judged, before, accepted)
        return bool(judged.merging)

    def refined(self) -> None:
        """A layer was changed elsewhere."""
        self.loss = None

    def _run(self, prefix: Prefix) -> float:
        """The network's loss, where the modules of the prefix answer from memory."""
        with replaced(answers(prefix, torch.clone)):
            return self.network.loss()


def _groups(layers: list[Layer], units: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rows of each unit of the layers that have units."""
    groups = {}
    for layer in layers:
        if layer.refinable:
            weight = layer.tensors["weight"]
            rows = units.get(layer.name, torch.arange(len(weight))[:, None]).to(weight.device)
            if rows.dim() != 2 or sorted(rows.flatten().tolist()) != list(range(len(weight))):
                raise ValueError(
                    f"units of layer {layer.name!r} must hold each of its {len(weight)} rows once"
                )
            groups[layer.name] = rows
    for name in units:
        if name not in groups:
            raise ValueError(f"units name layer {name!r}; with units are: {', '.join(groups)}")
    return groups


def attention_heads(heads: int, width: int, parts: int = 3) -> Tensor:
    """The rows of each head in a fused projection, ``(heads, parts · width / heads)``.

    Args:
        heads: how many.
        width: of queries, keys and values each, all heads together.
        parts: how many of these are fused, one below the other.

    Raises:
        ValueError: if the heads do not divide the width.
    """
    if width % heads:
        raise ValueError(f"{heads} heads do not divide a width of {width}")
    return torch.arange(parts * width).view(parts, heads, -1).transpose(0, 1).flatten(1)


def _fisher(
    named: Mapping[str, StateDict],
    model: nn.Module,
    heads: Mapping[str, nn.Module],
    pairs: Mapping[str, tuple[Tensor, Tensor]],
    transform: Transform | None,
) -> StateDict:
    """Fisher merging, every expert on its own task, or all of them on the only one."""
    if len(pairs) == 1:
        (task,) = pairs
        pairs, heads = dict.fromkeys(named, pairs[task]), dict.fromkeys(named, heads[task])
    elif set(named) - set(pairs):
        raise ValueError("cogram needs start=, as the experts are not named after the tasks")
    first = next(iter(named.values()))
    return fisher(named, first, model=model, heads=heads, data=pairs, transform=transform).state


def _check(named: Mapping[str, StateDict], order: str, iterations: int, loss: str) -> None:
    if len(named) < 2:
        raise ValueError(f"cogram needs at least 2 experts, got {len(named)}")
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}, expected one of: {', '.join(ORDERS)}")
    check_choice("loss", loss, ("cross_entropy", "mse"))
    if iterations < 1:
        raise ValueError(f"iterations is {iterations}, expected at least 1")


def _check_states(model: nn.Module, named: Mapping[str, StateDict], start: StateDict) -> None:
    check_keys(model.state_dict(), start, "start", "the model")
    for key, tensor in model.state_dict().items():
        check_tensor(key, tensor.to(start[key].dtype), start[key], "start", "the model")
    check_compatible(start, named, "start")
    for name, state in {**named, "start": start}.items():
        for key, tensor in state.items():
            if tensor.is_floating_point():
                check_finite(f"{key!r} of {name!r}", tensor)
