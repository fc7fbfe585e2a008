"""Stability measured: experts trained again with one example replaced (Li et al., 2026, Def. 2).

For one task s = (1/n) Σ_j E ‖A(D) − A(D^(j))‖², where A, plain SGD at a constant rate as in Lemma
3, keeps start, order and head. `merge_stability` checks chapter 40's E_G ≤ L/2 · S + √(S·V).
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Generator, Tensor, nn

from mergebook.lab.comparison import problem_of
from mergebook.lab.results import Rows, Tables
from mergebook.lab.runner import beginning_of, study
from mergebook.stability.theory import estimators
from mergebook.stability.theory.task_loss import task_losses
from mergebook.suites.training import loss_of_rows
from mergebook.suites.types import Zoo
from mergelib.evaluation.tasks import Split
from mergelib.hashing import stable_seed
from mergelib.problems.examples import Examples, join
from mergelib.statedict import StateDict, flatten, unflatten
from mergelib.training import make_optimiser, shuffled, train

RATES = (0.005, 0.02, 0.08)
STEPS = (4, 8, 16, 32, 64, 128)
NUDGE = 1e-7  # relative, of the start: what rounding alone may do

Train = Callable[[Examples], Tensor]


@study(load=beginning_of)
def retraining(
    zoo: Zoo,
    *,
    tasks: int = 2,  # the first ones
    pairs: int = 12,  # of trainings that differ in one example, for each task and setting
    steps: Sequence[int] = STEPS,
    rate: float = 0.02,  # by default; one setting at a time differs
    rates: Sequence[float] = RATES,
    batch: int = 8,  # by default, drawn again at each step
    batches: Sequence[int] = (2, 8, 32),
    examples: int = 128,  # by default: the first training rows; replacements come from the rest
    counts: Sequence[int] = (32, 128, 512),
) -> Tables:
    """How far an expert moves when one of its training examples is replaced, by plain SGD.

    One setting at a time differs from the default. ``moves``: rows of ``rate``, ``batch``,
    ``examples``, ``sampling`` (``drawn``, or ``epochs``), ``task``, ``steps``, ``stability`` s,
    ``chaos``, the squared distance after a start that differs by `NUDGE`, and ``progress`` ‖θ_t −
    θ_0‖. ``noise``: ``noise`` σ² and ``heterogeneity`` ζ² at θ_0 by ``task``.
    """
    usual: dict[str, Any] = {"rate": rate, "batch": batch, "examples": examples}
    usual["sampling"] = "drawn"
    others = {"sampling": ("epochs",), "rate": rates, "batch": batches, "examples": counts}
    settings = [usual] + [
        {**usual, name: other}
        for name, values in others.items()
        for other in values
        if other != usual[name]
    ]
    losses = task_losses(problem_of(zoo, examples), zoo.pretrained)
    apart = estimators.heterogeneity(estimators.gradient_products([*losses.values()]))
    noise = [
        {"task": name, "noise": estimators.gradient_noise(loss).square, "heterogeneity": zeta.value}
        for (name, loss), zeta in zip(losses.items(), apart, strict=True)
    ]
    tables: Tables = {"moves": [], "noise": noise}
    for name in [*zoo.suite.tasks][:tasks]:
        for setting in settings:
            rows = _moves(zoo, name, pairs, steps, setting)
            tables["moves"] += [{**setting, "task": name, **row} for row in rows]
    return tables


def _moves(
    zoo: Zoo, name: str, pairs: int, steps: Sequence[int], setting: Mapping[str, Any]
) -> Iterator[dict[str, float]]:
    rate, batch, examples, sampling = setting.values()
    generator = Generator().manual_seed(stable_seed("retraining", name, zoo.suite.seed))
    choose = shuffled if sampling == "epochs" else drawn
    batches = [*choose(examples, batch, generator, steps=max(steps))]
    everything = rows_of(zoo, name)
    own, rest = everything[:examples], everything[examples:]
    if len(rest) < pairs:
        rest = rows_of(zoo, name, "validation")
    train = partial(trained_weights, zoo, name, batches, steps, rate)
    base, moved = retrained(train, own, rest[:pairs], batches, steps, generator)
    chaos = squared_distance(train(own, start=1 + NUDGE), base)
    for i, (count, stability) in enumerate(zip(steps, moved, strict=True)):
        yield {
            "steps": count,
            "stability": stability,
            "chaos": float(chaos[i]),
            "progress": float((base[i] - _weights(zoo.model)).norm()),
        }


@study(load=beginning_of)
def merge_stability(
    zoo: Zoo,
    *,
    tasks: int = 4,  # the first ones of the suite
    pairs: int = 12,  # of trainings that differ in one example, for each task
    steps: Sequence[int] = (8, 32, 128, 512),  # ascending
    rate: float = 0.02,
    batch: int = 8,
    examples: int = 128,  # the first rows of each training split
    fresh: int = 1000,  # further rows that judge the model, at most; none is trained on
    singles: int = 8,  # training examples of each task whose curvature is taken at each model
    products: int = 10,  # with the Hessian of each of them
) -> Tables:
    """The average of experts, and all that the bound of its generalisation error is made of.

    ``merged``: rows of ``steps`` (0: the pretrained model), ``loss`` f on the training examples,
    ``fresh_loss`` F, ``second_moment`` V, ``squared`` ‖∇f‖², ``smoothness`` L, the largest of the
    single examples, and ``stability`` S = Σ s_t / T³. Losses are means over tasks, in nats.
    """
    weights, moved = [], []
    split = {name: rows_of(zoo, name) for name in [*zoo.suite.tasks][:tasks]}
    for name, everything in split.items():
        if len(everything) <= examples + pairs:
            raise ValueError(
                f"task {name!r} has {len(everything)} training examples; {examples} to train on, "
                f"{pairs} replacements and at least one fresh example need more"
            )
        generator = Generator().manual_seed(stable_seed("merge stability", name, zoo.suite.seed))
        batches = [*drawn(examples, batch, generator, steps=max(steps))]
        own, other = everything[:examples], everything[examples : examples + pairs]
        train = partial(trained_weights, zoo, name, batches, steps, rate)
        base, found = retrained(train, own, other, batches, steps, generator)
        weights.append(base)
        moved.append(found)
    first, last = examples + pairs, examples + pairs + fresh
    parts = {
        "loss": {name: own[:examples] for name, own in split.items()},
        "fresh_loss": {name: own[first:last] for name, own in split.items()},
    }
    problem = problem_of(zoo, examples)
    problems = {name: replace(problem, data=data) for name, data in parts.items()}
    generator = Generator().manual_seed(stable_seed("merge stability", zoo.suite.seed))
    options: dict[str, Any] = {"steps": products, "generator": generator}

    def judged(state: StateDict) -> dict[str, float]:
        losses = {name: [*task_losses(each, state).values()] for name, each in problems.items()}
        row = {
            name: sum(float(one.values().mean()) for one in own) / len(own)
            for name, own in losses.items()
        }
        train = losses["loss"]
        lengths = [torch.cat([g.square().sum(1) for g in one.example_gradients()]) for one in train]
        curvatures = [estimators.example_smoothness(one[:singles], **options) for one in train]
        return row | {
            "second_moment": float(torch.stack([part.mean() for part in lengths]).mean()),
            "squared": float(torch.stack([one.gradient() for one in train]).mean(0).square().sum()),
            "smoothness": float(torch.cat(curvatures).max()),
        }

    merged: Rows = [{"steps": 0, "stability": 0.0} | judged(zoo.pretrained)]
    for i, count in enumerate(steps):
        mean = torch.stack([base[i] for base in weights]).mean(0)
        state = {**zoo.pretrained, **unflatten(mean, dict(zoo.model.named_parameters()))}
        stability = sum(found[i] for found in moved) / len(split) ** 3
        merged.append({"steps": count, "stability": stability} | judged(state))
    return {"merged": merged}


def rows_of(zoo: Zoo, name: str, split: str = "train") -> Examples:
    """A split of a task."""
    part = getattr(zoo.suite.tasks[name], split)
    return Examples(part.inputs, part.labels)


def retrained(
    train: Train,
    own: Examples,
    fresh: Examples,
    batches: Sequence[Tensor],
    steps: Sequence[int],
    generator: Generator,
) -> tuple[Tensor, list[float]]:
    """An expert's weights after each number of steps, ``(C, d)``, and its stability there."""
    met = torch.zeros(len(steps), len(own), dtype=torch.bool)
    for i, count in enumerate(steps):
        met[i, torch.cat(list(batches[:count]))] = True
    rows, weights = draw_rows(met, len(fresh), generator)
    base, moves = squared_moves(train, own, fresh, rows.tolist())
    return base, (weights[:, None] * moves).mean(0).tolist()


