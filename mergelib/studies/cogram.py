"""Studies of CoGraM, on two networks for the same classes that differ in their data.

Each study is a function of a seed: it draws a pair of data sets, trains networks A and B, merges
them, and judges all on test data. Networks start from the same weights, as in federated learning,
or each from its own. See `mergelib.studies.runner`.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call

from mergelib.cogram import fine_tune, kickoff, prototypes
from mergelib.data.prepared import load_arrays
from mergelib.data.sampling import stratified
from mergelib.hashing import stable_seed
from mergelib.procedures import Adapted, adapt
from mergelib.statedict import StateDict, flatten, lerp
from mergelib.studies.frank_wolfe import Tables
from mergelib.testbed.families.synthetic import SyntheticPair, synthetic_pair, train_pair
from mergelib.testbed.tasks import Split

# What `thresholds` searches on validation data; the steepness stays at the paper's 5.5.
STEEPNESSES = (0.5, 1.0, 2.0, 5.5, 10.0, 20.0, 50.0)
LAYER_ENDS = ((0.01, 0.5), (0.01, 2.0), (0.1, 1.0), (0.1, 5.0), (0.5, 2.0))
NEURON_ENDS = ((1e-3, 1e-2), (1e-3, 1e-1), (1e-2, 1e-1), (1e-2, 1.0))

# The best it found over seeds 100 to 109, for all three levels with arithmetic prototypes.
CHOSEN = {
    "synthetic": {"layer": (0.1, 5.0), "neuron": (0.01, 0.1)},
    "digits": {"layer": (0.5, 2.0), "neuron": (0.01, 1.0)},
}

# How fine CoGraM goes. With all neurons, or all weights, nothing is decided above them.
LEVELS: dict[str, tuple[str, ...]] = {
    "layer": ("layer",),
    "layer, neuron": ("layer", "neuron"),
    "layer, neuron, weight": ("layer", "neuron", "weight"),
    "all neurons": ("neuron",),
    "all weights": ("weight",),
}

FEW = 200  # examples of network B where the two are unequal

# What losses are taken on: the kind of representative, and how many a class.
PER_CLASS = {"geometric": 1, "arithmetic": 1, "medoid": 1, "kmeans": 3, "batch": 10}


@dataclass(frozen=True)
class Pair:
    """Data, networks A and B, and their Fisher merge."""

    data: SyntheticPair
    model: nn.Module
    a: StateDict
    b: StateDict
    fisher: StateDict

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

    def prototypes(self, kind: str) -> dict[str, tuple[Tensor, Tensor]]:
        """Of the training data of both networks together."""
        x, y = self.together
        return {"all": prototypes(x, y, kind=kind, per_class=PER_CLASS[kind])}

    def cogram(self, start: StateDict, data: Mapping[str, Any], **options: Any) -> Adapted:
        """CoGraM on some data, in simultaneous order unless another is asked for."""
        options = {"order": "simultaneous", **options}
        experts, heads = {"a": self.a, "b": self.b}, {"all": nn.Identity()}
        return adapt(
            "cogram", experts, model=self.model, heads=heads, data=data, start=start, **options
        )

    @property
    def together(self) -> tuple[Tensor, Tensor]:
        """The training data of both."""
        a, b = self.data.a, self.data.b
        return torch.cat([a.inputs, b.inputs]), torch.cat([a.labels, b.labels])


def make_pair(seed: int, source: str, kind: str, *, shared: bool) -> Pair:
    """Train two networks and merge them by Fisher merging, on 500 training inputs of each.

    Args:
        seed: draws data and networks.
        source: one of `SOURCES`.
        kind: of data: ``"homogeneous"``, ``"heterogeneous"``, or ``"unequal"``, which is
            homogeneous with fewer examples for B.
        shared: whether both start from the same weights.
    """
    data = SOURCES[source](seed, kind == "heterogeneous")
    if kind == "unequal":
        data = replace(data, b=Split(data.b.inputs[:FEW], data.b.labels[:FEW]))
    model, a, b = train_pair(data, seed=seed, shared_start=shared)
    experts = {"a": a, "b": b}
    inputs = {"a": data.a.inputs[:500], "b": data.b.inputs[:500]}
    heads = dict.fromkeys(experts, nn.Identity())
    merged = adapt(
        "fisher", experts, pretrained=a, model=model, heads=heads, data=inputs, seed=seed
    )
    return Pair(data, model, a, b, merged.state)


def pairs(
    seed: int, source: str, kinds: Sequence[str] = ("homogeneous", "heterogeneous")
) -> Iterator[tuple[dict[str, Any], Pair]]:
    """Pairs of each kind, from common and from own weights, with their names."""
    for kind in kinds:
        for start in ("common", "own"):
            pair = make_pair(seed, source, kind, shared=start == "common")
            yield {"data": kind, "start": start}, pair


def fusion(seed: int, *, source: str = "synthetic") -> Tables:
    """What CoGraM makes of a Fisher merge: at each level, with each prototype, again and again.

    Args:
        seed: draws data and networks.
        source: ``"synthetic"``, or ``"digits"``: A learns from MNIST, B from MNIST or from USPS.

    Returns:
        ``test``: rows of ``data`` (``homogeneous``, ``heterogeneous``, or ``unequal``, where B has
        a fifth of the examples), ``start`` (``common`` weights or ``own`` ones), ``method``,
        ``levels``, ``prototypes``, ``iterations``, ``accuracy`` (0..1) and ``toward_a``, where the
        network lies along the line from B (0) to A (1), by projection. The methods beside
        ``cogram`` are ``a``, ``b``, ``average``, ``fisher``, ``better`` (of a and b, by validation
        data) and ``ensemble`` (their mean probabilities).
    """
    rows = []
    for names, pair in pairs(seed, source, ("homogeneous", "heterogeneous", "unequal")):
        states = {"a": pair.a, "b": pair.b, "average": lerp(pair.a, pair.b, 0.5)}
        validation = pair.data.validation
        ahead = max((pair.a, pair.b), key=lambda each: pair.accuracy(each, validation))
        states |= {"fisher": pair.fisher, "better": ahead}
        rows += [{**names, "method": name, **_judged(pair, each)} for name, each in states.items()]
        both = pair.outputs(pair.a).softmax(1) + pair.outputs(pair.b).softmax(1)
        right = (both.argmax(1) == pair.data.test.labels).float().mean().item()
        rows.append({**names, "method": "ensemble", "accuracy": right, "toward_a": None})
        for settings, options in _settings(source):
            merged: StateDict = pair.fisher
            data = pair.prototypes(settings["prototypes"])
            for iteration in range(settings["iterations"]):
                merged = pair.cogram(merged, data, **options).state
                done = {"method": "cogram", **settings, "iterations": iteration + 1}
                rows.append({**names, **done, **_judged(pair, merged)})
    return {"test": rows}


def _settings(source: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What varies: each level with two prototypes, each prototype at one level, rules, order."""
    for kind in ("geometric", "arithmetic"):
        for name, levels in LEVELS.items():
            options = {"levels": levels, "thresholds": CHOSEN[source]}
            yield {"levels": name, "prototypes": kind, "iterations": 3}, options
    for kind in ("medoid", "kmeans", "batch"):
        yield {"levels": "layer", "prototypes": kind, "iterations": 1}, {}
    others: dict[str, dict[str, Any]] = {
        "layer, rolled back": {"rollback": ("layer",)},
        "layer, shrunk": {"shrinkage": 0.5},
        "all neurons, in turn": {"levels": ("neuron",), "order": "sequential"},
        "all weights, in turn": {"levels": ("weight",), "order": "sequential"},
    }
    for name, options in others.items():
        yield {"levels": name, "prototypes": "arithmetic", "iterations": 1}, options


