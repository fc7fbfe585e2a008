"""CoGraM as the paper tells it: put a candidate into the network, run all of it, take it out again.

One forward pass after the other for every decision, in double precision: slow, and hard to get
wrong. It knows nothing of the package; which layers there are, and which have neurons, it is told.
"""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = ("layer", "neuron", "weight")
Part = list[tuple[str, Any]]  # entries of the network: a key of its state dict, and an index
Row = dict[str, Any]


class Plain:
    """One pass of CoGraM, or several.

    Args:
        model: the architecture; it is copied.
        start: the merged network to begin with.
        experts: in the order of the log's ``losses`` and ``alphas``.
        data: task to inputs and targets.
        heads: task to what turns the model's output into logits.
        layers: name of each in the order in which they run; whether it has neurons. The model
            itself has the empty name.
        units: layer to the rows of each neuron, by default one each.
        settings: as `mergelib.procedures.cogram` has them.
    """

    def __init__(
        self,
        model: nn.Module,
        start: Mapping[str, Tensor],
        experts: Sequence[Mapping[str, Tensor]],
        data: Mapping[str, tuple[Tensor, Tensor]],
        heads: Mapping[str, nn.Module],
        layers: Mapping[str, bool],
        *,
        units: Mapping[str, Sequence[Sequence[int]]] | None = None,
        **settings: Any,
    ) -> None:
        self.model = copy.deepcopy(model).double().eval()
        self.model.load_state_dict(start)
        self.state = self.model.state_dict()  # shares its memory with the model
        self.experts = [{k: v.double() for k, v in each.items()} for each in experts]
        self.tasks = [
            (_double(x), _double(y), copy.deepcopy(heads[task]).double().eval())
            for task, (x, y) in data.items()
        ]
        self.layers, self.units = layers, units or {}
        defaults = {"levels": LEVELS, "thresholds": {}, "steepness": 5.5, "shrinkage": 0.0}
        defaults |= {"order": "sequential", "iterations": 1, "loss": "cross_entropy"}
        self.settings = {**defaults, "rollback": ("neuron", "weight"), **settings}
        self.levels = self.settings["levels"]
        self.log: list[Row] = []

    @torch.no_grad()
    def run(self) -> tuple[dict[str, Tensor], list[Row]]:
        """The merged state, and a row a decision."""
        for iteration in range(self.settings["iterations"]):
            for name, refinable in reversed(list(self.layers.items())):
                done = len(self.log)
                left = True
                if "layer" in self.levels:
                    last = self.levels[-1] == "layer" or not refinable
                    left = not self.decide("layer", self.whole(name), last, self.loss())["merges"]
                if left and refinable and self.levels[-1] != "layer":
                    getattr(self, self.settings["order"])(self.neurons(name))
                for row in self.log[done:]:
                    row |= {"iteration": iteration, "layer": name}
        return self.state, self.log

    def loss(self) -> float:
        """Of the network as it is: the mean over the tasks of each one's mean."""
        losses = []
        for inputs, targets, head in self.tasks:
            made = head(self.model(inputs))
            if self.settings["loss"] == "mse":
                losses.append(F.mse_loss(made, targets).item())
            else:
                losses.append(F.cross_entropy(made.flatten(0, -2), targets.flatten()).item())
        return sum(losses) / len(losses)

    def whole(self, name: str) -> Part:
        """All that a layer owns."""
        keys = [key for key in self.state if key.rpartition(".")[0] == name]
        return [(key, ...) for key in keys if self.state[key].is_floating_point()]

    def neurons(self, name: str) -> list[tuple[Part, list[Part]]]:
        """The neurons of a layer, each with its weights, bias last."""
        own = [key for key, _ in self.whole(name)]
        shape = self.state[own[0]].shape  # a weight first, and a bias if there is one
        places = [tuple(each) for each in torch.ones(shape[1:]).nonzero().tolist()]
        found = []
        for rows in self.units.get(name, [[row] for row in range(shape[0])]):
            whole: Part = []
            weights: list[Part] = []
            for row in (int(each) for each in rows):
                whole += [(key, row) for key in own]
                weights += [[(own[0], (row, *place))] for place in places]
                weights += [[(key, row)] for key in own[1:]]
            found.append((whole, weights))
        return found

    def sequential(self, neurons: list[tuple[Part, list[Part]]]) -> None:
        """Each change that is kept is in force for the next decision."""
        before = self.loss()
        last = "weight" not in self.levels
        for unit, (whole, weights) in enumerate(neurons):
            merges = False
            if "neuron" in self.levels:
                row = self.decide("neuron", whole, last, before, unit=unit)
                merges = row["merges"]
                before = row["after"] if row["accepted"] else before
            for weight, part in enumerate(weights) if not (merges or last) else ():
                row = self.decide("weight", part, True, before, unit=unit, weight=weight)
                before = row["after"] if row["accepted"] else before

    def simultaneous(self, neurons: list[tuple[Part, list[Part]]]) -> None:
        """All neurons against one network, put in together; then all weights of those left."""
        left: Iterable[int] = range(len(neurons))
        if "neuron" in self.levels:
            last = "weight" not in self.levels
            parts = {(unit, -1): neurons[unit][0] for unit in left}
            left = self.decide_all("neuron", parts, last)
        if "weight" in self.levels:
            parts = {(u, i): part for u in left for i, part in enumerate(neurons[u][1])}
            self.decide_all("weight", parts, True)

    def decide(
        self, level: str, part: Part, last: bool, before: float, unit: int = -1, weight: int = -1
    ) -> Row:
        """Judge one part, log it, and put in its mixture if it helps."""
        row, mixed = self.judge(level, part, last)
        row["accepted"] = row["merges"] and self.helps(level, row["after"], before)
        if row["accepted"]:
            self.put(part, mixed)
        self.log.append({**row, "unit": unit, "weight": weight, "before": before})
        return row

    def decide_all(
        self, level: str, parts: Mapping[tuple[int, int], Part], last: bool
    ) -> list[int]:
        """Judge all, put in together what helps, or its better half; the units left."""
        before = self.loss()
        judged = {place: self.judge(level, part, last) for place, part in parts.items()}
        good = [
            place
            for place, (row, _) in judged.items()
            if row["merges"] and self.helps(level, row["after"], before)
        ]
        good.sort(key=lambda place: judged[place][0]["after"])
        while good:
            kept = [(parts[place], self.get(parts[place])) for place in good]
            for place in good:
                self.put(parts[place], judged[place][1])
            if self.helps(level, self.loss(), before):
                break
            for part, values in kept:
                self.put(part, values)
            good = good[: len(good) // 2]
        chosen = set(good)
        for place, (row, _) in judged.items():
            unit, weight = place
            row["accepted"] = place in chosen
            self.log.append({**row, "unit": unit, "weight": weight, "before": before})
        return [unit for (unit, _), (row, _) in judged.items() if not row["merges"]]

    def judge(self, level: str, part: Part, last: bool) -> tuple[Row, list[Tensor]]:
        """A row of the log, and the mixture."""
        given = [[expert[key][index] for key, index in part] for expert in self.experts]
        losses = [self.loss_with(part, values) for values in given]
        spread = max(losses) - min(losses)
        low, high = self.settings["thresholds"].get(level, (0.0, math.inf))
        case = "uncertain" if spread < low else "coarse" if spread > high else "merge"
        case = "merge" if last else case
        powers = [math.exp(-self.settings["steepness"] * (each - min(losses))) for each in losses]
        drawn = self.settings["shrinkage"]
        alphas = [(1 - drawn) * each / sum(powers) + drawn / len(powers) for each in powers]
        mixed = [
            sum((a * value for a, value in zip(alphas, values, strict=True)), torch.zeros(()))
            for values in zip(*given, strict=True)
        ]
        after = self.loss_with(part, mixed) if case == "merge" else math.nan
        row = {"level": level, "case": case, "spread": spread, "losses": losses, "alphas": alphas}
        return {**row, "after": after, "merges": case == "merge"}, mixed

    def helps(self, level: str, after: float, before: float) -> bool:
        """Eq. 7, where it holds; a difference at the level of rounding is none."""
        least = 1e-12 * max(1.0, abs(before))
        return level not in self.settings["rollback"] or after < before - least

    def get(self, part: Part) -> list[Tensor]:
        """A copy of what stands there."""
        return [self.state[key][index].clone() for key, index in part]

    def put(self, part: Part, values: Sequence[Tensor]) -> None:
        """Write other values there."""
        for (key, index), value in zip(part, values, strict=True):
            self.state[key][index] = value

    def loss_with(self, part: Part, values: Sequence[Tensor]) -> float:
        """The loss with other values there, which are taken out again."""
        kept = self.get(part)
        self.put(part, values)
        found = self.loss()
        self.put(part, kept)
        return found


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x
