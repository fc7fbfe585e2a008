"""CoGraM: merge experts layer by layer, and by neuron or weight where a layer is undecided.

From the last layer to the first, every expert's layer is put into the merged network M, and the
losses set the mixture (Eqs. 3 to 6). If the spread |ΔL| is outside the level's thresholds, the
layer's neurons are decided instead, and a neuron's weights do the same. A neuron or weight that
does not lower the loss is rolled back (Eq. 7). The result is M of the next iteration (Eq. 8).
Lenz, CoGraM.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from mergelib.cogram.decisions import Log, Rules, Thresholds
from mergelib.cogram.network import Layer, Network, Tensors
from mergelib.cogram.orders import sequential, simultaneous
from mergelib.cogram.site import Site
from mergelib.cogram.trace import Prefix, Trace, answers, replaced
from mergelib.messages.brief import Brief
from mergelib.problems.checks import check_choice, check_finite
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted, complete
from mergelib.procedures.fisher import FisherSettings, fisher
from mergelib.progress import progress
from mergelib.registry import Needs, procedure
from mergelib.statedict import StateDict, check_compatible, check_keys, check_tensor

ORDERS = {"sequential": sequential, "simultaneous": simultaneous}


@dataclass(frozen=True, repr=False)
class CogramSettings(Brief):
    """Hyperparameters of `cogram`.

    Attributes:
        levels: some of ``"layer"``, ``"neuron"`` and ``"weight"``, in this order.
        thresholds: level to (τ_min, τ_max) in nats, by default (0, inf). A part with |ΔL| outside
            them is decided at the next level; at the last level all parts are merged.
        steepness: λ of Eq. 4, at least 0.
        shrinkage: 0..1, how far α is drawn towards the plain mean; see `mixing_weights`.
        order: ``"sequential"`` applies each change before the next decision. ``"simultaneous"``
            decides all units of a layer against the same M and applies them together, then the
            better half of them until the loss falls.
        iterations: passes over the network, at least 1.
        loss: averaged over each task, then over tasks.
        rollback: levels at which a change must lower the loss. The paper has none for layers.
        units: layer to rows ``(units, rows)``, int64, that are decided together; by default each
            row.
    """

    levels: Sequence[str] = ("layer",)
    thresholds: Thresholds | None = None
    steepness: float = 5.5
    shrinkage: float = 0.0
    order: Literal["sequential", "simultaneous"] = "sequential"
    iterations: int = 1
    loss: Literal["cross_entropy", "mse"] = "cross_entropy"
    rollback: Sequence[str] = ("neuron", "weight")
    units: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        _ = self.rules  # which check themselves
        if self.order not in ORDERS:
            raise ValueError(f"order is {self.order!r}, expected one of: {', '.join(ORDERS)}")
        check_choice("loss", self.loss, ("cross_entropy", "mse"))
        if self.iterations < 1:
            raise ValueError(f"iterations is {self.iterations}, expected at least 1")

    @property
    def rules(self) -> Rules:
        """The rules of decision."""
        return Rules(
            self.levels, self.thresholds or {}, self.steepness, self.shrinkage, self.rollback
        )


@procedure(
    paper="lenz2025cogram",
    data="labelled examples or prototypes (one or a few a class)",
    settings=CogramSettings,
    needs=Needs(pretrained=False, labels="targets", accepts=("start",)),
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
    experts, rules = problem.experts, settings.rules
    _check(problem)
    start = _fisher(problem) if problem.start is None else problem.start
    _check_states(problem, start)
    with torch.no_grad():
        network = Network(problem, start, settings.loss)
        check_finite("the loss of start", torch.tensor(network.loss()))
        layers = network.layers()
        groups = _groups(layers, settings.units or {})
        log = Log(list(experts))
        for iteration in progress(range(settings.iterations), desc="cogram", leave=False):
            merger = _Layers(network, rules, log)
            for layer in reversed(layers):
                parts = [layer.part_of(expert) for expert in experts.values()]
                log.place = {"iteration": iteration, "layer": layer.name}
                left = "layer" not in rules.levels or not merger.merges(layer, parts)
                if left and layer.refinable and rules.levels[-1] != "layer":
                    matrices = torch.stack([layer.matrix(part) for part in parts])
                    site = Site(network, layer)
                    ORDERS[settings.order](site, matrices, groups[layer.name], rules, log)
                    merger.refined()
    merged = network.model.state_dict()
    floating = [key for key, tensor in start.items() if tensor.is_floating_point()]
    state = {key: merged[key].to(start[key]) for key in floating}
    return Adapted(complete(state, start), history=log.table())


class _Layers:
    """Decides whole layers from the last to the first; earlier modules run once and are stored."""

    def __init__(self, network: Network, rules: Rules, log: Log) -> None:
        self.network, self.rules, self.log = network, rules, log
        self.loss: float | None = None  # of the network as it is, if known
        self._trace: Trace | None = None

    def merges(self, layer: Layer, parts: list[Tensors]) -> bool:
        """Decide a layer as a whole; return False if its neurons must be decided."""
        if self._trace is None or layer.module not in self._trace:
            self._trace = Trace(self.network)
        before = self.network.loss() if self.loss is None else self.loss
        prefix = self._trace.prefix(layer.module)
        self._trace.forget(layer.module)
        if prefix and abs(self._run(prefix) - before) > 1e-9 * max(1.0, before):
            prefix = {}  # some modules work by side effects, as an in-place ReLU on a shortcut
        previous = {key: tensor.clone() for key, tensor in layer.tensors.items()}
        losses = []
        for part in parts:
            layer.write(part)
            losses.append(self._run(prefix))
        last = self.rules.levels[-1] == "layer" or not layer.refinable
        judgement = self.rules.judge(
            "layer", torch.tensor([losses], dtype=torch.float64), last=last
        )
        accepted = False
        if judgement.merging:
            weights = judgement.weights[0].tolist()
            pairs = list(zip(weights, parts, strict=True))
            layer.write(
                {key: sum(weight * part[key] for weight, part in pairs) for key in previous}
            )
            judgement.after[0] = self._run(prefix)
            accepted = judgement.after.item() < self.rules.ceiling("layer", before)
        if not accepted:
            layer.write(previous)
        self.loss = judgement.after.item() if accepted else before
        self.log.add("layer", -1, -1, judgement, before, accepted)
        return bool(judgement.merging)

    def refined(self) -> None:
        """Forget the loss, because a layer was changed elsewhere."""
        self.loss = None

    def _run(self, prefix: Prefix) -> float:
        """Return the loss, with stored outputs for the modules of the prefix."""
        with replaced(answers(prefix, torch.clone)):
            return self.network.loss()


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
    for name in units:
        if name not in groups:
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
    return fisher(
        replace(problem, pretrained=first, data=unlabelled, heads=heads), FisherSettings()
    ).state


def _check(problem: Problem) -> None:
    if len(problem.experts) < 2:
        raise ValueError(f"cogram needs at least 2 experts, got {len(problem.experts)}")
    for task, examples in problem.data.items():
        inputs = examples.inputs
        if not isinstance(inputs, Tensor):
            raise TypeError(f"inputs of task {task!r} are a dictionary, expected one tensor")
        if problem.transform is None and inputs.dtype == torch.uint8:
            raise ValueError(f"inputs of task {task!r} are torch.uint8; pass transform=")


def _check_states(problem: Problem, start: StateDict) -> None:
    weights = problem.model.state_dict()
    check_keys(weights, start, "start", "the model")
    for key, tensor in weights.items():
        check_tensor(key, tensor.to(start[key].dtype), start[key], "start", "the model")
    check_compatible(start, problem.experts, "start")
