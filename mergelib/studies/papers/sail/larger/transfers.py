"""From two sources to a target: the data and networks on which SAIL's starts are compared.

In text both sources and the target are mixtures of two texts, so that Theorem 3's weight is known.
In vision the sources have learned one half each of the classes that backbones are pretrained on,
and the target has classes of its own, so that every start gets the same new head.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergelib.activations import recalibrate
from mergelib.data.texts import TEXTS
from mergelib.hashing import stable_seed
from mergelib.messages.brief import Brief
from mergelib.problems import calling
from mergelib.sail.blocks import histograms, mix
from mergelib.sail.retraining import count_flops
from mergelib.statedict import is_statistic
from mergelib.studies.papers.sail.text import texts_of
from mergelib.studies.papers.sail.training import Plan, Rows, State, by_adam, load_corpus
from mergelib.studies.runner import Loaded, Run, refuse_zoo_settings
from mergelib.testbed.families import family_of, pictures
from mergelib.testbed.models import GPT, ResNet, to_tokens
from mergelib.testbed.suites import load_suite
from mergelib.testbed.tasks import PretrainingSet, Split, Task, Transform, cross_entropy
from mergelib.training import seeded

Build = Callable[[int], nn.Module]  # a network for a part: 0, 1, or `TARGET`

SMALL, TARGET = "small", 2
SHARE = 0.75  # of a text's target that is of the first source's text
PICTURES: dict[str, Any] = {"train_size": 4000, "validation_size": 500, "test_size": 500}
MEASURED = 500  # pictures that BatchNorm is measured anew on
DESCRIBED = 500  # pictures of each part whose pixels are compared


class Schedule(NamedTuple):
    """How long training is, with Adam at a constant rate.

    Attributes:
        source_steps: of a source.
        source_rate: of every such step.
        batch_size: examples of any step.
    """

    source_steps: int
    source_rate: float
    batch_size: int


@dataclass(frozen=True, repr=False)
class Transfer(Brief):
    """Data, networks and how they are trained.

    Attributes:
        name: of the modality.
        builds: by size, `SMALL` for sources; each gives a network for a part, at a random start.
        head: keys that belong to the part, and not to what a source has learned.
        parts: what sources learn on, D_1 and D_2, then the target's training data D*.
        choose: of D*'s law, for what is chosen.
        judge: likewise, for what is reported.
        described: features of the three parts, for their distances.
        schedule: of trainings.
        transform: from inputs as stored to what a network takes.
        seed: of everything drawn.
        answers: whether sources answer the target's questions, without another head.
        copied: sizes whose units can all be copies of a source's.
    """

    name: str
    builds: Mapping[str, Build]
    head: Sequence[str]
    parts: Sequence[Split]
    choose: Split
    judge: Split
    described: Sequence[Tensor]
    schedule: Schedule
    transform: Transform
    seed: int
    answers: bool
    copied: Sequence[str]

    def network(self, size: str, part: int, *names: object) -> nn.Module:
        """A network for a part, at a random start of that name."""
        with seeded(stable_seed("start", size, *names, self.seed)):
            return self.builds[size](part)

    def source(self, start: str, part: int) -> nn.Module:
        """A small network from a start of that name, trained on a part, with the target's head."""
        net = self.network(SMALL, part, start)
        steps = self.schedule.source_steps
        split, rate = self.parts[part], self.schedule.source_rate
        learned = self.trained(net, split, [steps], rate)[steps]
        source = self.network(SMALL, TARGET)
        source.load_state_dict(self.headed(source, learned))
        return source

    def headed(self, net: nn.Module, state: State) -> State:
        """Weights with the head of a network in place of their own."""
        return {**state, **{key: net.state_dict()[key] for key in self.head}}

    def trained(
        self, net: nn.Module, split: Split, steps: Sequence[int], rate: float
    ) -> dict[int, State]:
        """A network after some steps on a split, see `by_adam`; all in the same order."""
        return by_adam(
            net,
            split,
            steps,
            rate,
            batch_size=self.schedule.batch_size,
            transform=self.transform,
            loss=_to_labels,
            seed=stable_seed("order", self.seed),
        )

    def retrained(
        self, net: nn.Module, steps: Iterable[int], rate: float, split: Split | None = None
    ) -> Iterator[dict[str, Any]]:
        """Losses of a start and after some steps on the target.

        Args:
            net: the start.
            steps: 0 for the start itself.
            rate: of every step.
            split: the target's training data, by default as they are.

        Yields:
            ``step``, the losses ``choose`` and ``judge`` in nats, and ``accuracy`` on the latter.
        """
        later = [step for step in steps if step]
        states = self.trained(net, split or self.parts[TARGET], later, rate)
        for step, state in {0: net.state_dict(), **states}.items():
            yield {"step": step, **self.judged(net, state)}

    def judged(self, net: nn.Module, state: Mapping[str, Tensor]) -> dict[str, float]:
        """Losses on both splits of the target's law, and accuracy on the one that judges."""
        choose, judge = (self.outputs(net, state, split) for split in (self.choose, self.judge))
        right = judge.argmax(-1) == self.judge.labels
        return {
            "choose": float(cross_entropy(choose, self.choose.labels)),
            "judge": float(cross_entropy(judge, self.judge.labels)),
            "accuracy": float(right.double().mean()),
        }

    def outputs(self, net: nn.Module, state: Mapping[str, Tensor], split: Split) -> Tensor:
        """Of a network with these weights, statistics at rest."""
        return calling.features(net, state, split.inputs, batch_size=100, transform=self.transform)

    def measured_anew(self, net: nn.Module) -> int:
        """Measure statistics of batch norms, if there are, on target inputs; returns its FLOPs."""
        if not any(is_statistic(key) for key in net.state_dict()):
            return 0
        rows = self.parts[TARGET].inputs[:MEASURED]
        batches = [self.transform(batch) for batch in rows.split(self.schedule.batch_size)]
        net.load_state_dict(recalibrate(net, net.state_dict(), batches))
        return self.forward_flops(net, len(rows))

    def step_flops(self, net: nn.Module) -> int:
        """FLOPs of a step of training."""
        part = self.parts[TARGET].first(self.schedule.batch_size)
        inputs = self.transform(part.inputs)
        copied = copy.deepcopy(net).train()
        return count_flops(lambda: cross_entropy(copied(inputs), part.labels).backward())

    def forward_flops(self, net: nn.Module, rows: int) -> int:
        """FLOPs of a forward pass of so many of the target's examples."""
        inputs = self.transform(self.parts[TARGET].inputs[:1])
        with torch.no_grad():
            return rows * count_flops(lambda: copy.deepcopy(net).eval()(inputs))


