"""Networks A and B for the same classes, from one start or two, that differ in their data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call

from mergebook.cogram.synthetic import SyntheticPair, synthetic_pair, together, train_pair
from mergebook.lab.runner import Loaded, Run, refuse_zoo_settings
from mergebook.suites.data.prepared import load_arrays
from mergebook.suites.data.sampling import stratified
from mergelib.cogram import prototypes
from mergelib.evaluation.tasks import Split
from mergelib.hashing import stable_seed
from mergelib.messages.brief import Brief
from mergelib.procedures import Adapted, adapt
from mergelib.statedict import StateDict, lerp

FEW = 200  # examples of network B where the two are unequal

# What losses are taken on: the kind of representative, and how many a class.
PER_CLASS = {"geometric": 1, "arithmetic": 1, "medoid": 1, "kmeans": 3, "batch": 10}


@dataclass(frozen=True, repr=False)
class Pair(Brief):
    """Data, networks A and B, and their Fisher merge."""

    data: SyntheticPair
    model: nn.Module
    a: StateDict
    b: StateDict
    fisher: StateDict

    @property
    def together(self) -> tuple[Tensor, Tensor]:
        both = together(self.data.a, self.data.b)
        return both.inputs, both.labels

    @property
    def plain(self) -> dict[str, StateDict]:
        """The networks that CoGraM does not touch; the better one is so on validation data."""
        states = {"a": self.a, "b": self.b, "average": lerp(self.a, self.b, 0.5)}
        return states | {"fisher": self.fisher, "better": states[self.better]}

    @property
    def better(self) -> str:
        """Which of A and B is more accurate on the validation data."""
        a, b = (self.accuracy(state, self.data.validation) for state in (self.a, self.b))
        return "a" if a >= b else "b"

    def accuracy(self, state: StateDict, split: Split | None = None) -> float:
        """In 0..1, on the test data or those given."""
        right = self.outputs(state, split).argmax(1) == (split or self.data.test).labels
        return right.float().mean().item()

    @torch.no_grad()
    def outputs(self, state: StateDict, split: Split | None = None) -> Tensor:
        """Logits on the test data or those given."""
        inputs = (split or self.data.test).inputs
        logits: Tensor = functional_call(self.model, dict(state), (inputs,))
        return logits

    def loss(self, state: StateDict, split: Split | None = None) -> float:
        """Mean cross-entropy in nats, on the test data or those given."""
        labels = (split or self.data.test).labels
        return F.cross_entropy(self.outputs(state, split), labels).item()

    def prototypes(self, kind: str) -> dict[str, tuple[Tensor, Tensor]]:
        x, y = self.together
        return {"all": prototypes(x, y, kind=kind, per_class=PER_CLASS[kind])}

    def cogram(self, start: StateDict, data: Mapping[str, Any], **options: Any) -> Adapted:
        """CoGraM on some data, in simultaneous order unless another is asked for."""
        options = {"order": "simultaneous", **options}
        experts, heads = {"a": self.a, "b": self.b}, {"all": nn.Identity()}
        return adapt(
            "cogram", experts, model=self.model, heads=heads, data=data, start=start, **options
        )


def make_pair(
    seed: int,
    source: str,
    kind: str,
    *,
    shared: bool,
    change: Callable[[SyntheticPair], SyntheticPair] | None = None,
) -> Pair:
    """Train two networks and merge them by Fisher merging, on 500 training inputs of each."""
    data = SOURCES[source](seed, kind == "heterogeneous")
    if kind == "unequal":
        data = replace(data, b=data.b.first(FEW))
    if change is not None:
        data = change(data)
    model, a, b = train_pair(data, seed=seed, shared_start=shared)
    experts = {"a": a, "b": b}
    inputs = {"a": data.a.inputs[:500], "b": data.b.inputs[:500]}
    heads = dict.fromkeys(experts, nn.Identity())
    # Of the pretrained model Fisher merging takes keys and dtypes alone.
    merged = adapt("fisher", experts, pretrained=model, heads=heads, data=inputs, seed=seed)
    return Pair(data, model, a, b, merged.state)


def draw_pairs(
    seed: int,
    source: str,
    kinds: Sequence[str] = ("homogeneous", "heterogeneous"),
    change: Callable[[SyntheticPair], SyntheticPair] | None = None,
) -> Iterator[tuple[dict[str, Any], Pair]]:
    """Pairs of each kind, from common and from own weights, with their names."""
    for kind in kinds:
        for start in ("common", "own"):
            pair = make_pair(seed, source, kind, shared=start == "common", change=change)
            yield {"data": kind, "start": start}, pair


def digit_pair(seed: int, heterogeneous: bool, *, size: int = 1000) -> SyntheticPair:
    """MNIST for A, and MNIST or USPS for B, as 16 x 16 grey levels in -1..1, 256 features."""
    train, validation, test = [], [], []
    for party, name in enumerate(("mnist", "usps" if heterogeneous else "mnist")):
        stored = load_arrays(name)
        generator = Generator().manual_seed(stable_seed("digits", name, seed))
        # one draw for two parties, so that they share no picture
        rows = stratified(stored.train.labels, 3 * size, generator).chunk(2)[party]
        inputs, labels = stored.train.inputs[rows], stored.train.labels[rows]
        train.append(Split(inputs[:size], labels[:size]))
        validation.append(Split(inputs[size:], labels[size:]))
        rows = stratified(stored.test.labels, 2 * size, generator).chunk(2)[party]
        test.append(Split(stored.test.inputs[rows], stored.test.labels[rows]))
    pair = SyntheticPair(*train, *(together(*parts) for parts in (validation, test)))
    return _mapped(
        pair, lambda x: F.avg_pool2d(x.float().mean(1, keepdim=True) / 127.5 - 1, 2).flatten(1)
    )


def shifted(data: SyntheticPair, offset: float, scale: float) -> SyntheticPair:
    """The same data with every feature x replaced by scale · (x + offset · s)."""
    deviation = together(data.a, data.b).inputs.std()
    return _mapped(data, lambda inputs: scale * (inputs + offset * deviation))


def _mapped(data: SyntheticPair, function: Callable[[Tensor], Tensor]) -> SyntheticPair:
    parts = (data.a, data.b, data.validation, data.test)
    return SyntheticPair(*(Split(function(part.inputs), part.labels) for part in parts))


SOURCES: dict[str, Callable[[int, bool], SyntheticPair]] = {
    "synthetic": lambda seed, heterogeneous: synthetic_pair(seed, heterogeneous=heterogeneous),
    # As exp(x / 2), whose geometric class means (Eq. 1) keep the means of x.
    "synthetic_positive": lambda seed, heterogeneous: _mapped(
        SOURCES["synthetic"](seed, heterogeneous), lambda inputs: (inputs / 2).exp()
    ),
    "digits": digit_pair,
}
FILES = {"digits": ("mnist", "usps")}  # the data sets behind a source


def pair_of(run: Run) -> Loaded:
    """Seed and source of a run's pairs, and the hash of each data file behind the source."""
    if run.suite not in SOURCES:
        raise ValueError(f"unknown source {run.suite!r}; known: {', '.join(SOURCES)}")
    refuse_zoo_settings(run, "pairs of networks")
    sources = {name: load_arrays(name).sha256 for name in FILES.get(run.suite, ())}
    return Loaded((run.seed, run.suite), {"sources": sources})