def _judged(pair: Pair, state: StateDict) -> dict[str, Any]:
    a, b, own = (flatten(each).double() for each in (pair.a, pair.b, state))
    share = float((own - b) @ (a - b) / (a - b).square().sum())
    return {"accuracy": pair.accuracy(state), "toward_a": share}


def thresholds(seed: int, *, source: str = "synthetic") -> Tables:
    """The settings that the paper leaves out, searched on validation data.

    Returns:
        ``validation``: rows of ``data``, ``start``, ``levels``, ``prototypes``, ``steepness``,
        ``layer_low``, ``layer_high``, ``neuron_low``, ``neuron_high`` (None where unused) and
        ``accuracy`` (0..1).
    """
    rows = []
    for names, pair in pairs(seed, source):
        for kind in ("geometric", "arithmetic"):
            data = pair.prototypes(kind)
            for settings, options in _grid():
                merged = pair.cogram(pair.fisher, data, **options).state
                accuracy = pair.accuracy(merged, pair.data.validation)
                rows.append({**names, "prototypes": kind, **settings, "accuracy": accuracy})
    return {"validation": rows}


def _grid() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for steepness in STEEPNESSES:
        named = {"levels": "layer", "steepness": steepness}
        yield _named(named, {}), {"levels": ("layer",), "steepness": steepness}
    for layer in LAYER_ENDS:
        for neuron in ((), *NEURON_ENDS):
            levels = ("layer", "neuron", "weight")[: 3 if neuron else 2]
            ends = {"layer": layer, **({"neuron": neuron} if neuron else {})}
            named = {"levels": ", ".join(levels), "steepness": 5.5}
            yield _named(named, ends), {"levels": levels, "thresholds": ends}


