"""Theorem 4 of SAIL (Anonymous, 2025), where the target's law is known: printed and repaired."""

import math
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from mergebook.lab.comparison import records
from mergebook.lab.results import Tables
from mergebook.lab.runner import seed_alone, study
from mergebook.sail.distances import gaussian_variation
from mergebook.sail.theory import empirical_rademacher, risk_bound

RADIUS = 2.0  # B, the longest weights of the class


@study(load=seed_alone("gaussians", "risks"))
def risk(
    seed: int, *, examples: Sequence[int] = (100, 300, 1000, 3000), draws: int = 200
) -> Tables:
    """Theorem 4, printed and repaired, for linear classifiers of two Gaussians.

    Returns:
        ``bounds``: rows of ``examples``, ``form`` (``printed``, ``repaired``), ``bound`` and the
        risk itself, ``truth``, means over draws; and the shares of draws in which the bound
        ``holds``, and ``tells`` something, see `risks`.
    """
    table = risks(examples, draws=draws, seed=seed)
    rows = []
    for form in ("printed", "repaired"):
        names = {form: "bound", f"{form} holds": "holds", f"{form} tells": "tells"}
        own = table[["examples", "truth", *names]].rename(columns=names)
        rows += records(own.assign(form=form))
    return {"bounds": rows}


def clipped_risk(margin: Tensor, deviation: float) -> Tensor:
    """E[min(1, max(0, 1 − m))] of margins m ~ N(a, s²): the risk of the clipped hinge loss."""
    law = torch.distributions.Normal(0.0, 1.0)
    low, high = -margin / deviation, (1 - margin) / deviation
    inside = (1 - margin) * (law.cdf(high) - law.cdf(low))
    bend = deviation * (law.log_prob(low).exp() - law.log_prob(high).exp())
    risk: Tensor = law.cdf(low) + inside - bend
    return risk


def risks(
    examples: Sequence[int], *, draws: int = 200, apart: float = 0.2, seed: int = 0
) -> pd.DataFrame:
    """Theorem 4 for linear classifiers ‖w‖ ≤ 2 under the clipped hinge loss (C = 1), per n.

    Returns:
        Means over draws at the w of least empirical risk: ``truth`` (its risk on the target),
        ``printed`` (without λ, which would add to it) and ``repaired``; and the shares of draws in
        which each ``holds`` for every w, and ``tells`` something: holds and is below C at that w.
    """
    generator = torch.Generator().manual_seed(seed)
    angles = torch.arange(64) / 64 * 2 * math.pi
    ways = RADIUS * torch.stack([angles.cos(), angles.sin()])
    target = clipped_risk((1 - apart) * ways[0], RADIUS)
    known = float(gaussian_variation(apart))
    rows = []
    for count in examples:
        found = []
        for draw in range(draws):
            signed = torch.randn(count, 2, generator=generator) + torch.tensor([1.0, 0.0])
            empirical = (1 - signed @ ways).clamp(0, 1).mean(0)
            rich = empirical_rademacher(signed, RADIUS, draws=50, seed=draw)
            extra = {
                "printed": risk_bound(0.0, 1.0, rich, count, form="printed"),  # samples: TV = 1
                "repaired": risk_bound(0.0, known, rich, count),
            }
            best = int(empirical.argmin())
            row = {"truth": float(target[best])}
            for name, value in extra.items():
                row[name] = float(empirical[best]) + value
                holds = bool((target <= empirical + value).all())
                row[f"{name} holds"] = float(holds)
                row[f"{name} tells"] = float(holds and row[name] < 1)
            found.append(row)
        rows.append({"examples": count} | pd.DataFrame(found).mean().to_dict())
    return pd.DataFrame(rows)
