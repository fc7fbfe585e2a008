"""Studies of CoGraM: on a zoo, and on two networks that differ in their data (`cogram.pairs`)."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from mergebook.cogram.pairs import Pair, draw_pairs, pair_of, shifted
from mergebook.lab import comparison
from mergebook.lab.grids import ADAPTED
from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.suites.models import started_anew
from mergebook.suites.types import Zoo
from mergelib.cogram import fine_tune, kickoff
from mergelib.hashing import stable_seed
from mergelib.procedures import Adapted
from mergelib.statedict import StateDict, flatten
from mergelib.tuning import Grid

# What `thresholds` searches on validation data; the steepness stays at the paper's 5.5.
STEEPNESSES = (0.5, 1.0, 2.0, 5.5, 10.0, 20.0, 50.0)
LAYER_ENDS = ((0.01, 0.5), (0.01, 2.0), (0.1, 1.0), (0.1, 5.0), (0.5, 2.0))
NEURON_ENDS = ((1e-3, 1e-2), (1e-3, 1e-1), (1e-2, 1e-1), (1e-2, 1.0))

# The best it found over seeds 100 to 109, for all three levels with arithmetic prototypes.
CHOSEN = {
    "synthetic": {"layer": (0.1, 5.0), "neuron": (0.01, 0.1)},
    "synthetic_positive": {"layer": (0.1, 5.0), "neuron": (0.001, 0.01)},
    "digits": {"layer": (0.5, 2.0), "neuron": (0.01, 1.0)},
}

# What is kept of a decision on a layer.
LOGGED = ["layer", "case", "spread", "loss a", "loss b", "alpha a", "before", "after", "accepted"]

# How fine CoGraM goes. With all neurons, or all weights, nothing is decided above them.
LEVELS: dict[str, tuple[str, ...]] = {
    "layer": ("layer",),
    "layer, neuron": ("layer", "neuron"),
    "layer, neuron, weight": ("layer", "neuron", "weight"),
    "all neurons": ("neuron",),
    "all weights": ("weight",),
}

# What CoGraM starts from, among data-free merges.
MERGED: dict[str, Grid] = {"average": {}, **ADAPTED}
BASES = (*MERGED, "frank_wolfe")


@study()
def granular(zoo: Zoo, *, examples: int = 10, bases: Sequence[str] = BASES) -> Tables:
    """CoGraM, layer by layer, after each ``base``, with and without rollback.

    ``test``: rows of ``base``, ``method`` (``none``, ``cogram``, ``cogram, rolled back``),
    ``task``, ``accuracy`` and ``loss``; ``chosen``: rows of ``method`` and ``settings``.
    """
    data = comparison.examples_of(zoo, examples)
    grids = {name: grid for name, grid in MERGED.items() if name in bases}
    chosen = {name: comparison.choose_wide(zoo, name, grid)[0] for name, grid in grids.items()}
    starts = {name: comparison.merge_zoo(name, zoo, **best) for name, best in chosen.items()}
    if "frank_wolfe" in bases:
        walk = {**comparison.KINDS["soft, by task"], "steps": 4, "tolerance": comparison.TOLERANCE}
        starts["frank_wolfe"] = comparison.adapted(zoo, "frank_wolfe", data, **walk).state
    rows = []
    for base, start in starts.items():
        runs: dict[str, Adapted] = {"none": Adapted(dict(start))}
        for method, rollback in (("cogram", ()), ("cogram, rolled back", ("layer",))):
            runs[method] = comparison.adapted(zoo, "cogram", data, start=start, rollback=rollback)
        for method, result in runs.items():
            rows += [{"base": base, **row} for row in comparison.judged(zoo, method, result)]
    return {"test": rows, "chosen": comparison.choices(chosen)}


@study(load=pair_of)
def fusion(
    seed: int,
    source: str = "synthetic",
    *,
    kinds: Sequence[str] = ("homogeneous", "heterogeneous", "unequal"),
) -> Tables:
    """What CoGraM makes of a Fisher merge: at each level, with each prototype, again and again.

    ``test``: rows of ``data`` (in ``unequal``, B has a fifth of the examples), ``start``
    (``common`` weights or ``own`` ones), ``method`` (``better`` of ``a`` and ``b`` by validation
    data; ``ensemble``: their mean probabilities), ``levels``, ``prototypes``, ``iterations``,
    ``accuracy`` (0..1), ``toward_a``, the projection on the line from B (0) to A (1), and ``loss``
    (nats). ``decisions`` of ``cogram`` on whole layers: ``layer``, ``case``, ``spread``, both
    networks' ``loss`` and ``alpha``, the loss ``before`` and ``after``, and ``accepted``.
    """
    rows, chosen, decisions = [], [], []
    for names, pair in draw_pairs(seed, source, kinds):
        chosen += comparison.choices({"better": {"network": pair.better}}, **names)
        states = pair.plain
        rows += [{**names, "method": name, **_judged(pair, own)} for name, own in states.items()]
        logs = [pair.outputs(state).log_softmax(1) for state in (pair.a, pair.b)]
        mean, labels = torch.logaddexp(*logs) - math.log(2), pair.data.test.labels  # finite
        ensemble = {"accuracy": (mean.argmax(1) == labels).float().mean().item()}
        ensemble["loss"] = F.nll_loss(mean, labels).item()
        rows.append({**names, "method": "ensemble", "toward_a": None, **ensemble})
        for settings, options in _settings(source):
            merged: StateDict = pair.fisher
            data = pair.prototypes(settings["prototypes"])
            for iteration in range(settings["iterations"]):
                result = pair.cogram(merged, data, **options)
                merged = result.state
                done = {"method": "cogram", **settings, "iterations": iteration + 1}
                rows.append({**names, **done, **_judged(pair, merged)})
                log = result.history.query("level == 'layer'")[LOGGED]
                decisions += comparison.records(log.assign(**names, **done))
    return {"test": rows, "chosen": chosen, "decisions": decisions}


def _settings(source: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What varies: each level with two prototypes, each prototype at one level, rules, order."""
    for kind in ("geometric", "arithmetic"):
        for name, levels in LEVELS.items():
            options = {"levels": levels, "thresholds": CHOSEN[source]}
            yield {"levels": name, "prototypes": kind, "iterations": 3}, options
    for kind in ("medoid", "kmeans", "batch"):
        yield {"levels": "layer", "prototypes": kind, "iterations": 1}, {}
    weights = {"levels": ("weight",), "order": "sequential"}
    others: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("layer, rolled back", "arithmetic", {"rollback": ("layer",)}),
        ("layer, shrunk", "arithmetic", {"shrinkage": 0.5}),
        ("all neurons, in turn", "arithmetic", weights | {"levels": ("neuron",)}),
        *(("all weights, in turn", kind, weights) for kind in ("arithmetic", "geometric")),
    )
    for name, kind, options in others:
        yield {"levels": name, "prototypes": kind, "iterations": 1}, options


