"""What the appendix of SAIL's proofs computes: a world for Theorem 2."""

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import softplus

from mergebook.sail.theory import convergence_bound, start_bound
from mergelib.sail.proximal import oracle_gamma

PENALTY = 0.005  # λ of the logistic regression, its μ


def descents(steps: int, *, seed: int = 0) -> tuple[pd.DataFrame, dict[str, float]]:
    """Gradient descent at η = 1/L from three starts, for logistic regression with a penalty.

    A row per step and start (``proximal``, ``nearest source``, ``random``): the ``excess`` loss and
    Theorem 2's ``bound``. And η, μ, L, and per start the bound of Eq. 7.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(400, 5, generator=generator, dtype=torch.float64)
    inputs *= torch.logspace(0, -1, 5, dtype=torch.float64)
    truth = 3 * torch.randn(2, 5, generator=generator, dtype=torch.float64)
    chances = torch.sigmoid(inputs @ truth.T)
    labels = 2.0 * (torch.rand(400, 2, generator=generator, dtype=torch.float64) < chances) - 1
    sources = [_minimiser(inputs, labels[:, i]) for i in range(2)]
    both, answers = inputs.repeat(2, 1), labels.T.reshape(-1)
    optimum = _minimiser(both, answers)
    smooth = PENALTY + float(torch.linalg.eigvalsh(both.T @ both / len(both))[-1]) / 4
    weights = oracle_gamma([{"w": source} for source in sources], {"w": optimum}).weights
    starts = {
        "proximal": weights @ torch.stack(sources),
        "nearest source": min(sources, key=lambda source: float((source - optimum).norm())),
        "random": torch.randn(5, generator=generator, dtype=torch.float64),
    }
    least = _logistic(both, answers, optimum)[0]
    known, rows = {"rate": 1 / smooth, "mu": PENALTY, "L": smooth}, []
    for name, point in starts.items():
        known[name] = start_bound(smooth, float((point - optimum).square().sum()))
        opening = _logistic(both, answers, point)[0] - least
        for step in range(steps + 1):
            value, slope = _logistic(both, answers, point)
            bound = convergence_bound(opening, 1 / smooth, PENALTY, step)
            rows.append((name, step, value - least, bound))
            point = point - slope / smooth
    return pd.DataFrame(rows, columns=["start", "step", "excess", "bound"]), known


def _logistic(inputs: Tensor, labels: Tensor, point: Tensor) -> tuple[float, Tensor]:
    """Mean logistic loss with the penalty, and its gradient."""
    margins = labels * (inputs @ point)
    value = softplus(-margins).mean() + PENALTY / 2 * point @ point
    slope = -(torch.sigmoid(-margins) * labels) @ inputs / len(inputs) + PENALTY * point
    return float(value), slope


def _minimiser(inputs: Tensor, labels: Tensor) -> Tensor:
    """By Newton's method."""
    point = inputs.new_zeros(inputs.shape[1])
    for _ in range(30):
        chance = torch.sigmoid(inputs @ point)
        hessian = (inputs.T * (chance * (1 - chance))) @ inputs / len(inputs)
        hessian += PENALTY * torch.eye(len(point), dtype=point.dtype)
        point -= torch.linalg.solve(hessian, _logistic(inputs, labels, point)[1])
    return point
