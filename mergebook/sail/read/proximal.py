"""What chapter 51 computes beside mixtures: thirds of a text, worlds for Theorems 1, 2 and 4."""

from collections import Counter

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import softplus

from mergebook.sail.measure.text import first_weight
from mergebook.sail.read.text import help_text
from mergebook.sail.theory import convergence_bound, start_bound
from mergebook.sail.thirds import cut_blocks
from mergelib.sail.divergences import mmd_table
from mergelib.sail.proximal import oracle_gamma

BLOCK = 1024  # tokens
PENALTY = 0.005  # λ of the logistic regression, its μ


def thirds() -> pd.DataFrame:
    """γ_1 for a text cut as the paper cuts its own: D_1, D_2 and D* by rising mean token value.

    Returns:
        A row per kind of token and feature: ``equation_11`` and the ``printed`` formula of MMD.
    """
    text = help_text()
    words = text.split()
    ranks = {word: rank for rank, (word, _) in enumerate(Counter(words).most_common())}
    tokens = {
        "characters": torch.tensor([float(ord(sign)) for sign in text if ord(sign) < 128]),
        "words": torch.tensor([float(ranks[word]) for word in words]),
    }
    rows = []
    for kind, values in tokens.items():
        blocks = cut_blocks(values, BLOCK)
        blocks = blocks[blocks.mean(1).argsort()]
        edges = values.quantile(torch.linspace(0, 1, 51)[1:-1])
        histograms = torch.stack(
            [torch.bincount(torch.bucketize(row, edges), minlength=50) / BLOCK for row in blocks]
        )
        features = {"mean": blocks.mean(1, keepdim=True), "histogram": histograms, "values": blocks}
        for name, rows_of in features.items():
            cuts = len(rows_of) // 3
            first, second, target = (rows_of[i * cuts : (i + 1) * cuts] for i in range(3))
            weight = first_weight(mmd_table([target, first, second]).roll((-1, -1), (0, 1)))
            rows.append((kind, name, weight, 1 - weight))  # D_1 and D_2 exchanged
    return pd.DataFrame(rows, columns=["tokens", "features", "equation_11", "printed"])


def descents(steps: int, *, seed: int = 0) -> tuple[pd.DataFrame, dict[str, float]]:
    """Gradient descent at η = 1/L from three starts, for logistic regression with a penalty.

    Returns:
        A row per step and start (``proximal``, ``nearest source``, ``random``): the ``excess`` loss
        and Theorem 2's ``bound``. And η, μ, L, and per start the bound of Eq. 7.
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