def _judged(pair: Pair, state: StateDict) -> dict[str, Any]:
    a, b, merged = (flatten(weights).double() for weights in (pair.a, pair.b, state))
    share = float((merged - b) @ (a - b) / (a - b).square().sum())
    return {"accuracy": pair.accuracy(state), "toward_a": share, "loss": pair.loss(state)}


@study(load=pair_of)
def feature_scale(
    seed: int,
    source: str = "synthetic",
    *,
    offsets: Sequence[float] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0),
    scales: Sequence[float] = (0.3, 1.0, 3.0),
    steepnesses: Sequence[float] = (1.0, 5.5, 20.0, 100.0),
) -> Tables:
    """CoGraM over layers on features that are shifted and scaled before anything is trained.

    ``test``: ``accuracy`` (0..1) by ``data``, ``start``, ``offset``, ``scale``, ``method``,
    ``prototypes``, ``steepness`` and ``iterations``; ``chosen``: which network is better.
    """
    rows, chosen = [], []
    for offset, scale in product(offsets, scales):
        change = partial(shifted, offset=offset, scale=scale)
        for names, pair in draw_pairs(seed, source, change=change):
            names |= {"offset": offset, "scale": scale}
            chosen += comparison.choices({"better": {"network": pair.better}}, **names)
            for method, state in pair.plain.items():
                rows.append({**names, "method": method, "accuracy": pair.accuracy(state)})
            for kind, steepness in product(("geometric", "arithmetic"), steepnesses):
                merged, data = pair.fisher, pair.prototypes(kind)
                for iteration in range(1, 4 if steepness == 5.5 else 2):
                    merged = pair.cogram(merged, data, steepness=steepness).state
                    done = {"prototypes": kind, "steepness": steepness, "iterations": iteration}
                    accuracy = pair.accuracy(merged)
                    rows.append({**names, "method": "cogram", **done, "accuracy": accuracy})
    return {"test": rows, "chosen": chosen}