def _named(settings: dict[str, Any], ends: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    columns: dict[str, float | None] = {}
    for level in ("layer", "neuron"):
        low, high = ends.get(level, (None, None))
        columns |= {f"{level}_low": low, f"{level}_high": high}
    return {**settings, **columns}


def tuning(seed: int, *, source: str = "synthetic", learning_rate: float = 1e-3) -> Tables:
    """Kickoff and fine-tuning on the training data of both networks.

    Every network gets as many epochs: 28 at one rate, or a kickoff of 8 at 2.5 times the rate and
    then 20. Network A gets them too, and one that starts from nothing.

    Returns:
        ``test``: rows of ``data``, ``start``, ``method`` (``a``, ``b``, ``fisher``, ``cogram`` with
        one arithmetic prototype a class, ``scratch``), ``training`` (``none``, ``fine-tuning``,
        ``kickoff``), ``accuracy`` on all test data, and ``accuracy_a`` and ``accuracy_b`` on the
        halves; and ``history``: rows of ``data``, ``start``, ``method``, ``training`` and
        ``losses``, the mean training loss of each epoch in nats.
    """
    tables: Tables = {"test": [], "history": []}
    for names, pair in pairs(seed, source):
        merged = pair.cogram(pair.fisher, pair.prototypes("arithmetic")).state
        states = {"a": pair.a, "b": pair.b, "fisher": pair.fisher, "cogram": merged}
        fresh = copy.deepcopy(pair.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stable_seed("scratch", seed))
            for module in fresh.modules():
                if isinstance(module, nn.Linear):
                    module.reset_parameters()
        states["scratch"] = fresh.state_dict()
        half = len(pair.data.test) // 2
        for method, state in states.items():
            for training in ("none", "fine-tuning", "kickoff"):
                named = {**names, "method": method, "training": training}
                trained, losses = _trained(pair, state, training, learning_rate, seed)
                right = pair.outputs(trained).argmax(1) == pair.data.test.labels
                parts = {"": right, "_a": right[:half], "_b": right[half:]}
                found = {
                    f"accuracy{key}": each.float().mean().item() for key, each in parts.items()
                }
                tables["test"].append({**named, **found})
                if losses:
                    tables["history"].append({**named, "losses": losses})
    return tables


def _trained(
    pair: Pair, state: StateDict, training: str, learning_rate: float, seed: int
) -> tuple[StateDict, list[float]]:
    """The network after its epochs, and their losses."""
    if training == "none":
        return state, []
    fit = partial(
        fine_tune,
        model=pair.model,
        data={"all": pair.together},
        heads={"all": nn.Identity()},
        learning_rate=learning_rate,
        seed=seed,
    )
    if training == "fine-tuning":
        made = fit(state, epochs=28)
        return made.state, made.history["all"].tolist()
    first = kickoff(state, **fit.keywords)
    then = fit(first.state)
    return then.state, [*first.history["all"], *then.history["all"]]


def digit_pair(seed: int, heterogeneous: bool, *, size: int = 1000) -> SyntheticPair:
    """Real digits for two networks: A's are from MNIST, B's from MNIST, or else from USPS.

    Pictures are averaged to 16 x 16 grey levels in -1..1, 256 features. Sizes as in
    `synthetic_pair`: 1,000 examples each, 1,000 for validation and 2,000 for testing together.
    """
    train, validation, test = [], [], []
    for party, name in enumerate(("mnist", "usps" if heterogeneous else "mnist")):
        arrays = load_arrays(name)
        generator = Generator().manual_seed(stable_seed("digits", name, seed))
        # one draw for two parties, so that they share no picture
        rows = stratified(arrays.train_labels, 3 * size, generator).chunk(2)[party]
        inputs, labels = arrays.train_images[rows], arrays.train_labels[rows]
        train.append(_grey(inputs[:size], labels[:size]))
        validation.append(_grey(inputs[size:], labels[size:]))
        rows = stratified(arrays.test_labels, 2 * size, generator).chunk(2)[party]
        test.append(_grey(arrays.test_images[rows], arrays.test_labels[rows]))
    a, b = train
    return SyntheticPair(a, b, _both(validation), _both(test))


def _grey(images: Tensor, labels: Tensor) -> Split:
    grey = images.float().mean(1, keepdim=True) / 127.5 - 1
    return Split(F.avg_pool2d(grey, 2).flatten(1), labels)


def _both(parts: Sequence[Split]) -> Split:
    a, b = parts
    return Split(torch.cat([a.inputs, b.inputs]), torch.cat([a.labels, b.labels]))


def _synthetic(seed: int, heterogeneous: bool) -> SyntheticPair:
    return synthetic_pair(seed, heterogeneous=heterogeneous)


SOURCES = {"synthetic": _synthetic, "digits": digit_pair}


def pair_sources(source: str) -> dict[str, str]:
    """The hash of each data file behind a source; none are behind what the seeds alone decide."""
    if source != "digits":
        return {}
    return {name: load_arrays(name).sha256 for name in ("mnist", "usps")}
