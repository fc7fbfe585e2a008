"""Targets D* = ρ D_1 + (1 − ρ) D_2, for which Theorem 3 says γ_1 = ρ; losses are linear in ρ."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from mergelib.align import git_rebasin
from mergelib.problems.checks import check_choice
from mergelib.sail.proximal import oracle_gamma

GAMMAS = tuple(np.linspace(-0.5, 1.5, 41).round(2).tolist())
STARTS = ("shared", "own", "re-basin")  # of perceptrons
HIDDEN = 32
EXAMPLES = 150  # of each distribution
RATE = 0.02

SHAPES = {"0.weight": (HIDDEN, 2), "0.bias": (HIDDEN,), "2.weight": (1, HIDDEN), "2.bias": (1,)}
Nets = dict[str, Tensor]  # state dicts of perceptrons of these shapes; of many, stacked


def perceptron_shares(
    shares: Sequence[float], seed: int, *, start: str, steps: int = 300, retrained: int = 20
) -> pd.DataFrame:
    """The chain for small perceptrons trained on D_1, on D_2, and on every D* of ``shares``.

    Per ρ the best γ_1 in ``parameters`` (nearest to θ*), ``loss`` and ``trained`` (after
    retraining), and squared distances to θ*: ``nearest_source``, ``random``, ``normal``.
    """
    check_choice("start", start, STARTS)
    generator = torch.Generator().manual_seed(seed)
    data = _tasks(generator)
    wanted = torch.tensor([1.0, 0.0, *shares])
    first = _initial(len(wanted) + 1, generator)
    starts = {
        key: part[:1].expand_as(part[1:]) if start == "shared" else part[1:]
        for key, part in first.items()
    }
    nets = _train(starts, wanted, data, steps)
    one, two, *optima = (_pick(nets, i) for i in range(len(wanted)))
    fresh = _pick(_initial(1, generator), 0)
    if start == "re-basin":
        two, fresh, *optima = (_matched(one, net) for net in (two, fresh, *optima))
    gammas = torch.tensor(GAMMAS)
    line = {key: torch.stack([g * one[key] + (1 - g) * two[key] for g in gammas]) for key in one}
    many = {key: part.repeat(len(shares), *[1] * (part.dim() - 1)) for key, part in line.items()}
    mixes = torch.tensor(shares).repeat_interleave(len(gammas))
    losses = {
        name: _losses(state, mixes, data).reshape(len(shares), -1)
        for name, state in (("loss", many), ("trained", _train(many, mixes, data, retrained)))
    }
    rows = []
    for i, (share, optimum) in enumerate(zip(shares, optima, strict=True)):
        row: dict[str, float | str] = {"share": share, "seed": seed, "start": start}
        row["parameters"] = float(oracle_gamma([one, two], optimum, "affine").weights[0])
        row |= {name: float(gammas[table[i].argmin()]) for name, table in losses.items()}
        row["nearest_source"] = min(_squared(one, optimum), _squared(two, optimum))
        row["random"] = _squared(fresh, optimum)
        entries = sum(part.numel() for part in optimum.values())
        row["normal"] = entries + sum(float(part.square().sum()) for part in optimum.values())
        rows.append(row)
    return pd.DataFrame(rows)


def _tasks(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs ``(2, n, 2)`` and labels ±1 ``(2, n)``: at two places, opposite sides are right."""
    points = torch.randn(2, EXAMPLES, 2, generator=generator) * torch.tensor([0.7, 1.0])
    points[:, :, 0] += torch.tensor([-1.5, 1.5])[:, None]
    sides = torch.where(points[:, :, 1] > 0, 1.0, -1.0)
    return points, sides * torch.tensor([1.0, -1.0])[:, None]


def _initial(count: int, generator: torch.Generator) -> Nets:
    """PyTorch's usual initial weights: uniform in ±1/√inputs."""
    nets = {}
    for key, shape in SHAPES.items():
        numbers = 2 * torch.rand(count, *shape, generator=generator) - 1
        nets[key] = numbers / math.sqrt(HIDDEN if key[0] == "2" else 2)
    return nets


def _losses(nets: Nets, shares: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
    """J_ρ of every network, ``(M,)``: logistic loss, in nats."""
    points, labels = data
    flat = points.reshape(-1, 2)
    hidden = torch.einsum("nd,mhd->mnh", flat, nets["0.weight"]) + nets["0.bias"][:, None]
    outputs = torch.einsum("mnh,mh->mn", hidden.relu(), nets["2.weight"][:, 0]) + nets["2.bias"]
    each = softplus(-labels.reshape(-1) * outputs).reshape(len(outputs), 2, -1).mean(2)
    return shares * each[:, 0] + (1 - shares) * each[:, 1]


def _train(nets: Nets, shares: Tensor, data: tuple[Tensor, Tensor], steps: int) -> Nets:
    """Every network by Adam on its J_ρ; entries do not mix, so that all can be trained as one."""
    leaves = {key: part.clone().requires_grad_() for key, part in nets.items()}
    optimiser = torch.optim.Adam(leaves.values(), lr=RATE)
    for _ in range(steps):
        optimiser.zero_grad()
        _losses(leaves, shares, data).sum().backward()
        optimiser.step()
    return {key: leaf.detach() for key, leaf in leaves.items()}


def _matched(reference: Nets, net: Nets) -> Nets:
    chain = nn.Sequential(nn.Linear(2, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    return git_rebasin(reference, net, chain).state


def _pick(nets: Nets, index: int) -> Nets:
    return {key: part[index] for key, part in nets.items()}


def _squared(first: Nets, second: Nets) -> float:
    return sum(float((first[key] - part).square().sum()) for key, part in second.items())