@study(load=pair_of)
def thresholds(seed: int, source: str = "synthetic") -> Tables:
    """``validation``: accuracies (0..1) by the settings that the paper leaves out."""
    rows = []
    for names, pair in draw_pairs(seed, source):
        for kind in ("geometric", "arithmetic"):
            data = pair.prototypes(kind)
            for settings, options in _grid():
                merged = pair.cogram(pair.fisher, data, **options).state
                accuracy = pair.accuracy(merged, pair.data.validation)
                rows.append({**names, "prototypes": kind, **settings, "accuracy": accuracy})
    return {"validation": rows}


def _grid() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What `thresholds` writes of each point, and what CoGraM takes."""
    points: list[tuple[float, dict[str, Any]]] = [(steepness, {}) for steepness in STEEPNESSES]
    for layer, neuron in product(LAYER_ENDS, (None, *NEURON_ENDS)):
        points.append((5.5, {"layer": layer, **({"neuron": neuron} if neuron else {})}))
    for steepness, ends in points:
        levels = ("layer", "neuron", "weight")[: 1 + len(ends)]
        named: dict[str, Any] = {"levels": ", ".join(levels), "steepness": steepness}
        for level in ("layer", "neuron"):
            named[f"{level}_low"], named[f"{level}_high"] = ends.get(level, (None, None))
        yield named, {"levels": levels, "steepness": steepness, "thresholds": ends}


@study(load=pair_of)
def tuning(seed: int, source: str = "synthetic", *, learning_rate: float = 1e-3) -> Tables:
    """Kickoff and fine-tuning on the training data of both networks, for 28 epochs in all.

    A kickoff is 8 of them at 2.5 times the rate. ``test``: rows of ``data``, ``start``, ``method``
    (``scratch`` starts from nothing), ``training`` (``none``, ``fine-tuning``, ``kickoff``),
    ``accuracy`` on all test data, and ``accuracy_a`` and ``accuracy_b`` on the halves.
    """
    rows = []
    for names, pair in draw_pairs(seed, source):
        merged = pair.cogram(pair.fisher, pair.prototypes("arithmetic")).state
        states = {"a": pair.a, "b": pair.b, "fisher": pair.fisher, "cogram": merged}
        states["scratch"] = started_anew(pair.model, stable_seed("scratch", seed)).state_dict()
        half = len(pair.data.test) // 2
        for method, state in states.items():
            for training in ("none", "fine-tuning", "kickoff"):
                trained = _trained(pair, state, training, learning_rate, seed)
                right = (pair.outputs(trained).argmax(1) == pair.data.test.labels).float()
                parts = {"": right, "_a": right[:half], "_b": right[half:]}
                means = {f"accuracy{key}": part.mean().item() for key, part in parts.items()}
                rows.append({**names, "method": method, "training": training, **means})
    return {"test": rows}


def _trained(pair: Pair, state: StateDict, training: str, rate: float, seed: int) -> StateDict:
    if training == "none":
        return state
    around: dict[str, Any] = {"model": pair.model, "heads": {"all": nn.Identity()}}
    around |= {"data": {"all": pair.together}, "learning_rate": rate, "seed": seed}
    if training == "fine-tuning":
        return fine_tune(state, epochs=28, **around).state
    return fine_tune(kickoff(state, **around).state, **around).state
