"""What SAIL's theory promises of a start near the optimum (Anonymous, 2025): bounds.

X = ‖θ_i − θ*‖² of a source, Y = ‖θ_rand − θ*‖² for θ_rand ~ N(0, I); ``form``: printed or proved.
"""

import math
from typing import Literal

import torch
from torch import Tensor

Form = Literal["printed", "repaired"]
LEVEL = 0.05  # δ of Theorem 4


def proximity_bound(
    mean_squared: float,  # E[X]
    dimension: int,  # d; for the repaired form at least 3
    optimum_squared: float,  # ‖θ*‖²
    *,
    alpha: float = 1.0,  # α > 0
    form: Form = "printed",  # `"printed"` or `"repaired"`
) -> float:
    """At least this is P(X ≤ αY), Theorem 1 of SAIL; negative where it says nothing."""
    if form == "repaired" and dimension < 3:
        raise ValueError(f"dimension is {dimension}, expected at least 3: E[1/Y] is infinite")
    scale = dimension + optimum_squared if form == "printed" else dimension - 2
    return 1 - mean_squared / (alpha * scale)


def empirical_rademacher(
    features: Tensor, radius: float, *, draws: int = 500, seed: int = 0
) -> float:
    """R̂ of x ↦ ⟨w, x⟩ with ‖w‖ ≤ B: the mean of B ‖Σ_j σ_j x_j‖ / n over random signs σ."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (draws, len(features)), generator=generator) * 2 - 1
    sums = signs.to(features) @ features
    return radius * float(sums.norm(dim=1).mean()) / len(features)


def risk_bound(
    empirical_risk: float,  # Ĵ on the n source examples
    variation: float,  # TV, of the samples (printed) or of the laws of (x, y) (repaired)
    complexity: float,  # R̂ of the losses on the source examples
    examples: int,  # n
    *,
    form: Form = "repaired",  # `"printed"`, but without λ, or `"repaired"`
) -> float:
    """The target's risk is at most this, for all hypotheses at once, with probability 1 − δ."""
    factor = 2 if form == "printed" else 1
    spread = 3 * math.sqrt(math.log(2 * factor / LEVEL) / (2 * examples))
    return empirical_risk + factor * variation + 2 * complexity + spread