def _to_labels(outputs: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """Cross-entropy to labels, or to probabilities of all classes, ``(..., classes)``."""
    if labels.is_floating_point():
        flat = labels.flatten(0, -2)
        return F.cross_entropy(outputs.flatten(0, -2), flat, reduction=reduction)
    return cross_entropy(outputs, labels, reduction=reduction)


def transfer_of(run: Run) -> Loaded:
    """The transfer of a run and its seed: two texts, or a task of a suite of pictures.

    Raises:
        ValueError: an unknown suite or task, or a setting of zoos.
    """
    if run.suite in TEXTS:
        loaded = texts_of(run)
        seed, texts = loaded.arguments
        return Loaded((text_transfer([*texts.values()], seed),), loaded.inputs)
    refuse_zoo_settings(run, "studies of starts")
    name = run.settings["target"] or next(iter(family_of(run.suite).suites[run.suite]))
    suite = load_suite(run.suite, seed=run.seed, tasks=[name], **PICTURES)
    rendered = family_of(run.suite).name == "glyphs"
    known = (pictures.rendered_sets if rendered else pictures.pretraining_sets)()[0]
    sources = {**suite.sources, f"pretraining/{known.name}": known.sha256}
    transfer = picture_transfer(suite.tasks[name], known, run.seed)
    return Loaded((transfer,), {"sources": sources})


def text_transfer(texts: Sequence[str], seed: int) -> Transfer:
    """Sources of two texts, each on every second block; the target is mixed from the others.

    Raises:
        ValueError: other than two texts.
    """
    if len(texts) != 2:
        raise ValueError(f"{len(texts)} texts, expected two: that of the suite and one other")
    plan = Plan(batch_size=8)
    corpus = load_corpus(texts, plan, seed)
    parts = [corpus.parted(rows) for rows in corpus.texts]
    seen = [rows.train[::2] for rows in parts]
    fresh = [rows._replace(train=rows.train[1::2]) for rows in parts]
    mixed = Rows(*(mix(one, two, SHARE, seed) for one, two in zip(*fresh, strict=True)))
    target = corpus.target(mixed)

    def build(width: int, depth: int, heads: int) -> Build:
        size = {"vocabulary": plan.vocabulary, "context": plan.context}
        return lambda part: GPT(width, depth, heads, **size)

    blocks = [corpus.blocks[rows].double() for rows in (*seen, mixed.train)]
    return Transfer(
        "GPT",
        {SMALL: build(32, 2, 4), "half wider": build(48, 3, 6), "twice": build(64, 4, 8)},
        (),
        [*map(corpus.windows, seen), target.train],
        target.choose,
        target.judge,
        [histograms(table, plan.vocabulary) for table in blocks],
        Schedule(1000, plan.source_rate, plan.batch_size),
        to_tokens,
        seed,
        answers=True,
        copied=("twice",),
    )


def picture_transfer(task: Task, known: PretrainingSet, seed: int) -> Transfer:
    """Sources of half of the classes of a set each, a task of other pictures as target."""
    classes = len(known.class_names)
    generator = torch.Generator().manual_seed(stable_seed("halves", seed))
    halves = torch.randperm(classes, generator=generator).chunk(2)
    parts = [_of_classes(known.train, half) for half in halves]
    outputs = [*map(len, halves), len(task.class_names)]

    def build(width: int, *blocks: int) -> Build:
        def network(part: int) -> nn.Module:
            body = ResNet(width, blocks)
            return nn.Sequential(body, nn.Linear(body.width, outputs[part]))

        return network

    splits = [*parts, task.train]
    return Transfer(
        "ResNet",
        {
            SMALL: build(8, 1, 1, 1, 1),
            "half wider": build(12, 2, 2, 2, 2),
            "deeper": build(8, 2, 2, 2, 2),
            "deepest": build(8, 3, 4, 6, 3),
        },
        ("1.weight", "1.bias"),
        splits,
        task.validation,
        task.test,
        [_pixels(task.transform(split.inputs[:DESCRIBED])) for split in splits],
        Schedule(1000, 3e-3, 64),
        task.transform,
        seed,
        answers=False,
        copied=("half wider", "deeper", "deepest"),
    )


def _of_classes(split: Split, classes: Tensor) -> Split:
    """Examples of some classes, in random order as they come, numbered anew."""
    numbers = torch.full((int(split.labels.max()) + 1,), -1)
    numbers[classes] = torch.arange(len(classes))
    labels = numbers[split.labels]
    rows = (labels >= 0).nonzero()[:, 0]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(len(rows)))
    return Split(split.inputs[rows[order]], labels[rows[order]])


def _pixels(images: Tensor) -> Tensor:
    """Pictures as rows of 8 x 8 pixels of three colours."""
    return F.adaptive_avg_pool2d(images, 8).flatten(1).double()
