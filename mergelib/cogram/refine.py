"""CoGraM: merge experts layer by layer, and by neuron or weight where a layer is undecided.

From the last layer to the first, every expert's layer is put into the merged network M, and the
losses set the mixture (Eqs. 3 to 6). If the spread |ΔL| is outside the level's thresholds, the
layer's neurons are decided instead, and a neuron's weights do the same. A neuron or weight that
does not lower the loss is rolled back (Eq. 7). The result is M of the next iteration (Eq. 8).
Lenz, CoGraM.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from mergelib.cogram.decisions import CogramSettings, Log
from mergelib.cogram.network import Layer, Network, Tensors, Trace, replayed
from mergelib.cogram.orders import sequential, simultaneous
from mergelib.cogram.site import site_of
from mergelib.problems.checks import check_finite
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted, complete
from mergelib.procedures.fisher import FisherSettings, fisher
from mergelib.progress import progress
from mergelib.registry import Needs, procedure
from mergelib.statedict import (
    StateDict,
    check_compatible,
    flatten,
    unflatten,
)

ORDERS = {"sequential": sequential, "simultaneous": simultaneous}


@procedure(
    paper="lenz2025cogram",
    data="labelled examples or prototypes (one or a few a class)",
    settings=CogramSettings,
    needs=Needs(pretrained=False, classes=False, labels="targets", accepts=("start",)),
)
def cogram(problem: Problem, settings: CogramSettings) -> Adapted:
    """CoGraM: mix experts layer by layer, or finer, by the loss that each part has in place.

    A layer is a module that owns tensors. A neuron is an output unit of a linear or convolutional
    layer that runs once; other layers are merged as a whole. Losses use double precision and all
    examples at once; the first dimension of every module's input and output counts examples. With
    ``loss="mse"`` labels have the output's shape. `prototypes` reduces many examples to few. The
    experts, two or more, need not share a pretrained model. M begins with ``problem.start``, or
    with Fisher merging on the data.

    Returns:
        The merged state, and ``history`` with one row per decision: ``iteration``, ``layer``,
        ``level``, ``unit``, ``weight`` (its index in the unit, bias last; -1 for none), ``case``,
        ``spread`` |ΔL|, ``loss NAME`` and ``alpha NAME`` per expert, ``before``, ``after`` (loss
        with the mixture; NaN if decided at a finer level) and ``accepted``.

    Raises:
        ValueError: there are fewer than two experts, or inputs do not fit or are not finite. The
            message names them.
    """
    experts = problem.experts
    if len(experts) < 2:
        raise ValueError(f"cogram needs at least 2 experts, got {len(experts)}")
    for task, examples in problem.data.items():
        if not isinstance(examples.inputs, Tensor):
            raise TypeError(f"inputs of task {task!r} are a dictionary, expected one tensor")
        if problem.transform is None and examples.inputs.dtype == torch.uint8:
            raise ValueError(f"inputs of task {task!r} are torch.uint8; pass transform=")
    start = _fisher(problem) if problem.start is None else problem.start
    name, expert = next(iter(experts.items()))
    check_compatible(expert, {"start": start}, name)
    with torch.no_grad():
        network = Network(problem, start, settings.loss)
        before = network.loss()
        check_finite("the loss of start", torch.tensor(before))
        layers = network.layers()
        groups = _groups(layers, settings.units or {})
        log = Log(list(experts), settings)
        for iteration in progress(range(settings.iterations), desc="cogram", leave=False):
            trace = Trace(network)
            for layer in reversed(layers):
                parts = [layer.part_of(expert) for expert in experts.values()]
                log.place = (iteration, layer.name)
                merged = False
                if "layer" in settings.levels:
                    merged, before = _decide(network, trace, layer, parts, before, log)
                if layer.refinable and settings.levels[-1] != "layer" and not merged:
                    site = site_of(network, layer)
                    matrices = torch.stack([layer.matrix(part) for part in parts])
                    ORDERS[settings.order](site, matrices, groups[layer.name], before, log)
                    before = network.loss()
    merged_state = network.model.state_dict()
    floating = [key for key, tensor in start.items() if tensor.is_floating_point()]
    state = {key: merged_state[key].to(start[key]) for key in floating}
    return Adapted(complete(state, start), history=log.table())


def _decide(
    network: Network, trace: Trace, layer: Layer, parts: list[Tensors], before: float, log: Log
) -> tuple[bool, float]:
    """Decide a layer as a whole; return whether it is merged, and the loss afterwards."""
    prefix = trace.prefix(layer.module)

    def losses(vectors: Tensor) -> Tensor:
        found = []
        for vector in vectors:
            layer.write(unflatten(vector, layer.tensors))
            with replayed(prefix, torch.clone):
                found.append(network.loss())
        return vectors.new_tensor(found)

    previous = flatten(layer.tensors)[None]
    if prefix and abs(losses(previous).item() - before) > 1e-9 * max(1.0, before):
        prefix = {}  # some modules work by side effects, as an in-place ReLU on a shortcut
    last = log.settings.levels[-1] == "layer" or not layer.refinable
    proposals = torch.stack([flatten(part) for part in parts])
    after, made = log.decide(("layer", -1, -1), losses, proposals, before, last=last)
    layer.write(unflatten(previous[0] if made is None else made[1], layer.tensors))
    return not math.isnan(after), before if made is None else after


def _groups(layers: list[Layer], units: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the rows of each unit of the layers that have units."""
    groups = {}
    for layer in layers:
        if layer.refinable:
            weight = layer.tensors["weight"]
            rows = units.get(layer.name, torch.arange(len(weight))[:, None]).to(weight.device)
            if rows.dim() != 2 or sorted(rows.flatten().tolist()) != list(range(len(weight))):
                raise ValueError(
                    f"units[{layer.name!r}] must contain each of its {len(weight)} rows once"
                )
            groups[layer.name] = rows
    for name in units.keys() - groups.keys():
        raise ValueError(
            f"units names {name!r}, which has no units; layers with units: {', '.join(groups)}"
        )
    return groups


def attention_heads(heads: int, width: int, parts: int = 3) -> Tensor:
    """Return the rows of each head in a fused projection, ``(heads, parts · width / heads)``.

    ``parts`` projections of ``width`` rows each are stacked; a width that heads do not divide is a
    ``ValueError``.
    """
    if width % heads:
        raise ValueError(f"{heads} heads do not divide a width of {width}")
    return torch.arange(parts * width).view(parts, heads, -1).transpose(0, 1).flatten(1)


def _fisher(problem: Problem) -> StateDict:
    """Fisher-merge the experts, each on its own task, or all of them on the only one."""
    experts, data, heads = problem.experts, problem.data, problem.heads
    if len(data) == 1:
        (task,) = data
        data, heads = dict.fromkeys(experts, data[task]), dict.fromkeys(experts, heads[task])
    elif set(experts) - set(data):
        raise ValueError("the experts are not named after the tasks; pass start= to cogram")
    unlabelled = {task: examples.unlabelled for task, examples in data.items()}
    first = next(iter(experts.values()))
    problem = replace(problem, pretrained=first, data=unlabelled, heads=heads)
    return fisher(problem, FisherSettings()).state
