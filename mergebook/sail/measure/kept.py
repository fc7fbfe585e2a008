"""What growing keeps, and what learning its maps buys (Anonymous, 2025, section 4.1, app. F)."""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import nn

from mergebook.lab.results import Tables
from mergebook.lab.runner import Loaded, Run, refuse_zoo_settings, study
from mergebook.sail.costs import count_flops, loop_flops
from mergebook.sail.measure.sources import NOISE
from mergebook.sail.measure.text import texts_of
from mergebook.sail.measure.training import State, States, Texts, by_adam, load_corpus
from mergebook.sail.measure.transfers import settled
from mergebook.sail.thirds import random_thirds
from mergebook.suites.data.texts import TEXTS
from mergebook.suites.families import family_of
from mergebook.suites.loading import load_suite
from mergebook.suites.models import GPT, MLP, ResNet
from mergelib.evaluation.tasks import Split, Task, cross_entropy
from mergelib.hashing import stable_seed
from mergelib.messages.brief import Brief
from mergelib.problems import calling
from mergelib.sail import grow
from mergelib.sail.growth.depth import DEPTHS
from mergelib.sail.growth.learning import MEASURED, learn_growth
from mergelib.sail.growth.width import COPYING, WIDTHS
from mergelib.statedict import lerp
from mergelib.training import seeded

Build = Callable[[bool, bool], nn.Module]  # from whether it is wider, and whether deeper

GROWN = {"wider": (True, False), "deeper": (False, True), "both": (True, True)}
LEARNED = (  # what is grown, and where the maps of width and the logits of depth begin
    ("wider", "mean", ""),
    ("wider", "svd", ""),
    ("deeper", "", "stack"),
    ("both", "svd", "stack"),
)
SOURCE_STEPS, SOURCE_RATE = 300, 3e-3  # of Adam, for sources
LEARNING = 100  # steps in which maps are learned
MAP_RATES = (3e-4, 1e-3, 1e-2, 1e-1)  # of Adam, for maps; the best on `choose` counts
FURTHER = 100  # steps of training from the start that was learned, at most
RATES = (3e-4, 1e-3, 3e-3)  # of these, and of those from the plain start; the best counts
SCRATCH = (3e-3, 1e-2)  # rates of training from scratch, the best at each reading counts
EVERY = 20  # steps between two readings of that
PAIRED = LEARNED[0]  # what is learned for two sources as well
SIZES: dict[str, Any] = {"train_size": 6000, "validation_size": 500, "test_size": 500}  # pictures


@dataclass(frozen=True, repr=False)
class Ground(Brief):
    """Data, and the networks that learn on them."""

    builds: Mapping[str, Build]  # by family, a network at a random start
    parts: Sequence[Split]  # D_1, D_2 and D*; inputs as the networks take them
    choose: Split  # of D*'s law, for what is chosen
    judge: Split
    batch_size: int  # examples of a step


def ground_of(run: Run) -> Loaded:
    """The ground of a run and its seed: a text, or the first task of a suite of images."""
    refuse_zoo_settings(run, "studies of growth")
    if run.suite in TEXTS:
        loaded = texts_of(run)
        (source,) = loaded.arguments
        return Loaded((text_ground(source), run.seed), loaded.inputs)
    first = next(iter(family_of(run.suite).suites[run.suite]))
    suite = load_suite(run.suite, seed=run.seed, tasks=[first], **SIZES)
    ground = picture_ground(suite.tasks[first], run.seed)
    return Loaded((ground, run.seed), {"sources": suite.sources})


def picture_ground(task: Task, seed: int) -> Ground:
    """Thirds of a task's training images, for an MLP of width 64 and a ResNet of width 8."""
    classes = len(task.class_names)

    def mlp(wide: bool, deep: bool) -> nn.Module:
        width = 96 if wide else 64
        return nn.Sequential(MLP(width, 5 if deep else 3), nn.Linear(width, classes))

    def resnet(wide: bool, deep: bool) -> nn.Module:
        net = ResNet(12 if wide else 8, (3, 3) if deep else (2, 2))
        return nn.Sequential(net, nn.Linear(net.width, classes))

    def ready(split: Split) -> Split:
        return Split(task.transform(split.inputs), split.labels)

    thirds = random_thirds(len(task.train), stable_seed("thirds", seed))
    parts = [ready(Split(task.train.inputs[rows], task.train.labels[rows])) for rows in thirds]
    builds = {"MLP": mlp, "ResNet": resnet}
    return Ground(builds, parts, ready(task.validation), ready(task.test), 64)


def text_ground(source: Texts) -> Ground:
    """Blocks of a text in random thirds, for a GPT; a stretch of it is held out of all of them."""
    corpus = load_corpus(source)
    plan = corpus.plan
    thirds = random_thirds(len(corpus.blocks), stable_seed("thirds", source.seed))
    rows = [corpus.parted(third) for third in thirds]
    target = corpus.target(rows[2])

    def build(wide: bool, deep: bool) -> nn.Module:
        size = {"vocabulary": plan.vocabulary, "context": plan.context}
        return GPT(48 if wide else 32, 3 if deep else 2, 4, **size)

    parts = [corpus.windows(part.train) for part in rows]
    return Ground({"GPT": build}, parts, target.choose, target.judge, plan.batch_size)


