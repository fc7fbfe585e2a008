"""Studies of the methods that Remark 4 of Li et al. (2026) explains by terms of the bound.

Experts are trained for flat minima or linearised; Git Re-Basin is said to lower ζ_t, AdaMerging to
give tasks of large ζ_t less weight, Surgery to lower a merge's optimisation error alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Generator

from mergebook.lab import comparison
from mergebook.lab.experts import judge_merges, train_experts
from mergebook.lab.grids import FIRST_GRIDS
from mergebook.lab.results import Tables
from mergebook.lab.runner import beginning_of, study
from mergebook.stability.theory import estimators
from mergebook.stability.theory.task_loss import task_losses
from mergebook.suites.families import family_of
from mergebook.suites.models import Linearised, started_anew
from mergebook.suites.training import Recipe, fine_tune
from mergebook.suites.types import Zoo
from mergelib.align import git_rebasin
from mergelib.evaluation.loops import SplitName, evaluate
from mergelib.hashing import stable_seed
from mergelib.procedures.common import Adapted, unlabelled
from mergelib.statedict import StateDict, flatten, lerp

SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


@study(load=beginning_of)
def remedies(
    zoo: Zoo,
    *,
    epochs: int = 4,  # of the plain experts, even
    radii: Sequence[float] = (0.05, 0.2),  # ρ of sharpness-aware training
    methods: Sequence[str] = ("average", "task_arithmetic"),  # chosen for every kind of experts
    examples: int = 64,  # of each task, on which its loss's curvature is measured
) -> Tables:
    """Merges of experts that were trained plainly, sharpness-aware, or on the linearised network.

    Both remedies take two gradients a step, so they get half the epochs; plain experts of that
    length stand beside. ``sharpness`` is the largest |eigenvalue| of the Hessian of a task's
    training loss at its expert. ``test`` and ``chosen`` are by ``kind`` and ``method``.
    """
    if epochs < 2 or epochs % 2:
        raise ValueError(f"epochs is {epochs}, expected an even number above 0")
    usual = family_of(zoo.suite.name).recipe
    if usual is None:
        raise ValueError(f"experts of {zoo.suite.name} are public, and not trained here")
    expansion = Linearised(zoo.model)
    tangent = replace(zoo, model=expansion, pretrained=expansion.state_dict())
    kinds = {"plain": (zoo, epochs, 0.0), "plain, half as long": (zoo, epochs // 2, 0.0)}
    kinds |= {f"sharpness-aware, {radius:g}": (zoo, epochs // 2, radius) for radius in radii}
    kinds["linearised"] = (tangent, epochs // 2, 0.0)
    tables: Tables = {"test": [], "chosen": [], "sharpness": []}
    for kind, (start, length, radius) in kinds.items():
        recipe = replace(usual, epochs=length)
        experts = train_experts(start, fine_tune, recipe=recipe, radius=radius)
        made = replace(start, experts=experts)
        problem = comparison.problem_of(made, examples)
        for name, expert in experts.items():
            loss = task_losses(problem, expert)[name]
            generator = Generator().manual_seed(zoo.suite.seed)
            sharp = estimators.smoothness([loss], generator=generator)
            tables["sharpness"].append({"kind": kind, "task": name, "sharpness": sharp})
        tables["test"] += comparison.judged_alone(made, autocast=False, kind=kind)
        for method in methods:
            best = comparison.choose_wide(made, method, FIRST_GRIDS[method])[0]
            tables["chosen"] += comparison.choices({method: best}, kind=kind)
            merges = {method: comparison.merge_zoo(method, made, **best)}
            for name, row in judge_merges(made, merges, autocast=False):
                tables["test"].append({**row, "kind": kind, "method": name})
    return tables


@study(load=beginning_of)
def rebasin(
    zoo: Zoo,
    *,
    epochs: int = 10,
    examples: int = 200,  # training examples of each task whose gradients are taken
    parts: int = 8,  # into which these are cut for estimates without bias, at least 3
    pictures: int = 600,  # test examples of each task, at most
) -> Tables:
    """Merges of two networks that begin alike or apart, before and after one is reordered.

    Every task is trained twice, from two random starts. ``pairs``: rows of ``pair`` (``same task``,
    ``two tasks``, ``one start``), ``task`` (of the network that stays), ``matched``, ``moved``
    (share of hidden units whose place changed), ``distance`` ‖θ_1 − θ_2‖/‖θ_1‖, ``accuracy`` (0..1)
    and ``loss`` (nats) of the average, ``barrier``, that loss less both networks' mean, and for two
    tasks ``heterogeneity``, ζ² at the average, without bias.
    """
    zoo = comparison.cut(zoo, pictures)
    names, seed = [*zoo.suite.tasks], zoo.suite.seed

    def trained_from(start: int) -> dict[str, dict[str, torch.Tensor]]:
        """A network for every task, all from one random start, in orders of their own."""
        return train_experts(
            zoo,
            fine_tune,
            model=started_anew(zoo.model, stable_seed("start", start, seed)),
            recipe=Recipe(learning_rate=1e-3, epochs=epochs),
            seed=lambda name: stable_seed("order", start, name, seed),
        )

    trained = [trained_from(start) for start in range(2)]
    rows = []
    for place, name in enumerate(names):
        other = names[(place + 1) % len(names)]
        pairs = {
            "same task": ([name], trained[1][name]),
            "two tasks": ([name, other], trained[1][other]),
            "one start": ([name, other], trained[0][other]),
        }
        for pair, (tasks, second) in pairs.items():
            part = comparison.sub_zoo(replace(zoo, experts=trained[0]), tasks)
            found = _compared(part, trained[0][name], second, examples, parts)
            rows += [{"pair": pair, "task": name, **row} for row in found]
    return {"pairs": rows}


def _compared(
    zoo: Zoo, first: StateDict, second: StateDict, examples: int, parts: int
) -> Iterator[dict[str, Any]]:
    """The pair as trained, and with the second network reordered."""
    alignment = git_rebasin(first, second, zoo.model)
    orders = alignment.permutations.values()
    places = [(order != torch.arange(order.shape[-1])).flatten() for order in orders]
    moved = float(torch.cat(places).float().mean())

    def judged(state: StateDict) -> dict[str, float]:
        table = evaluate(zoo.model, state, zoo.heads, zoo.suite)
        return {column: float(table[column].mean()) for column in ("accuracy", "loss")}

    ends = [judged(state)["loss"] for state in (first, second)]
    for matched, state in ((False, second), (True, alignment.state)):
        merged = lerp(first, state, 0.5)
        scores = judged(merged)
        far = float((flatten(first) - flatten(state)).norm() / flatten(first).norm())
        row = {"matched": matched, "moved": moved if matched else 0.0, "distance": far}
        row |= {**scores, "barrier": scores["loss"] - sum(ends) / 2}
        if len(zoo.suite.tasks) > 1:
            losses = [*task_losses(comparison.problem_of(zoo, examples), merged).values()]
            products = estimators.gradient_products(losses, parts)
            row["heterogeneity"] = estimators.heterogeneity(products)[0].value  # both are the same
        yield row


@study()
def mechanisms(
    zoo: Zoo,
    *,
    examples: int = 400,  # training examples of each task whose gradients are taken
    parts: int = 8,  # into which these are cut for estimates without bias, at least 3
    steps: int = 100,  # of AdaMerging
    learning_rate: float = 0.01,  # of AdaMerging
    mending: int = 1000,  # steps of Surgery for each task
    pictures: int = 300,  # of a split, that Surgery sees and models are judged on
) -> Tables:
    """AdaMerging's coefficients beside ζ at θ_0, and a merge's errors before and after Surgery.

    AdaMerging takes all test inputs, Surgery those of one split. ``coefficients``: by
    ``granularity`` and ``task``, ``coefficient`` (λ_t, by layer the mean) and ``heterogeneity``
    ζ_t² at θ_0. ``test``: by ``method``, ``of`` (the granularity, or Surgery's split) and ``task``
    on test examples, and with the prefix ``train_`` on training ones.
    """
    short = replace(zoo, suite=comparison.first(zoo.suite, **dict.fromkeys(SPLITS, pictures)))
    inputs = unlabelled(comparison.examples_of(zoo, None, "test"))
    losses = task_losses(comparison.problem_of(zoo, examples), zoo.pretrained)
    apart = estimators.heterogeneity(estimators.gradient_products([*losses.values()], parts))
    tables = Tables(coefficients=[], test=[])
    for fine in ("task", "layer"):
        options = {"steps": steps, "learning_rate": learning_rate, "granularity": fine}
        result = comparison.adapted(zoo, "adamerging", inputs, **options)
        means = result.coefficients.mean(axis=1)
        tables["coefficients"] += [
            {"granularity": fine, "coefficient": float(means[name]), "task": name}
            | {"heterogeneity": zeta.value}
            for name, zeta in zip(losses, apart, strict=True)
        ]
        tables["test"] += _judged(short, result, method="adamerging", of=fine)
    average = comparison.merge_zoo("average", zoo)
    tables["test"] += _judged(short, Adapted(average), method="average", of="")
    for split in SPLITS:
        seen = unlabelled(comparison.examples_of(short, None, split))
        result = comparison.adapted(zoo, "surgery", seen, start=average, steps=mending)
        tables["test"] += _judged(short, result, method="surgery", of=split)
    for name, expert in zoo.experts.items():
        tables["test"] += _judged(short, Adapted(expert), [name], method="individual", of="")
    return tables


def _judged(
    zoo: Zoo, result: Adapted, tasks: Sequence[str] | None = None, **named: str
) -> Iterator[dict[str, Any]]:
    heads, names = {**zoo.heads, **result.heads}, [*(tasks or zoo.suite.tasks)]
    for row in comparison.scores(zoo, result.state, heads, names, {"": "test", "train_": "train"}):
        yield {**named, **row}