def draw_rows(seen: Tensor, pairs: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Rows to replace, and what each counts in the mean over all rows; both ``(pairs,)``.

    A checkpoint is drawn, and then a row met by then, as others move nothing.
    """
    chances = (seen / seen.sum(1, keepdim=True)).mean(0)
    rows = torch.multinomial(chances, pairs, replacement=True, generator=generator)
    return rows, 1 / (len(chances) * chances[rows])


def squared_moves(
    train: Train, examples: Examples, fresh: Examples, rows: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """A(D), and ‖A(D^(j)) − A(D)‖² for some rows j, ``(pairs,)`` or ``(pairs, C)``."""
    base = train(examples)
    if not torch.equal(base, train(examples)):
        raise ValueError("training twice on the same examples gave different weights")
    again = (train(replaced(examples, row, fresh[i : i + 1])) for i, row in enumerate(rows))
    return base, torch.stack([squared_distance(weights, base) for weights in again])


def replaced(examples: Examples, row: int, fresh: Examples) -> Examples:
    """The examples with another one, ``fresh`` of length 1, in a row."""
    return join([examples[:row], fresh, examples[row + 1 :]])


def squared_distance(weights: Tensor, base: Tensor) -> Tensor:
    """‖θ − θ'‖² along the last dimension, float64."""
    return (weights.double() - base.double()).square().sum(-1)


def trained_weights(
    zoo: Zoo,
    name: str,
    batches: Sequence[Tensor],
    steps: Sequence[int],
    rate: float,
    examples: Examples,
    *,
    start: float = 1.0,
) -> Tensor:
    """Weights after each number of steps of plain SGD, ``(C, d)``, from ``start`` times θ_0."""
    kept = []

    def keep(network: nn.Module, step: int) -> None:
        if step + 1 in steps:
            kept.append(_weights(network))

    descend(zoo, name, examples, batches, "sgd", rate, keep, start=start)
    return torch.stack(kept)


def drawn(examples: int, batch_size: int, generator: Generator, *, steps: int) -> Iterator[Tensor]:
    """Batches of row numbers, each drawn independently without replacement; see `shuffled`."""
    for _ in range(steps):
        yield torch.randperm(examples, generator=generator)[:batch_size]


def descend(
    zoo: Zoo,
    name: str,
    examples: Examples,
    batches: Iterable[Tensor],
    optimiser: str,
    rate: float,
    on_step: Callable[[nn.Module, int], object],
    *,
    start: float = 1.0,
) -> None:
    """Train a network on a task from ``start`` times θ_0: constant rate, no momentum or decay."""
    inputs, labels = examples.pair
    network, task = copy.deepcopy(zoo.model), zoo.suite.tasks[name]
    network.load_state_dict(zoo.pretrained)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(start)
    split = Split(cast(Tensor, inputs), labels)  # a task's inputs are one tensor
    loss = loss_of_rows(network, zoo.heads[name], split, task.transform, task.loss)
    network.train()
    descent = make_optimiser(network, optimiser, rate, momentum=0.0)
    train(network, batches, loss, descent, on_step=lambda step, _: on_step(network, step))


def _weights(network: nn.Module) -> Tensor:
    return flatten({name: p.detach().clone() for name, p in network.named_parameters()})
