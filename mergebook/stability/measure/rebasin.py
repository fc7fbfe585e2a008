"""What Git Re-Basin changes about two networks and their merge (Li et al., 2026, Remark 4).

There it is said to lower the heterogeneity ζ_t of tasks. ζ_t belongs to the losses, and bounds
their gradients at every θ; what can be measured is ‖∇f_t − ∇f‖ at one θ, so at a merge.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from mergebook.lab.comparison import cut, problem_of, sub_zoo
from mergebook.lab.experts import train_experts
from mergebook.lab.results import Tables
from mergebook.lab.runner import beginning_of, study
from mergebook.stability.theory.estimators import Estimate, gradient_products, heterogeneity
from mergebook.stability.theory.task_loss import task_losses
from mergebook.suites.models import started_anew
from mergebook.suites.training import Recipe, fine_tune
from mergebook.suites.types import Zoo
from mergelib.align import git_rebasin
from mergelib.evaluation.loops import evaluate
from mergelib.hashing import stable_seed
from mergelib.statedict import StateDict, flatten, lerp


@study(load=beginning_of)
def rebasin(
    zoo: Zoo,
    *,
    epochs: int = 10,
    learning_rate: float = 1e-3,
    examples: int = 200,  # training examples of each task whose gradients are taken
    parts: int = 8,  # into which these are cut for estimates without bias, at least 3
    pictures: int = 600,  # test examples of each task, at most
) -> Tables:
    """Merges of two networks that begin alike or apart, before and after one is reordered.

    Every task is trained twice, from two random starts under the same frozen head. Networks of the
    same task from both starts are merged, networks of neighbouring tasks from both starts, and
    networks of neighbouring tasks from one start.

    Returns:
        ``pairs``: rows of ``pair`` (``same task``, ``two tasks``, ``one start``), ``task`` (of the
        network that stays), ``matched`` (whether the other one was reordered), ``moved`` (share of
        hidden units whose place changed), ``distance`` ‖θ_1 − θ_2‖/‖θ_1‖, ``accuracy`` (0..1) and
        ``loss`` (nats) of the average, means over the pair's tasks, and ``barrier``, that loss less
        the mean loss of both networks on these tasks. For two tasks also ``heterogeneity``, ζ² at
        the average, without bias, and ``end``, ζ² at the second network, plugged in.
    """
    zoo = cut(zoo, pictures)
    names, seed = [*zoo.suite.tasks], zoo.suite.seed

    def trained_from(start: int) -> dict[str, dict[str, torch.Tensor]]:
        """A network for every task, all from one random start, in orders of their own."""
        return train_experts(
            zoo,
            fine_tune,
            model=started_anew(zoo.model, stable_seed("start", start, seed)),
            recipe=Recipe(learning_rate=learning_rate, epochs=epochs),
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
            part = sub_zoo(replace(zoo, experts=trained[0]), tasks)
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

    def apart(state: StateDict) -> Estimate:
        losses = [*task_losses(problem_of(zoo, examples), state).values()]
        return heterogeneity(gradient_products(losses, parts))[0]  # of two tasks it is the same

    ends = [judged(state)["loss"] for state in (first, second)]
    for matched, state in ((False, second), (True, alignment.state)):
        merged = lerp(first, state, 0.5)
        scores = judged(merged)
        far = float((flatten(first) - flatten(state)).norm() / flatten(first).norm())
        row = {"matched": matched, "moved": moved if matched else 0.0, "distance": far}
        row |= {**scores, "barrier": scores["loss"] - sum(ends) / 2}
        if len(zoo.suite.tasks) > 1:
            row |= {"heterogeneity": apart(merged).value, "end": apart(state).plug_in}
        yield row
