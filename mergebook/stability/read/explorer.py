"""The numbers behind the explorer of chapter 43: tasks on common axes, and every term apart.

Where all curvatures share their axes, each error is a sum over scalars. The page computes the same
formulas in the reader's browser, from the numbers of `as_data`.
"""

from typing import Any

import torch

from mergebook.stability.read.quadratics import constants, printed_parts, repaired_parts
from mergebook.stability.theory import bounds
from mergebook.stability.theory.quadratics import Quadratics, errors
from mergebook.stability.theory.steps import Training


def aligned_tasks(
    tasks: int = 16, size: int = 6, *, own: float = 0.5, flattest: float = 0.05, seed: int = 0
) -> Quadratics:
    """Like `pulled_tasks`, but curvatures share their axes, dealt to them in other orders."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.linspace(0, 1, size, dtype=torch.float64)
    orders = torch.rand(tasks, size, generator=generator).argsort(1)
    curvatures = (flattest**values)[orders]
    shared = torch.randn(size, generator=generator, dtype=torch.float64)
    single = torch.randn(tasks, size, generator=generator, dtype=torch.float64)
    pulls = (shared + own * single) / size**0.5
    return Quadratics(
        hessians=torch.diag_embed(curvatures),
        centres=pulls / curvatures,
        covariances=torch.eye(size, dtype=torch.float64).expand(tasks, size, size),
        start=torch.zeros(size, dtype=torch.float64),
    )


def as_data(tasks: Quadratics) -> dict[str, Any]:
    """Curvatures and minima along the axes, ``(T, d)`` each, of `aligned_tasks`."""
    curvatures = tasks.hessians.diagonal(dim1=1, dim2=2)
    return {"curvatures": curvatures.tolist(), "centres": tasks.centres.tolist()}


def terms(tasks: Quadratics, plan: Training) -> dict[str, dict[str, float]]:
    """Every term of the exact excess error, of the repaired bound and of Theorem 3, by name."""
    exact, known = errors(tasks, plan), constants(tasks)
    parts = bounds.descent_bound(tasks.opening(plan, plan.weights), known, plan)
    parts["start"] -= tasks.floor(plan.examples)
    printed, best = printed_parts(tasks, plan)
    repaired = repaired_parts(tasks, plan)
    return {
        "exact": {"optimisation": exact.optimisation, "generalisation": exact.generalisation},
        "repaired": {**parts, "generalisation": repaired["generalisation"]},
        "printed": printed,
        "gamma": {"total": sum(best.values())},
    }
