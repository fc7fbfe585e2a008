"""What chapters 40 and 43 compute: quadratic tasks, and exact errors and bounds of their merges."""

import math
from collections.abc import Sequence

import pandas as pd
import torch

from mergebook.stability.theory import bounds
from mergebook.stability.theory.quadratics import Quadratics, errors
from mergebook.stability.theory.steps import Training

TOTALS = ["truth", "theorem_3", "best_gamma", "repaired"]


def two_tasks() -> Quadratics:
    """½ θ² and ½ · 0.1 (θ − 4)² without noise, from 0: a sharp task, and a flat one far away."""
    return Quadratics(
        hessians=torch.tensor([1.0, 0.1], dtype=torch.float64)[:, None, None],
        centres=torch.tensor([[0.0], [4.0]], dtype=torch.float64),
        covariances=torch.zeros(2, 1, 1, dtype=torch.float64),
        start=torch.zeros(1, dtype=torch.float64),
    )


def pulled_tasks(
    tasks: int = 4,
    size: int = 6,  # dimensions
    *,
    own: float = 0.5,  # length of a task's own part of g_t; the shared part's is about 1
    turned: float = 1.0,  # 0 gives all tasks the same H_t, 1 axes without relation
    flattest: float = 0.05,  # least eigenvalue of every H_t; the largest is 1
    seed: int = 0,
) -> Quadratics:
    """Tasks with turned curvatures, whose gradients at θ_0 = 0 prefer no direction.

    Their minima c_t = H_t⁻¹ g_t then lie far away along directions that are flat for the task.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(tasks, size, size, generator=generator, dtype=torch.float64)
    axes = torch.linalg.qr(turned * drawn + (1 - turned) * drawn[:1])[0]
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


def pretrained_error(tasks: Quadratics, *, examples: int) -> float:
    """Excess error of θ_0: it has seen no data, so that its generalisation error is zero."""
    plan = Training.alike(len(tasks.hessians), 1, 1.0, batch=1, examples=examples)
    return tasks.opening(plan, plan.weights)[0] - tasks.floor(plan.examples)


def errors_over_steps(
    tasks: Quadratics, steps: Sequence[int], learning_rate: float, **sizes: int
) -> pd.DataFrame:
    """Exact errors of equal experts' average by ``steps``; sizes are ``batch`` and ``examples``."""
    rows, total = [], len(tasks.hessians)
    for count in steps:
        exact = errors(tasks, Training.alike(total, count, learning_rate, **sizes))
        rows.append((count, exact.generalisation, exact.optimisation, exact.excess))
    return pd.DataFrame(rows, columns=["steps", "generalisation", "optimisation", "excess"])


def bounds_over_steps(
    tasks: Quadratics, steps: Sequence[int], learning_rate: float, **sizes: int
) -> pd.DataFrame:
    """`TOTALS` by ``steps``, and whether the bounds are proved there, as in `errors_over_steps`."""
    rows, known = [], constants(tasks)
    for count in steps:
        plan = Training.alike(len(tasks.hessians), count, learning_rate, **sizes)
        places = (bounds.in_domain(known, plan, printed=True), bounds.in_domain(known, plan))
        rows.append((count, *totals(tasks, plan).values(), *places))
    return pd.DataFrame(rows, columns=["steps", *TOTALS, "papers_domain", "domain"])


def constants(tasks: Quadratics) -> bounds.Losses:
    """L, σ in the mean square, and ζ at θ_0 only, which favours bounds that need it anywhere."""
    return bounds.Losses(tasks.smoothness, tasks.noise, tasks.heterogeneity(tasks.start))


def totals(tasks: Quadratics, plan: Training) -> dict[str, float]:
    """`TOTALS`: the exact excess error of equal experts' average, and three bounds of it.

    ``theorem_3`` and ``best_gamma`` are the paper's with the rate left free, with ζ at θ_0 and σ in
    the mean square, both of which favour them. ``repaired`` is `repaired_parts`.
    """
    printed = [sum(parts.values()) for parts in printed_parts(tasks, plan)]
    values = [errors(tasks, plan).excess, *printed, sum(repaired_parts(tasks, plan).values())]
    return dict(zip(TOTALS, values, strict=True))


def printed_parts(tasks: Quadratics, plan: Training) -> list[dict[str, float]]:
    """The parts of Theorem 3 (Li et al., 2026), and of its form with γ*."""
    known = constants(tasks)
    gap = tasks.opening(plan, plan.weights)[0] - tasks.floor(plan.examples)
    given = known, plan, gap, tasks.pl_constant
    return [bounds.theorem_3(*given, gamma=gamma)[0] for gamma in (1.0, None)]


def repaired_parts(tasks: Quadratics, plan: Training) -> dict[str, float]:
    """E_O and E_G as `excess_bound` allows them, of examples on spheres."""
    known = constants(tasks)
    parts = bounds.descent_bound(tasks.opening(plan, plan.surrogate[1]), known, plan)
    spread = tasks.covariances.diagonal(dim1=1, dim2=2).sum(1).sqrt()
    largest = bounds.Losses(known.smoothness, 2 * known.smoothness * spread, known.heterogeneity)
    return bounds.convex_excess_bound(parts, tasks.floor(plan.examples), largest, plan)