@study(load=ground_of)
def kept(
    ground: Ground,  # data and networks
    seed: int,  # of all that is drawn
) -> Tables:
    """Share of a source's learning that a larger network begins with, by scheme and family.

    It is (random − loss)/(random − source) on D*'s law. Maps are learned on D*, so they may get
    above 1; what they cost is given to the plain start as further steps, then both are compared.
    ``starts``: rows of ``family``, ``grown`` (`GROWN`), ``width`` and ``depth`` (schemes, empty
    where not used), ``sources`` (``one``, or the average of two with ``shared`` or ``own`` initial
    weights), ``mode`` (``grown``, or learned ``alone`` or ``joint``), ``loss`` (nats) and ``kept``.
    ``trained``, of the learned ones: ``rate`` and ``flops`` of maps, ``extra`` steps that cost as
    much, losses ``after`` `FURTHER` steps, and ``plain``, after `FURTHER` + ``extra`` steps from a
    start that keeps the function, else a stack.
    """
    tables: Tables = {"starts": [], "trained": []}
    for family, build in ground.builds.items():
        bench = Bench(ground, build, seed)
        spots = {"one": ("common", 0), "shared": ("common", 1), "own": ("second", 1)}
        sources = {name: bench.source(*spot) for name, spot in spots.items()}
        told = bench.loss(sources["one"])
        for grown in GROWN:
            random = bench.loss(bench.fresh(grown))
            starts = [*bench.starts(grown, sources)]
            shared = {"family": family, "grown": grown}
            for start in starts:
                loss = bench.loss(start.model)
                share = (random - loss) / (random - told)
                tables["starts"].append({**shared, **start.words, "loss": loss, "kept": share})
            for start, row in bench.trained(grown, starts):
                tables["trained"].append({**shared, **start.words, "rate": start.rate, **row})
    return tables


@study(load=ground_of)
def kept_scratch(
    ground: Ground,
    seed: int,
    *,
    steps: int = 120,  # of training from scratch
    only: Sequence[str] = (),  # families, by default all of the ground
) -> Tables:
    """The control of `kept`: the ``curve`` of training from scratch, by family and `GROWN`.

    With ``step``, ``rate``, ``loss`` (nats) and ``kept``, (random − loss)/(random − source).
    """
    rows: list[dict[str, Any]] = []
    stops = range(EVERY, steps + 1, EVERY)
    for family in only or ground.builds:
        bench = Bench(ground, ground.builds[family], seed)
        source = bench.loss(bench.source("common", 0))
        for grown in GROWN:
            fresh = bench.fresh(grown)
            random, part = bench.loss(fresh), ground.parts[2]
            runs = {rate: bench.states(fresh, part, stops, rate) for rate in SCRATCH}
            for step in stops:
                best = min(SCRATCH, key=lambda r: bench.loss(fresh, ground.choose, runs[r][step]))
                loss = bench.loss(fresh, state=runs[best][step])
                row = {"family": family, "grown": grown, "step": step, "rate": best, "loss": loss}
                rows.append({**row, "kept": (random - loss) / (random - source)})
    return {"curve": rows}


class Start(NamedTuple):
    """A larger network that begins with what smaller ones have learned."""

    words: dict[str, str]  # how, as in the tables of `kept`
    model: nn.Module  # the larger network
    rate: float = 0.0  # of Adam, where maps were learned
    flops: int = 0  # of learning them


