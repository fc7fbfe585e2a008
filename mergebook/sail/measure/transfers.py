"""From two sources to a target: how networks are trained and judged, whatever the data."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.lab.results import Tables
from mergebook.sail.costs import count_flops
from mergebook.sail.measure.training import State, States, by_adam
from mergebook.suites.caching import VERSION, cached
from mergelib.activations import recalibrate_batchnorm
from mergelib.evaluation.tasks import Split, Transform, cross_entropy
from mergelib.hashing import digest, digest_of_state, fingerprint, plain, stable_seed
from mergelib.io.cache import cache_folder
from mergelib.messages.brief import Brief
from mergelib.problems import calling
from mergelib.sail.growth.learning import MEASURED
from mergelib.statedict import is_statistic
from mergelib.training import seeded

Build = Callable[[int], nn.Module]  # a network for a part: 0, 1, or `TARGET`

SMALL, TARGET = "small", 2


def settled(
    net: nn.Module, state: Mapping[str, Tensor], batches: Iterable[Tensor]
) -> Mapping[str, Tensor]:
    """Weights with statistics of batch norms measured on batches; as given where there are none."""
    found = any(map(is_statistic, state))
    return recalibrate_batchnorm(net, dict(state), batches) if found else state


class Schedule(NamedTuple):
    """How long training is, with Adam at a constant rate."""

    source_steps: int  # of a source
    source_rate: float  # of every such step
    batch_size: int  # examples of any step


@dataclass(frozen=True, repr=False)
class Transfer(Brief):
    """Data, networks and how they are trained."""

    name: str  # of the modality
    target: str  # of the target, empty where there is one for each size
    builds: Mapping[str, Build]  # by size, `SMALL` for sources
    head: Sequence[str]  # keys that belong to the part, and not to what a source has learned
    parts: Sequence[Split]  # what sources learn on, D_1 and D_2, then the target's training data D*
    choose: Split  # of D*'s law, for what is chosen
    judge: Split
    described: Sequence[Tensor]  # features of the three parts, for their distances
    schedule: Schedule  # of trainings
    transform: Transform  # from inputs as stored to what a network takes
    seed: int  # of everything drawn
    answers: bool  # whether sources answer the target's questions, without another head
    copied: Sequence[str]  # sizes whose units can all be copies of a source's
    device: str = "cpu"  # of networks; data stay where they are

    def placed(self, tables: Tables, **where: str) -> Tables:
        """Rows that say where they were measured, and of images modality and target, too."""
        if self.target:
            where |= {"modality": self.name, "target": self.target}
        return {table: [{**where, **row} for row in rows] for table, rows in tables.items()}

    def network(self, size: str, part: int, *names: object) -> nn.Module:
        """A network for a part, at a random start of that name."""
        with seeded(stable_seed("start", size, *names, self.seed)):
            return self.builds[size](part).to(self.device)

    def source(self, start: str, part: int) -> nn.Module:
        """A small network from a start of that name, trained on a part, with the target's head."""
        net, split = self.network(SMALL, part, start), self.parts[part]
        steps, rate = self.schedule.source_steps, self.schedule.source_rate
        made: dict[str, Any] = {"version": VERSION, "by": type(self).trained.__qualname__}
        made |= {"seed": self.seed, "schedule": plain(self.schedule)}
        made["start"] = digest_of_state(net.state_dict())
        made["data"] = digest([split.inputs, split.labels])
        learned = cached(
            cache_folder() / "zoo" / f"sail-source-{fingerprint(made)}.safetensors",
            lambda: self.trained(net, split, [steps], rate)[steps],
            made,
        )
        source = self.network(SMALL, TARGET)
        source.load_state_dict(self.headed(source, learned))
        return source

    def headed(self, net: nn.Module, state: State) -> State:
        """Weights with the head of a network in place of their own."""
        return {**state, **{key: net.state_dict()[key] for key in self.head}}

    def trained(self, net: nn.Module, split: Split, steps: Sequence[int], rate: float) -> States:
        """A network after some steps on a split, see `by_adam`; all in the same order."""
        options: dict[str, Any] = {"transform": self.transform, "loss": _to_labels}
        options |= {"batch_size": self.schedule.batch_size}
        return by_adam(net, split, steps, rate, seed=stable_seed("order", self.seed), **options)

    def retrained(
        self, net: nn.Module, steps: Iterable[int], rate: float, split: Split | None = None
    ) -> Iterator[dict[str, Any]]:
        """``step`` and what `judged` gives, of a start and after some steps on the target."""
        later = [step for step in steps if step]
        states = self.trained(net, split or self.parts[TARGET], later, rate) if later else {}
        for step, state in {0: net.state_dict(), **states}.items():
            yield {"step": step, **self.judged(net, state)}

    def judged(self, net: nn.Module, state: Mapping[str, Tensor]) -> dict[str, float]:
        """Losses on both splits of the target's law, and accuracy on the one that judges."""
        state = self.settled(net, state)
        choose, judge = (self.outputs(net, state, split) for split in (self.choose, self.judge))
        right = judge.argmax(-1) == self.judge.labels
        return {
            "choose": float(cross_entropy(choose, self.choose.labels)),
            "judge": float(cross_entropy(judge, self.judge.labels)),
            "accuracy": float(right.double().mean()),
        }

    def outputs(self, net: nn.Module, state: Mapping[str, Tensor], split: Split) -> Tensor:
        """Of a network with these weights, statistics at rest; on the CPU."""
        found = calling.features(net, state, split.inputs, batch_size=100, transform=self.transform)
        return found.cpu()

    def measured_anew(self, net: nn.Module) -> int:
        """Settle a network's statistics, if it has any; returns the FLOPs of it."""
        state = net.state_dict()
        settled = self.settled(net, state)
        if settled is state:
            return 0
        net.load_state_dict(settled)
        return self.forward_flops(net, len(self.parts[TARGET].first(MEASURED)))

    def settled(self, net: nn.Module, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Weights with statistics of batch norms, if there are, measured on target inputs."""
        parts = self.parts[TARGET].inputs[:MEASURED].split(self.schedule.batch_size)
        return settled(net, state, (self.transform(batch.to(self.device)) for batch in parts))

    def step_flops(self, net: nn.Module) -> int:
        part = self.parts[TARGET].first(self.schedule.batch_size)
        inputs, labels = self.transform(part.inputs.to(self.device)), part.labels.to(self.device)
        copied = copy.deepcopy(net).train()
        return count_flops(lambda: cross_entropy(copied(inputs), labels).backward())

    def forward_flops(self, net: nn.Module, rows: int) -> int:
        """FLOPs of a forward pass of this many of the target's examples."""
        inputs = self.transform(self.parts[TARGET].inputs[:1].to(self.device))
        with torch.no_grad():
            return rows * count_flops(lambda: copy.deepcopy(net).eval()(inputs))


def _to_labels(outputs: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """Cross-entropy to labels, or to probabilities of all classes, ``(..., classes)``."""
    flat = labels.flatten(0, -2) if labels.is_floating_point() else labels.flatten()
    return F.cross_entropy(outputs.flatten(0, -2), flat, reduction=reduction)
