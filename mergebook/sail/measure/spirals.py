"""SAIL on two spirals: Adam at 5e-3 on all points at once (Anonymous, 2025, app. K, Fig. 8, 9)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mergebook.lab.results import Tables
from mergebook.lab.runner import seed_alone, study
from mergebook.sail import two_spirals as world
from mergebook.sail.costs import check_tuning, steps_to
from mergebook.sail.two_spirals import Spirals, perceptron, scores, side_by_side, taken_apart
from mergebook.suites.models import started_anew
from mergelib.align import git_rebasin
from mergelib.evaluation.tasks import Split
from mergelib.hashing import stable_seed
from mergelib.sail.divergences import mmd_table
from mergelib.sail.proximal import proximal_weights
from mergelib.statedict import StateDict, flatten, lerp
from mergelib.training import train

GAMMAS = tuple(round(-1 + 0.1 * i, 1) for i in range(31))
READINGS = ("one class", "inner, outer", "random")
EPOCHS, EVERY, RATE = 300, 5, 5e-3  # of trainings; steps between evaluations; of Adam
MIDDLE = 0.5  # the only weight after re-basin: the ends are the sources'
GOALS = {"easy": 0.427, "hard": 0.237}  # nats, of `spirals-spirals_goals`
KEPT = (0, 50, 100, 200, 300)  # steps whose losses a result keeps
DIGITS = 4

Sources = dict[str, tuple[StateDict, StateDict]]


@study(load=seed_alone("spirals", "spirals"))
def spirals(
    seed: int,  # of points and initial weights
    *,
    gammas: Sequence[float] = GAMMAS,  # weights of the first source
    epochs: int = EPOCHS,  # of sources and of retraining, one step each
    goals: Mapping[str, float] = GOALS,  # names to losses on validation points
) -> Tables:
    """Two sources, their weighted averages γ θ_1 + (1 − γ) θ_2 retrained on D*, and scratch.

    Sources share their initial weights (``shared``), have their ``own``, or those are matched first
    (``re-basin``, at γ = ½). ``arms``: rows of ``reading``, ``start``, ``gamma``, ``arm``
    (``sweep``; ``proximal``: Theorem 3's γ by MMD of inputs; ``scratch``, from ``fresh`` weights or
    the sources' ``common`` ones), ``accuracy`` and ``loss`` (test), steps to each goal (`steps_to`;
    null: never), ``gradient`` (mean log norm over the first tenth of steps), ``gradient_easy`` (log
    norm at the first goal, or else the end) and ``loss_K``, validation loss after K steps.
    ``sources``: rows of ``reading``, ``start``, ``source``, ``mmd`` (MMD² to D*), and squared
    distances ``parameters`` and ``random``, of this source and of fresh weights, to an optimum that
    is trained from the common start, else from fresh weights. ``matched``: these distances after
    all are reordered to match the first source, as the order of hidden units is chance.
    """
    data = world.spirals(seed)
    parts = world.readings(data, seed)
    names = ("common", "second", "fresh", "further")
    starts = {name: initial(name, seed) for name in names}
    trained = sources_of(data, parts, starts, epochs)
    tables: Tables = {"arms": [], "sources": [], "matched": []}

    def measured(states: list[StateDict]) -> tuple[list[dict[str, Any]], list[dict[str, Tensor]]]:
        model = side_by_side(states)
        curve = trained_on(model, data.train, data.validation, epochs, EVERY)
        return list(summaries(model, curve, data.test, goals)), taken_apart(model)

    scratch, (optimum, fresh) = measured([starts["common"], starts["fresh"]])
    for start, row in zip(("common", "fresh"), scratch, strict=True):
        tables["arms"].append({"reading": "", "start": start, "arm": "scratch", **row})
    for reading, rows in parts.items():
        table = mmd_table([data.train.inputs, *(data.train.inputs[part] for part in rows)])
        weight = float(proximal_weights(table[0, 1:], table[1:, 1:]).weights[0])
        kinds: list[dict[str, Any]] = []
        states: list[StateDict] = []
        for start, pair in trained[reading].items():
            for gamma in gammas if start != "re-basin" else (MIDDLE,):
                kinds.append({"start": start, "gamma": gamma, "arm": "sweep"})
                states.append(lerp(pair[1], pair[0], gamma))
            if start == "re-basin":
                points = (_matched(pair[0], state) for state in (fresh, starts["further"]))
                tables["matched"] += [{"reading": reading, **row} for row in apart(pair, *points)]
                continue
            kinds.append({"start": start, "gamma": round(weight, DIGITS), "arm": "proximal"})
            states.append(lerp(pair[1], pair[0], weight))
            end = optimum if start == "shared" else fresh
            for row in apart(pair, end, starts["further"]):
                mmd = float(table[0, row["source"]])
                tables["sources"].append({"reading": reading, "start": start, "mmd": mmd, **row})
        for kind, row in zip(kinds, measured(states)[0], strict=True):
            tables["arms"].append({"reading": reading, **kind, **row})
    return tables


class Curve(NamedTuple):
    """A training of M networks side by side, evaluated at E points."""

    steps: tuple[int, ...]  # of each evaluation, the first at 0
    loss: Tensor  # `(E, M)`, in nats
    accuracy: Tensor
    gradient: Tensor  # its norm


def trained_on(
    model: nn.Module, points: Split, validation: Split, epochs: int, every: int
) -> Curve:
    """Train networks side by side in place, on all points at once, and evaluate them on the way."""
    rows: list[tuple[Tensor, ...]] = []

    def record(step: int, _: float = 0.0) -> None:
        if (step + 1) % every == 0:
            loss, accuracy = scores(model, validation)
            slopes = torch.autograd.grad(loss.sum(), list(model.parameters()))
            squares = [slope.square().flatten(1).sum(1) for slope in slopes]
            rows.append((loss.detach(), accuracy.detach(), torch.stack(squares).sum(0).sqrt()))

    record(-1)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    train(model, range(epochs), lambda _: scores(model, points)[0].sum(), optimiser, on_step=record)
    return Curve(tuple(range(0, epochs + 1, every)), *map(torch.stack, zip(*rows, strict=True)))


def summaries(
    model: nn.Module, curve: Curve, test: Split, goals: Mapping[str, float]
) -> Iterator[dict[str, Any]]:
    """What a result keeps of each network's training, see `spirals`."""
    with torch.no_grad():
        losses, accuracies = scores(model, test)
    reached = {name: steps_to(curve.steps, curve.loss, goal) for name, goal in goals.items()}
    steps = torch.tensor(curve.steps)
    early = curve.gradient[steps <= steps[-1] // 10].log().mean(0)
    first = reached[next(iter(goals))]
    at = (steps[:, None] < first).sum(0).where(~first.isnan(), len(steps) - 1)
    columns = {"accuracy": accuracies, "loss": losses, **reached, "gradient": early}
    columns["gradient_easy"] = curve.gradient.gather(0, at[None])[0].log()
    kept = {f"loss_{step}": curve.loss[steps == step] for step in KEPT if step in curve.steps}
    columns |= {name: readings[0] for name, readings in kept.items()}
    for values in zip(*(column.tolist() for column in columns.values()), strict=True):
        row = {name: round(value, DIGITS) for name, value in zip(columns, values, strict=True)}
        yield row | {name: None for name in goals if math.isnan(row[name])}


@study(load=seed_alone("spirals", "goals of spirals"))
def spirals_goals(seed: int) -> Tables:
    """``curves``: ``step`` and ``judge`` (nats) of scratch, which defines the goals."""
    check_tuning(seed)
    data, model = world.spirals(seed), side_by_side([initial("fresh", seed)])
    curve = trained_on(model, data.train, data.validation, EPOCHS, EVERY)
    rows = zip(curve.steps, curve.loss[:, 0].tolist(), strict=True)
    return {"curves": [{"step": step, "judge": loss} for step, loss in rows]}


def initial(name: str, seed: int) -> StateDict:
    """Weights as PyTorch draws them, by name and seed."""
    return started_anew(perceptron(), stable_seed("start", name, seed)).state_dict()


def sources_of(
    data: Spirals,  # points
    parts: Mapping[str, tuple[Tensor, Tensor]],  # rows of D_1 and D_2 by reading, as many in all
    starts: Mapping[str, StateDict],  # initial weights, `common` and `second`
    epochs: int,  # of training
) -> dict[str, Sources]:
    """Both sources of every reading by the kind of start, all trained as one model."""
    rows = [part for one, two in parts.values() for part in (one, two, two)]
    begun = [starts[name] for _ in parts for name in ("common", "common", "second")]
    model = side_by_side(begun)
    points = Split(data.train.inputs[torch.stack(rows)], data.train.labels[torch.stack(rows)])
    trained_on(model, points, data.validation, epochs, epochs)
    states = taken_apart(model)
    found: dict[str, Sources] = {}
    for place, reading in enumerate(parts):
        one, two, own = states[3 * place : 3 * place + 3]
        kinds = {"shared": two, "own": own, "re-basin": _matched(one, own)}
        found[reading] = {name: (one, second) for name, second in kinds.items()}
    return found


def _matched(reference: StateDict, state: StateDict) -> StateDict:
    return git_rebasin(reference, state, perceptron()).state


def apart(
    pair: tuple[StateDict, StateDict], optimum: StateDict, random: StateDict
) -> Iterator[dict[str, Any]]:
    """Squared distances to an optimum, of both sources and of random weights."""
    for source, state in enumerate(pair, 1):
        lengths = {"parameters": state, "random": random}
        yield {"source": source} | {
            name: float((flatten(point) - flatten(optimum)).square().sum())
            for name, point in lengths.items()
        }
