"""What chapter 43 computes of experts that were trained for different times."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

import pandas as pd
import torch
from torch import Tensor

from mergebook.stability.read.choosing import USUAL, planned
from mergebook.stability.read.quadratics import pretrained_error, pulled_tasks
from mergebook.stability.theory.quadratics import Quadratics, covered, errors
from mergebook.stability.theory.steps import Training, sgd

COMPARED = ("average", "fednova", "shared", "surrogate", "nearer")


def uneven(
    lengths: Sequence[float], seeds: Sequence[int], *, times: float = 8.0, rate: float = 0.01
) -> pd.DataFrame:
    """Four experts, two of which are trained ``times`` longer, over all six choices of the two.

    One row per seed and length, means over the six: ``seed``, ``progress``; the exact excess error
    over that of θ_0 of the average, of FedNova, and of the average of experts trained for ``equal``
    lengths; ``shared``, ``surrogate``: the cosine of the average's way with the downhill direction
    at θ_0 of f, and of the surrogate f̃; and ``nearer``: how often the average is nearer to the
    minimum of f̃ than to that of f.
    """
    rows = []
    for seed, length in product(seeds, lengths):
        tasks = pulled_tasks(seed=seed)
        start = pretrained_error(tasks, examples=USUAL["examples"])
        count = round(length / rate)
        alike = planned({"steps": count, "rate": rate})
        equal = errors(tasks, alike).excess / start
        values = []
        for pair in combinations(range(4), 2):
            paces = torch.ones(4, dtype=torch.float64)
            paces[list(pair)] = times
            counts = (paces / paces.mean() * count).round().clamp(min=1)
            plan = replace(alike, vectors=[sgd(int(own)) for own in counts])
            excess = [errors(tasks, merge).excess / start for merge in (plan, normalised(plan))]
            values.append([*excess, *compared(tasks, plan)])
        means = torch.tensor(values, dtype=torch.float64).mean(0).tolist()
        named = zip(COMPARED, means, strict=True)
        rows.append({"seed": seed, "progress": length, "equal": equal} | dict(named))
    return pd.DataFrame(rows)


def normalised(plan: Training) -> Training:
    """FedNova: weights w_t τ_eff / ‖a_t‖₁ = w_t² / ω_t, of a sum above 1 for unequal experts."""
    return replace(plan, weights=plan.weights**2 / plan.surrogate[1])


def compared(tasks: Quadratics, plan: Training) -> list[float]:
    """Of the expected merge: its way's cosine with −∇f and with −∇f̃ at θ_0, and ``nearer``."""
    gaps, surrogate = (tasks.centres - tasks.start)[..., None], plan.surrogate[1]
    way: Tensor = plan.weights @ (covered(tasks, plan)[0] @ gaps)[..., 0]
    slopes = -tasks.slopes(tasks.start)
    downhill = (slopes.mean(0), surrogate @ slopes)
    weighed = surrogate[:, None, None] * tasks.hessians
    other = torch.linalg.solve(weighed.sum(0), (weighed @ tasks.centres[..., None]).sum(0))[:, 0]
    merged = tasks.start + way
    nearer = (merged - other).norm() < (merged - tasks.minimum).norm()
    return [*(float(torch.cosine_similarity(way, each, dim=0)) for each in downhill), float(nearer)]


def limit(tasks: Quadratics, plan: Training) -> Tensor:
    """Where merging arrives if experts are trained from the last merge again and again, ``(d,)``.

    Expected; a round moves θ by Σ w_t R_t (c_t − θ), which is zero at the point returned.
    """
    pulls = plan.weights[:, None, None] * covered(tasks, plan)[0]
    arrived: Tensor = torch.linalg.solve(pulls.sum(0), (pulls @ tasks.centres[..., None]).sum(0))
    return arrived[:, 0]


def limits(rates: Sequence[float], seeds: Sequence[int]) -> pd.DataFrame:
    """Optimisation error left after many rounds of 1, 1, 8 and 8 steps, over θ_0's, no noise."""
    rows = []
    for seed, rate in product(seeds, rates):
        tasks = pulled_tasks(seed=seed)
        alike = Training.alike(4, 1, rate, batch=1, examples=1)
        plan = replace(alike, vectors=[sgd(count) for count in (1, 1, 8, 8)])
        points = {"average": limit(tasks, plan), "fednova": limit(tasks, normalised(plan))}
        start = above(tasks, tasks.start)
        rows.append(
            {"seed": seed, "rate": rate}
            | {name: above(tasks, point) / start for name, point in points.items()}
        )
    return pd.DataFrame(rows)


def above(tasks: Quadratics, point: Tensor) -> float:
    """Mean expected loss at a point, less the least there is."""
    away = point - tasks.minimum
    return float(0.5 * away @ tasks.hessians.mean(0) @ away)
