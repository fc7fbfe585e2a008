"""Theorem 4 of SAIL (Anonymous, 2025), where the target's law is known: printed and repaired."""

import math
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from mergebook.lab.results import Rows, Tables
from mergebook.lab.runner import seed_alone, study
from mergebook.sail.distances import gaussian_variation
from mergebook.sail.theory import empirical_rademacher, risk_bound

RADIUS = 2.0  # B, the longest weights of the class
APART = 0.2  # how far the means of the laws are from each other
EXAMPLES, DRAWS = (100, 300, 1000, 3000), 200  # n of each; draws of each n


@study(load=seed_alone("gaussians", "risks"))
def risk(seed: int) -> Tables:
    """Theorem 4, printed and repaired, for linear classifiers ‖w‖ ≤ 2 of two Gaussians, per n.

    ``truth`` is the risk of the empirically best w; ``holds`` and ``tells`` are shares of draws, in
    which the bound holds for every w, and lies below C = 1.
    """
    generator = torch.Generator().manual_seed(seed)
    angles = torch.arange(64) / 64 * 2 * math.pi
    ways = RADIUS * torch.stack([angles.cos(), angles.sin()])
    target = clipped_risk((1 - APART) * ways[0], RADIUS)
    known = float(gaussian_variation(APART))
    rows: Rows = []
    for count in EXAMPLES:
        found: dict[str, Rows] = {"printed": [], "repaired": []}
        for draw in range(DRAWS):
            signed = torch.randn(count, 2, generator=generator) + torch.tensor([1.0, 0.0])
            empirical = (1 - signed @ ways).clamp(0, 1).mean(0)
            rich = empirical_rademacher(signed, RADIUS, draws=50, seed=draw)
            extra = {
                "printed": risk_bound(0.0, 1.0, rich, count, form="printed"),  # samples: TV = 1
                "repaired": risk_bound(0.0, known, rich, count),
            }
            best = int(empirical.argmin())
            for form, value in extra.items():
                bound = float(empirical[best]) + value
                holds = bool((target <= empirical + value).all())
                row = {"truth": float(target[best]), "bound": bound, "holds": float(holds)}
                found[form].append(row | {"tells": float(holds and bound < 1)})
        for form, each in found.items():
            means: dict[Any, Any] = pd.DataFrame(each).mean().to_dict()
            rows.append({"examples": count, **means, "form": form})
    return {"bounds": sorted(rows, key=lambda row: row["form"])}


def clipped_risk(margin: Tensor, deviation: float) -> Tensor:
    """E[min(1, max(0, 1 − m))] of margins m ~ N(a, s²): the risk of the clipped hinge loss."""
    law = torch.distributions.Normal(0.0, 1.0)
    low, high = -margin / deviation, (1 - margin) / deviation
    inside = (1 - margin) * (law.cdf(high) - law.cdf(low))
    bend = deviation * (law.log_prob(low).exp() - law.log_prob(high).exp())
    risk: Tensor = law.cdf(low) + inside - bend
    return risk