@dataclass(frozen=True, repr=False)
class Bench(Brief):
    """A family on its ground."""

    ground: Ground
    build: Build
    seed: int

    def source(self, start: str, part: int) -> nn.Module:
        """A small network from a start of that name, trained on a part."""
        with seeded(stable_seed("start", start, self.seed)):
            net = self.build(False, False)
        split, steps = self.ground.parts[part], SOURCE_STEPS
        return _loaded(net, self.states(net, split, [steps], SOURCE_RATE)[steps])

    def fresh(self, grown: str) -> nn.Module:
        with seeded(self.seed):
            return self.build(*GROWN[grown])

    def loss(
        self, model: nn.Module, split: Split | None = None, state: State | None = None
    ) -> float:
        """Cross-entropy in nats, by default on what judges and with the model's own weights."""
        split = split or self.ground.judge
        outputs = calling.features(model, state or model.state_dict(), split.inputs)
        return float(cross_entropy(outputs, split.labels))

    def ways(self, source: nn.Module, grown: str) -> Iterator[tuple[str, str, nn.Module]]:
        """A network grown by every scheme of width and of depth that fits it."""
        wide, deep = GROWN[grown]
        for width, depth in product(WIDTHS if wide else ("",), DEPTHS if deep else ("",)):
            fresh, generator = self.fresh(grown), torch.Generator().manual_seed(self.seed)
            try:
                state = grow(source, fresh, **_schemes(width, depth), generator=generator)
            except ValueError:  # a scheme that does not fit the family
                continue
            yield width, depth, _loaded(fresh, state)

    def starts(self, grown: str, sources: Mapping[str, nn.Module]) -> Iterator[Start]:
        """Every start of a larger network: as `grow` makes it, learned, and of two sources."""
        one, *others = sources
        plain: dict[tuple[str, str, str], nn.Module] = {}
        for width, depth, model in self.ways(sources[one], grown):
            plain[grown, width, depth] = model
            yield Start(_words(width, depth), model)
        for kind, width, depth in LEARNED:
            if (way := (kind, width, depth)) not in plain:
                continue
            alone = self._learned([sources[one]], *way)
            yield alone
            for name in others if way == PAIRED else ():
                second = grow(sources[name], self.fresh(grown), **_schemes(width, depth))
                yield Start(_words(width, depth, name), self._averaged(plain[way], second))
                other = self._learned([sources[name]], *way)
                model = self._averaged(alone.model, other.model.state_dict())
                flops = alone.flops + other.flops
                yield Start(_words(width, depth, name, "alone"), model, alone.rate, flops)
                joint = self._learned([sources[one], sources[name]], *way)
                yield joint._replace(words=_words(width, depth, name, "joint"))

    def trained(
        self, grown: str, starts: Sequence[Start]
    ) -> Iterator[tuple[Start, dict[str, float]]]:
        """What learned starts and the plain one come to, at equal FLOPs."""
        learned = [start for start in starts if start.flops]
        if not learned:
            return
        model, first = self.fresh(grown), self.ground.parts[2].first(self.ground.batch_size)
        step = count_flops(lambda: cross_entropy(model(first.inputs), first.labels).backward())
        extra = {id(start): round(start.flops / step) for start in learned}
        models = {tuple(start.words.values()): start.model for start in starts}
        ways = product(("mean", ""), ("identity", "stack", ""), ("one",), ("grown",))
        first_way = next(way for way in ways if way in models)  # keeps the function, else stacks
        plain = self._after(models[first_way], {FURTHER + more for more in extra.values()})
        for start in learned:
            more = extra[id(start)]
            after = self._after(start.model, {FURTHER})[FURTHER]
            row = {"flops": start.flops, "extra": more, "after": after}
            yield start, {**row, "plain": plain[FURTHER + more]}

    def _learned(self, sources: Sequence[nn.Module], grown: str, width: str, depth: str) -> Start:
        target = self.fresh(grown)
        data = self.ground.parts[2]
        options: dict[str, Any] = {**_schemes(width, depth), "batch_size": self.ground.batch_size}
        options["noise"] = NOISE if width in COPYING else 0.0

        def learn(steps: int, rate: float) -> State:
            pair, both = (data.inputs, data.labels), options | {"learning_rate": rate}
            return learn_growth(sources, target, pair, steps=steps, seed=self.seed, **both).state

        best = {rate: _loaded(target, learn(LEARNING, rate)) for rate in MAP_RATES}
        rate = min(best, key=lambda rate: self.loss(best[rate], self.ground.choose))
        flops = loop_flops(partial(learn, rate=rate), LEARNING)
        return Start(_words(width, depth, mode="alone"), best[rate], rate, flops)

    def _averaged(self, one: nn.Module, other: State) -> nn.Module:
        batches = self.ground.parts[2].inputs[:MEASURED].split(self.ground.batch_size)
        return _loaded(one, settled(one, lerp(one.state_dict(), other, 0.5), batches))

    def _after(self, model: nn.Module, budgets: Collection[int]) -> dict[int, float]:
        """Loss on D* by budget of steps, at the rate and the step that are best within it."""
        every = max(1, FURTHER // 4)
        stops = [*range(every, max(budgets) + 1, every), *budgets]
        runs = (self.states(model, self.ground.parts[2], stops, rate) for rate in RATES)
        reached = [
            (count, self.loss(model, self.ground.choose, state), self.loss(model, state=state))
            for states in ({0: model.state_dict()}, *runs)
            for count, state in states.items()
        ]
        return {
            budget: min((told, judged) for count, told, judged in reached if count <= budget)[1]
            for budget in budgets
        }

    def states(self, model: nn.Module, split: Split, steps: Sequence[int], rate: float) -> States:
        seed = stable_seed("order", self.seed)
        return by_adam(model, split, steps, rate, batch_size=self.ground.batch_size, seed=seed)


def _words(width: str, depth: str, sources: str = "one", mode: str = "grown") -> dict[str, str]:
    return {"width": width, "depth": depth, "sources": sources, "mode": mode}


def _schemes(width: str, depth: str) -> dict[str, Any]:
    """Arguments of `grow`; its own where nothing is wider, or deeper."""
    return {name: value for name, value in (("width", width), ("depth", depth)) if value}


def _loaded(model: nn.Module, state: Mapping[str, torch.Tensor]) -> nn.Module:
    network = copy.deepcopy(model)
    network.load_state_dict(state)
    return network
