"""What chapter 44 computes of experts that were trained for different times."""

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

TIMES, RATE = 8, 0.01  # how much longer two of the four experts are trained; η


def uneven(lengths: Sequence[float], seeds: Sequence[int]) -> pd.DataFrame:
    """Four experts, two of which are trained `TIMES` longer, over all six choices of the two.

    One row per seed and length, means over the six: ``seed``, ``progress``; the exact excess error
    over that of θ_0 of the ``average``, of ``fednova``, and of the average of experts trained for
    ``equal`` lengths.
    """
    rows = []
    for seed, length in product(seeds, lengths):
        tasks = pulled_tasks(seed=seed)
        start = pretrained_error(tasks, examples=USUAL["examples"])
        count = round(length / RATE)
        alike = planned({"steps": count, "rate": RATE})
        values = []
        for pair in combinations(range(4), 2):
            paces = torch.ones(4, dtype=torch.float64)
            paces[list(pair)] = TIMES
            counts = (paces / paces.mean() * count).round().clamp(min=1)
            plan = replace(alike, vectors=[sgd(int(own)) for own in counts])
            values.append([errors(tasks, each).excess for each in (plan, normalised(plan))])
        average, fednova = (torch.tensor(values, dtype=torch.float64).mean(0) / start).tolist()
        row = {"seed": seed, "progress": length, "average": average, "fednova": fednova}
        rows.append(row | {"equal": errors(tasks, alike).excess / start})
    return pd.DataFrame(rows)


def normalised(plan: Training) -> Training:
    """FedNova: weights w_t τ_eff / ‖a_t‖₁ = w_t² / ω_t, of a sum above 1 for unequal experts."""
    return replace(plan, weights=plan.weights**2 / plan.surrogate[1])


def limits(rate: float, seeds: Sequence[int]) -> pd.DataFrame:
    """Optimisation error left after many rounds of 1, 1, 8 and 8 steps, over θ_0's, no noise."""
    rows = []
    for seed in seeds:
        tasks = pulled_tasks(seed=seed)
        alike = Training.alike(4, 1, rate, batch=1, examples=1)
        plan = replace(alike, vectors=[sgd(count) for count in (1, 1, TIMES, TIMES)])
        start = above(tasks, tasks.start)
        plans = {"average": plan, "fednova": normalised(plan)}
        rows.append({name: above(tasks, limit(tasks, own)) / start for name, own in plans.items()})
    return pd.DataFrame(rows)


def limit(tasks: Quadratics, plan: Training) -> Tensor:
    """Where merging arrives if experts are trained from the last merge again and again, ``(d,)``.

    Expected; a round moves θ by Σ w_t R_t (c_t − θ), which is zero at the point returned.
    """
    pulls = plan.weights[:, None, None] * covered(tasks, plan)[0]
    arrived: Tensor = torch.linalg.solve(pulls.sum(0), (pulls @ tasks.centres[..., None]).sum(0))
    return arrived[:, 0]


def above(tasks: Quadratics, point: Tensor) -> float:
    """Mean expected loss at a point, less the least there is."""
    away = point - tasks.minimum
    return float(0.5 * away @ tasks.hessians.mean(0) @ away)
