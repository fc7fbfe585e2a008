"""Merging weights where a bound from θ_0 (R6) is least, and weights tried on validation data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor
from torch.distributions import Dirichlet

from mergebook.lab.comparison import cut, merge_zoo, problem_of
from mergebook.lab.experts import judge_merges
from mergebook.lab.results import Tables
from mergebook.lab.runner import beginning_of, study
from mergebook.stability.measure.scaling import trained_checkpoints
from mergebook.stability.theory import estimators
from mergebook.stability.theory.bounds import REPAIRED_DOMAIN, Beginning, Losses
from mergebook.stability.theory.steps import Training
from mergebook.stability.theory.task_loss import task_losses
from mergebook.suites.types import Zoo
from mergelib.hashing import stable_seed
from mergelib.statedict import StateDict

SPREAD = 4.0  # of the Dirichlet distribution: of eight weights each varies by about a half
PRODUCTS = 10  # with the Hessian of every example whose curvature is taken


@study(load=beginning_of)
def weighing(
    zoo: Zoo,
    *,
    steps: Sequence[int] = (50, 400),  # of Adam at a constant rate, after each of which is merged
    learning_rate: float = 4e-4,
    batch_size: int = 32,
    examples: int = 128,  # training examples of each task whose gradients at θ_0 are taken
    parts: int = 8,  # into which these are cut for estimates without bias
    singles: int = 6,  # of these, of each task, whose curvature is taken; L is the largest
    tried: Sequence[int] = (1, 4, 16),  # weights drawn, ascending; the fewer are the first ones
    pictures: int = 400,  # test examples of each task, at most, and half as many for validation
) -> Tables:
    """Averages with weights where the bound is least, and with the best of some drawn ones.

    ``weights`` and ``test`` are by ``steps``, ``guide`` and ``task``. Guides: ``equal``; ``bound``,
    for the experts' rate and steps; ``bound inside``, for the largest rate where it holds; ``best
    of m`` drawn, by validation loss.
    """
    losses = [*task_losses(problem_of(zoo, examples), zoo.pretrained).values()]
    generator = Generator().manual_seed(stable_seed("weighing", zoo.suite.seed))
    options: dict[str, Any] = {"steps": PRODUCTS, "generator": generator}
    curvature = [estimators.example_smoothness(loss[:singles], **options) for loss in losses]
    noise = [estimators.gradient_noise(loss) for loss in losses]
    sigmas = [(each.square**0.5, each.largest) for each in noise]
    mean, largest = (
        Losses(float(torch.cat(curvature).max()), sigma, 0 * sigma)  # ζ is not needed
        for sigma in torch.tensor(sigmas, dtype=torch.float64).T
    )
    value = sum(float(loss.values().mean()) for loss in losses) / len(losses)
    products = estimators.inner_products(estimators.gradient_products(losses, parts))
    known = Beginning(value, products, mean, largest)
    sizes = torch.tensor([len(task.train) for task in zoo.suite.tasks.values()])
    training = {"optimiser": "adam", "learning_rate": learning_rate, "batch_size": batch_size}
    found = trained_checkpoints(zoo, steps, **training)
    zoo, tables = cut(zoo, pictures), Tables(weights=[], test=[])
    for count, experts in found.items():
        plan = Training.alike(len(sizes), count, learning_rate, batch_size, int(sizes.min()))
        plan = replace(plan, examples=sizes.double())
        inside = replace(plan, learning_rate=REPAIRED_DOMAIN / known.losses.smoothness / count)
        merged = replace(zoo, experts=dict(experts))
        weights = {"equal": plan.weights, "bound": known.best(plan)}
        weights |= {"bound inside": known.best(inside), **_searched(merged, tried)}
        for guide, row in weights.items():
            pairs = zip(zoo.suite.tasks, row.tolist(), strict=True)
            named = {"steps": count, "guide": guide}
            tables["weights"] += [{**named, "task": name, "weight": w} for name, w in pairs]
        judged = judge_merges(merged, _weighted(merged, weights))
        tables["test"] += [{"steps": count, "guide": guide, **row} for guide, row in judged]
    return tables


def _searched(zoo: Zoo, tried: Sequence[int]) -> dict[str, Tensor]:
    """The best weights of more and more that are drawn, after equal ones."""
    count = len(zoo.experts)
    even = torch.full((count,), 1 / count, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(stable_seed("weights", zoo.suite.seed))
        drawn = [even, *Dirichlet(SPREAD * count * even).sample((max(tried),))]
    losses = torch.zeros(len(drawn), dtype=torch.float64)
    for place, row in judge_merges(zoo, _weighted(zoo, dict(enumerate(drawn))), "validation"):
        losses[place] += row["loss"] / count
    return {f"best of {m}": drawn[int(losses[: m + 1].argmin())] for m in tried}


def _weighted(zoo: Zoo, weights: Mapping[Any, Tensor]) -> Iterator[tuple[Any, StateDict]]:
    return ((key, merge_zoo("average", zoo, weights=w.tolist())) for key, w in weights.items())
