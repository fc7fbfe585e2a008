"""Does Frank-Wolfe contribute? Coefficients learned on experts that its oracle picks, and others.

The authors' code picks an expert for each target by a cosine, and learns each tensor's coefficient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from mergebook.lab.comparison import examples_of, judged, only, problem_of
from mergebook.lab.heads import judged_under_heads, labelled
from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.suites.types import Zoo
from mergelib.hashing import stable_seed
from mergelib.numerics.linalg import simplex_projection
from mergelib.problems.examples import Examples
from mergelib.problems.problem import Problem
from mergelib.procedures.adamerging import Span
from mergelib.procedures.objectives import batches, loss_gradients
from mergelib.procedures.walk import oracle_scores
from mergelib.statedict import StateDict

# Which data train the coefficients, how many of them there are, and what constrains them.
KEYS = ("data", "granularity", "constraint")
CELLS = [("labels", g, c) for g in ("tensor", "model") for c in ("free", "simplex")]
CELLS += [("all labels", "tensor", "free"), ("entropy", "tensor", "free")]
PICKS = "oracle", "all", "own", "random"
KEY_CELLS = [*product(PICKS, CELLS[:1]), *product(PICKS[:1], CELLS[1:3])]


def learned(
    problem: Problem,  # experts, model and heads
    data: Mapping[str, Examples],  # of each target task; without labels the loss is the entropy
    theta: StateDict,  # the current point
    names: Sequence[str],  # of experts
    *,
    granularity: str = "tensor",  # one λ for each expert and tensor, or for each expert, "model"
    constraint: str = "free",  # or "simplex": λ ≥ 0 with a sum of at most one
    start: float = 0.3,  # the initial λ
    steps: int = 200,  # of Adam at a rate of 2.5e-3, with 16 examples of each task
) -> dict[str, Tensor]:
    """Return θ + Σ_j λ_j (s_j − θ) for the named experts s_j, with λ learned by Adam."""
    keys = [key for key, _ in problem.model.named_parameters()]
    vertices = [problem.experts[name] for name in names]
    apart = {key: torch.stack([each[key] - theta[key] for each in vertices]) for key in keys}
    basis = Span({key: theta[key] for key in keys}, apart)
    shape = len(names), len(keys) if granularity == "tensor" else 1
    weights = torch.full(shape, start, requires_grad=True)
    optimiser = torch.optim.Adam([weights], lr=2.5e-3)
    stream = batches(data, 16, 0, theta[keys[0]].device)
    for step in range(steps + 1):
        if constraint == "simplex":
            with torch.no_grad():
                whole = torch.cat([weights, 1 - weights.sum(0, keepdim=True)])
                weights.copy_(simplex_projection(whole.T).T[:-1])
        with torch.no_grad():
            merged = basis.at(weights.expand(-1, len(keys)))
        if step == steps:
            break
        _, gradients = loss_gradients(problem, merged, keys, next(stream))
        pulled = basis.pull([*gradients.values()])
        weights.grad = pulled if granularity == "tensor" else pulled.sum(1, keepdim=True)
        optimiser.step()
    return {**theta, **merged}


def picked(problem: Problem, theta: StateDict) -> list[str]:
    """Return one expert for each task of the data, all different, by the released code's cosine."""
    keys = [key for key, _ in problem.model.named_parameters()]
    names: list[str] = []
    for task, examples in problem.data.items():
        merged = {key: theta[key].clone() for key in keys}
        there = {task: examples.to(theta[keys[0]].device)}
        _, slope = loss_gradients(problem, merged, keys, there)
        _, cosines = oracle_scores(slope, problem.experts.values())
        order = sorted(zip(cosines, problem.experts, strict=True))
        names.append(next(name for _, name in order if name not in names))
    return names


@study()
def contribution(
    zoo: Zoo,
    *,
    targets: int = 4,
    examples: int = 100,
    steps: int = 200,
    rounds: int = 3,
    whole: bool = True,
) -> Tables:
    """What each part of the released Frank-Wolfe merging adds to learned coefficients.

    Experts are picked by the "oracle" or "random", or are "all" or the ``targets``' "own" (drawn by
    the seed, the only ones judged). "released" picks and learns ``rounds`` times, as the authors
    do. Without ``whole`` only ``KEY_CELLS`` are measured. ``test``: rows of ``picks``, ``data``,
    ``granularity``, ``constraint``, ``task``, ``accuracy``, ``loss``; ``picked``: rows of ``data``,
    ``round``, ``name`` and whether it is a ``target``; ``heads``: see `judged_under_heads`.
    """
    generator = torch.Generator().manual_seed(stable_seed("targets", zoo.suite.seed))
    names = [list(zoo.experts)[i] for i in torch.randperm(len(zoo.experts), generator=generator)]
    drawn = torch.randperm(len(names), generator=generator)[:targets]
    judge = replace(zoo, suite=only(zoo.suite, names[:targets]))
    problem = problem_of(judge, examples)
    tests = examples_of(judge, None, "test")
    sources = {
        "labels": problem.data,
        "all labels": {name: Examples(*pair) for name, pair in examples_of(judge, None).items()},
        "entropy": {name: Examples(inputs) for name, (inputs, _) in tests.items()},
    }
    picks = {
        "oracle": picked(problem, zoo.pretrained),
        "all": names,
        "own": names[:targets],
        "random": [names[i] for i in drawn],
    }
    tables: Tables = {"test": [], "picked": [], "heads": []}

    def judge_at(state: StateDict, pick: str, cell: Sequence[str]) -> None:
        where = {"picks": pick, **dict(zip(KEYS, cell, strict=True))}
        tables["test"] += [{**where, **row} for row in judged(judge, pick, state)]

    judge_at(zoo.pretrained, "none", ("", "", ""))
    for pick, (data, granularity, constraint) in product(PICKS, CELLS) if whole else KEY_CELLS:
        options: dict[str, Any] = {"granularity": granularity, "constraint": constraint}
        state = learned(problem, sources[data], zoo.pretrained, picks[pick], steps=steps, **options)
        judge_at(state, pick, (data, granularity, constraint))
    for data in ("all labels", "entropy") if whole else ():
        state = zoo.pretrained
        for number in range(rounds):
            chosen = picked(problem, state)
            begin = 0.01 if number else 0.3
            state = learned(problem, sources[data], state, chosen, start=begin, steps=steps)
            where = {"data": data, "round": number}
            tables["picked"] += [
                {**where, "name": name, "target": name in names[:targets]} for name in chosen
            ]
        judge_at(state, "released", (data, "tensor", "free"))
    tables["heads"] = list(judged_under_heads(labelled(judge, examples), zoo.pretrained))
    return tables
