"""What SAIL's theory promises of a start near the optimum (Anonymous, 2025): bounds and LDA.

Theorem 1 compares X = ‖θ_i − θ*‖², of a source, with Y = ‖θ_rand − θ*‖² for θ_rand ~ N(0, I);
Theorem 2 follows gradient descent on a loss that is L-smooth and μ-strongly convex; Lemma 2 is
about linear discriminant analysis (LDA); Theorem 4 bounds the risk on the target. Where a theorem
had to be repaired, ``form`` chooses between what is printed and what is proved.
"""

import math
from typing import Literal

import torch
from torch import Tensor

Form = Literal["printed", "repaired"]


def proximity_bound(
    mean_squared: float,
    dimension: int,
    optimum_squared: float,
    *,
    alpha: float = 1.0,
    form: Form = "printed",
) -> float:
    """At least this is P(X ≤ αY), Theorem 1 of SAIL; negative where it says nothing.

    Printed is 1 − E[X]/(α E[Y]), with E[Y] = d + ‖θ*‖², true for X independent of Y and d ≥ 2.
    Repaired is 1 − E[X]/(α (d − 2)), by Markov's inequality for X/Y and E[1/Y] ≤ 1/(d − 2); it
    needs independence as well, and says less.

    Args:
        mean_squared: E[X].
        dimension: d; for the repaired form at least 3.
        optimum_squared: ‖θ*‖².
        alpha: α > 0.
        form: ``"printed"`` or ``"repaired"``.

    Raises:
        ValueError: the repaired form with d < 3, where E[1/Y] can be infinite.
    """
    if form == "repaired" and dimension < 3:
        raise ValueError(f"dimension is {dimension}, expected at least 3: E[1/Y] is infinite")
    scale = dimension + optimum_squared if form == "printed" else dimension - 2
    return 1 - mean_squared / (alpha * scale)


def convergence_bound(
    excess: float, learning_rate: float, strong_convexity: float, steps: int
) -> float:
    """(1 − ημ)^T times the excess loss of the start: Theorem 2, for η ≤ 1/L."""
    return (1 - learning_rate * strong_convexity) ** steps * excess


def start_bound(smoothness: float, squared_distance: float) -> float:
    """L/2 ‖θ − θ*‖²: the excess loss of a start at most (Eq. 7)."""
    return smoothness / 2 * squared_distance


def steps_saved(share: float, learning_rate: float, strong_convexity: float) -> float:
    """Steps in which Theorem 2's bound falls to ``share`` of itself, ln share / ln(1 − ημ).

    So many a start saves, whatever loss is aimed at, that has this share of another's excess.
    """
    return math.log(share) / math.log(1 - learning_rate * strong_convexity)


def lda_parameters(means: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """θ = Σ⁻¹(μ₊ − μ₋) and b = −½ (μ₊ + μ₋)ᵀ θ of LDA with equal classes.

    Args:
        means: μ₋ and μ₊, ``(…, 2, d)``.
        covariance: Σ of both classes, ``(d, d)``.

    Returns:
        θ, ``(…, d)``, and b, ``(…)``.
    """
    apart = means[..., 1, :] - means[..., 0, :]
    theta: Tensor = torch.linalg.solve(covariance, apart[..., None])[..., 0]
    return theta, -means.mean(-2).mul(theta).sum(-1)


def lemma_two_constant(difference: Tensor, covariance: Tensor) -> float:
    """C = 2 √(vᵀΣ⁻²v / vᵀΣ⁻¹v) of Lemma 2, for v = μ_i − μ*: ``(d,)``, any length, not zero."""
    solved = torch.linalg.solve(covariance, difference)
    return 2 * float((solved @ solved / (difference @ solved)).sqrt())


def empirical_rademacher(
    features: Tensor, radius: float, *, draws: int = 500, seed: int = 0
) -> float:
    """R̂ of x ↦ ⟨w, x⟩ with ‖w‖ ≤ B: the mean of B ‖Σ_j σ_j x_j‖ / n over random signs σ.

    Args:
        features: x, ``(n, d)``.
        radius: B.
        draws: of the signs.
        seed: of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (draws, len(features)), generator=generator) * 2 - 1
    sums = signs.to(features) @ features
    return radius * float(sums.norm(dim=1).mean()) / len(features)


def risk_bound(
    empirical_risk: float,
    variation: float,
    complexity: float,
    examples: int,
    *,
    largest: float = 1.0,
    level: float = 0.05,
    combined: float = 0.0,
    form: Form = "repaired",
) -> float:
    """What the target's risk is at most, for all hypotheses at once, with probability 1 − δ.

    Theorem 4 of SAIL prints Ĵ + 2C·TV + 2R̂ + 3C √(ln(4/δ)/2n) + λ with the total variation of two
    *samples*. Repaired: Ĵ + C·TV + 2R̂ + 3C √(ln(2/δ)/2n), with that of the distributions.

    Args:
        empirical_risk: Ĵ on the n source examples.
        variation: TV, of the samples (printed) or of the laws of (x, y) (repaired).
        complexity: R̂ of the losses on the source examples.
        examples: n.
        largest: C; losses lie in 0..C.
        level: δ.
        combined: λ, the least sum of both risks; printed only.
        form: ``"printed"`` or ``"repaired"``.
    """
    printed = form == "printed"
    spread = 3 * largest * math.sqrt(math.log((4 if printed else 2) / level) / (2 * examples))
    apart = (2 if printed else 1) * largest * variation
    return empirical_risk + apart + 2 * complexity + spread + (combined if printed else 0)
