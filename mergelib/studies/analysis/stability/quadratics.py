"""What chapter 40 computes: quadratic tasks, and exact errors and bounds against the steps K."""

import math
from collections.abc import Sequence

import pandas as pd
import torch

from mergelib.theory.stability import bounds
from mergelib.theory.stability.quadratics import Quadratics, errors
from mergelib.theory.stability.steps import Training


def two_tasks() -> Quadratics:
    """½ θ² and ½ · 0.1 (θ − 4)² without noise, from 0: a sharp task, and a flat one far away."""
    return Quadratics(
        hessians=torch.tensor([1.0, 0.1], dtype=torch.float64)[:, None, None],
        centres=torch.tensor([[0.0], [4.0]], dtype=torch.float64),
        covariances=torch.zeros(2, 1, 1, dtype=torch.float64),
        start=torch.zeros(1, dtype=torch.float64),
    )


def pulled_tasks(
    tasks: int = 4, size: int = 6, *, own: float = 0.5, flattest: float = 0.05, seed: int = 0
) -> Quadratics:
    """Tasks with turned curvatures, whose gradients at θ_0 = 0 prefer no direction.

    Their minima c_t = H_t⁻¹ g_t then lie far away along directions that are flat for the task.

    Args:
        tasks: T.
        size: d.
        own: length of a task's own part of g_t; the part that all tasks share has length about 1.
        flattest: least eigenvalue of every H_t; the largest is 1.
        seed: of the directions and gradients. Examples have unit variance in every direction.
    """
    generator = torch.Generator().manual_seed(seed)
    turned = torch.randn(tasks, size, size, generator=generator, dtype=torch.float64)
    axes = torch.linalg.qr(turned)[0]
    values = torch.logspace(0, math.log10(flattest), size, dtype=torch.float64)
    hessians = axes * values @ axes.mT
    shared = torch.randn(size, generator=generator, dtype=torch.float64)
    single = torch.randn(tasks, size, generator=generator, dtype=torch.float64)
    pulls = (shared + own * single) / math.sqrt(size)
    return Quadratics(
        hessians=(hessians + hessians.mT) / 2,
        centres=torch.linalg.solve(hessians, pulls),
        covariances=torch.eye(size, dtype=torch.float64).expand(tasks, size, size),
        start=torch.zeros(size, dtype=torch.float64),
    )


def errors_over_steps(
    tasks: Quadratics, steps: Sequence[int], learning_rate: float, *, batch: int, examples: int
) -> pd.DataFrame:
    """Exact errors of the average of equally trained experts, one row per K, K in ``steps``."""
    rows = []
    for count in steps:
        plan = _alike(tasks, count, learning_rate, batch, examples)
        exact = errors(tasks, plan)
        rows.append((count, exact.generalisation, exact.optimisation, exact.excess))
    return pd.DataFrame(rows, columns=["steps", "generalisation", "optimisation", "excess"])


def untouched(tasks: Quadratics, *, examples: int) -> float:
    """Excess error of θ_0: it has seen no data, so that its generalisation error is zero."""
    plan = _alike(tasks, 1, 1.0, 1, examples)
    return tasks.opening(plan, plan.weights)[0] - tasks.floor(plan.examples)


def bounds_over_steps(
    tasks: Quadratics, steps: Sequence[int], learning_rate: float, *, batch: int, examples: int
) -> pd.DataFrame:
    """The excess error of the average and three bounds of it, one row per K, K in ``steps``.

    ``theorem_3`` and ``best_gamma`` are the paper's with the rate left free, with ζ at θ_0 and σ in
    the mean square, both of which favour them. ``repaired`` is `excess_bound`, for examples on
    spheres, where no two gradients differ by more than a known length.
    ``papers_domain`` and ``domain`` say where the two kinds are proved.
    """
    smooth, rows = tasks.smoothness, []
    known = bounds.Losses(smooth, tasks.noise, tasks.heterogeneity(tasks.start))
    spread = tasks.covariances.diagonal(dim1=1, dim2=2).sum(1).sqrt()
    largest = bounds.Losses(smooth, 2 * smooth * spread, known.heterogeneity)
    for count in steps:
        plan = _alike(tasks, count, learning_rate, batch, examples)
        opening, floor = tasks.opening(plan, plan.weights), tasks.floor(plan.examples)
        terms = bounds.printed_gradient_terms(known, plan, opening[0] - floor, own_rate=False)
        gradient = sum(bounds.printed_gradient_bound(terms, known, plan))
        moved = bounds.printed_stability(plan, bounds.printed_local_stability(known, plan))
        gammas = (1.0, bounds.best_gamma(gradient, moved))
        printed = [
            sum(bounds.printed_excess(gradient, moved, smooth, tasks.pl_constant, gamma).values())
            for gamma in gammas
        ]
        local = bounds.local_stability(largest, plan, convex=True)
        repaired = bounds.excess_bound(
            bounds.descent_bound(opening, known, plan),
            floor,
            bounds.merged_stability(plan, local),
            smooth,
        )
        places = (bounds.in_domain(known, plan, printed=True), bounds.in_domain(known, plan))
        truth = errors(tasks, plan).excess
        rows.append((count, truth, *printed, sum(repaired.values()), *places))
    names = ["steps", "truth", "theorem_3", "best_gamma", "repaired", "papers_domain", "domain"]
    return pd.DataFrame(rows, columns=names)


def _alike(tasks: Quadratics, steps: int, rate: float, batch: int, examples: int) -> Training:
    return Training.alike(len(tasks.hessians), steps, rate, batch=batch, examples=examples)
