"""Bounds of "A Unified Generalization Framework for Model Merging" (Li et al., 2026), and repairs.

Functions with ``printed`` in their name are the paper's formulas, several of which fail; chapter 40
proves the others. The mean training loss is f, its least value f(θ̂), the surrogate f̃ = Σ_t ω_t
f_t, and S the stability of Definition 2.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mergebook.stability.theory.steps import Training, chi_square_printed
from mergelib.messages.brief import Brief

PAPERS_DOMAIN = 1 / 8  # Lemma 3: η L K at most
REPAIRED_DOMAIN = 1 / (2 * math.sqrt(3))  # of the descent bound


@dataclass(frozen=True, repr=False)
class Losses(Brief):
    """What the bounds know of T losses."""

    smoothness: float  # L, of every example's loss
    # σ_t, ``(T,)``, root of the squared distance of an example's gradient from the task's; its mean
    # for what speaks of descent, its largest for stability
    noise: Tensor
    heterogeneity: Tensor  # ζ_t, ``(T,)``, distance of ∇f_t from ∇f at any point (Assumption 3)


def in_domain(losses: Losses, training: Training, *, printed: bool = False) -> bool:
    """Whether η L ‖a_t‖₁ is at most `REPAIRED_DOMAIN`, or, if ``printed``, as in Lemma 3."""
    longest = max(float(vector.sum()) for vector in training.vectors)
    reach = training.learning_rate * losses.smoothness * longest
    if not printed:
        return reach <= REPAIRED_DOMAIN
    return reach <= PAPERS_DOMAIN and bool((training.batch <= training.examples / 2).all())


# The paper's formulas


def printed_rate(training: Training) -> float:
    """η = √(T/K̄) with K̄ the mean of K_t, which Theorems 2 and 4 and Corollary 2 put in."""
    return math.sqrt(len(training.vectors) / float(training.steps.mean()))


def printed_gradient_terms(
    losses: Losses,  # the largest σ and ζ count
    training: Training,  # the smallest batch counts
    gap: float,  # f̃(θ_0) less the least value of f̃
    *,
    own_rate: bool = True,  # the paper's η = √(T/K̄) in place of the training's
) -> dict[str, float]:
    """The four terms of ε, which bounds ‖∇f̃‖² (Theorem 4; Theorem 2 has 5 in place of its 12)."""
    rate = printed_rate(training) if own_rate else training.learning_rate
    total, surrogate = training.surrogate
    smooth, batch = losses.smoothness, float(training.batch.min())
    noise, apart = float(losses.noise.max()) ** 2, float(losses.heterogeneity.max()) ** 2
    share, second, third = accumulation(training)
    return {
        "start": 4 * gap / (rate * total),
        "noise": 4 * rate * total * smooth * noise / batch * float(surrogate**2 @ share),
        "noise on the way": 6 * rate**2 * smooth**2 * noise / batch * float(surrogate @ second),
        "tasks pull apart": 12 * rate**2 * smooth**2 * apart * float(third.max()),
    }


def accumulation(training: Training) -> tuple[Tensor, Tensor, Tensor]:
    """‖a‖₂²/‖a‖₁², ‖a‖₂² − a_last², ‖a‖₁ (‖a‖₁ − a_last) of Theorem 4's A₁ to A₃, each ``(T,)``."""
    rows = []
    for vector in training.vectors:
        length, squares, last = float(vector.sum()), float(vector @ vector), float(vector[-1])
        rows.append([squares / length**2, squares - last**2, length * (length - last)])
    one, two, three = torch.tensor(rows, dtype=torch.float64).T
    return one, two, three


def printed_gradient_bound(
    terms: Mapping[str, float],
    losses: Losses,
    training: Training,
    divergence: Callable[[Tensor], float] = chi_square_printed,  # with `chi_square` the source's
) -> tuple[float, float]:
    """Of ‖∇f‖² at the merge, Eq. 7, 20 and 22: 2 (χ² + 1) ε, and 2 χ² Σ ω ζ²."""
    _, surrogate = training.surrogate
    apart = divergence(surrogate)
    tasks = float(surrogate @ losses.heterogeneity**2)
    return 2 * (apart + 1) * sum(terms.values()), 2 * apart * tasks


def printed_generalisation(
    gradient: float, stability: float, smoothness: float, gamma: float
) -> float:
    """‖∇f‖²/(2γ) + (L + γ)/2 · S, Lemma 1: **false**, as for the exact minimiser of f."""
    return gradient / (2 * gamma) + (smoothness + gamma) / 2 * stability


def printed_local_stability(losses: Losses, training: Training) -> Tensor:
    """16 K η² (σ²/n + 3bζ²/n) of every expert, ``(T,)``, Lemma 3: **false** if K > 9n or so."""
    per_example = losses.noise**2 + 3 * training.batch * losses.heterogeneity**2
    return 16 * training.steps * training.learning_rate**2 * per_example / training.examples


def printed_stability(training: Training, local: Tensor) -> float:
    """Σ w_t s_t, Theorem 1: what Jensen's inequality leaves where one expert moves, not all."""
    return float(training.weights @ local)


def printed_excess(
    gradient: float,  # a bound of ‖∇f‖² at the merge
    stability: float,  # S or a bound, such as `printed_stability`
    smoothness: float,
    pl_constant: float,  # C of Assumption 5, f − f(θ̂) ≤ C ‖∇f‖² at the merge; at least 1/(2L)
    gamma: float = 1.0,  # weight of Young's inequality; `best_gamma` gives the best
) -> dict[str, float]:
    """(L + γ)/2 · S + (1/(2γ) + C) ‖∇f‖², Eq. 5 and 23, in parts; Theorem 3 is γ = 1."""
    return {
        "stability": smoothness / 2 * stability,
        "optimisation": pl_constant * gradient,
        "Young": gamma / 2 * stability + gradient / (2 * gamma),
    }


def best_gamma(gradient: float, stability: float) -> float:
    """γ* = √(‖∇f‖² / S), which the paper derives before Eq. 24, and does not put in."""
    return math.sqrt(gradient / stability)


def theorem_3(
    losses: Losses,
    training: Training,
    gap: float,
    pl_constant: float,
    *,
    gamma: float | None = 1.0,  # None for the best
    own_rate: bool = False,
    divergence: Callable[[Tensor], float] = chi_square_printed,
) -> tuple[dict[str, float], float, float]:
    """The parts of `printed_excess`, and the bounds of ‖∇f‖² and S that the paper puts in."""
    terms = printed_gradient_terms(losses, training, gap, own_rate=own_rate)
    gradient = sum(printed_gradient_bound(terms, losses, training, divergence))
    moved = printed_stability(training, printed_local_stability(losses, training))
    weight = best_gamma(gradient, moved) if gamma is None else gamma
    parts = printed_excess(gradient, moved, losses.smoothness, pl_constant, weight)
    return parts, gradient, moved


# What holds


def generalisation_bound(stability: float, second_moment: float, smoothness: float) -> float:
    """L/2 · S + √(S V) ≥ E_G, where V is the mean squared gradient of an example's loss."""
    return smoothness / 2 * stability + math.sqrt(stability * second_moment)


def local_stability(
    losses: Losses, training: Training, *, epochs: bool = False, convex: bool = False
) -> Tensor:
    """s_t of SGD for Lemma 3, ``(T,)``: growth · 4σ² (n/(n−1))² η² [K (1−b/n)/(bn) + K²/n²]."""
    counts, steps = training.examples, training.steps
    rate = training.learning_rate * torch.stack([vector.max() for vector in training.vectors])
    drawn = steps**2 / counts**2
    if not epochs:
        drawn = drawn + steps * (1 - training.batch / counts) / (training.batch * counts)
    growth = 1 if convex else (1 + rate * losses.smoothness) ** (2 * steps - 2)
    return growth * 4 * (losses.noise * counts / (counts - 1)) ** 2 * rate**2 * drawn


def merged_stability(training: Training, local: Tensor) -> float:
    """S = Σ w_t² s_t / T exactly, as one redrawn example moves one expert."""
    return float((training.weights**2 * local).mean())


def descent_bound(
    opening: tuple[float, float, float],  # f̃, ‖∇f̃‖² and κ² = Σ ω_t ‖∇f_t − ∇f̃‖², all at θ_0
    losses: Losses,  # σ_t in the mean square of Assumption 2; ζ is not needed
    training: Training,
) -> dict[str, float]:
    """A bound of E f̃ at the merge, in parts to be added: no PL condition, nothing beyond θ_0.

    f̃(θ_0) − u/4 ‖∇f̃(θ_0)‖² + u [u L Σω²σ²‖a‖₂²/(b‖a‖₁²) + 3/2 η²L² Σωσ²A₂/b + 3 η²L² κ² A₃],
    where u = η τ_eff. For SGD with any schedule, and η L ‖a_t‖₁ ≤ `REPAIRED_DOMAIN`.
    """
    value, gradient, dissimilarity = opening
    total, surrogate = training.surrogate
    rate, smooth = training.learning_rate, losses.smoothness
    length = rate * total
    share, second, third = accumulation(training)
    noise = losses.noise**2 / training.batch
    pulls = 3 * (rate * smooth) ** 2 * dissimilarity * float(third.max())
    way = 1.5 * length * (rate * smooth) ** 2 * float((surrogate * noise) @ second)
    return {
        "start": value,
        "descent": -length / 4 * gradient,
        "noise": length**2 * smooth * float((surrogate**2 * noise) @ share),
        "noise on the way": way,
        "tasks pull apart": length * pulls,
    }


def excess_bound(
    parts: Mapping[str, float],  # `descent_bound`'s, where f̃ is f
    floor: float,  # f(θ̂)
    stability: float,  # S or a bound, such as `merged_stability` of `local_stability`
    smoothness: float,
) -> dict[str, float]:
    """A bound of the excess error, E_O and E_G apart; V ≤ 2 L f for losses of at least 0."""
    loss = sum(parts.values())
    return {
        "optimisation": loss - floor,
        "generalisation": generalisation_bound(stability, 2 * smoothness * loss, smoothness),
    }


def convex_excess_bound(
    parts: Mapping[str, float], floor: float, largest: Losses, training: Training
) -> dict[str, float]:
    """`excess_bound` with `local_stability` of convex losses, which favours it elsewhere."""
    local = local_stability(largest, training, convex=True)
    return excess_bound(parts, floor, merged_stability(training, local), largest.smoothness)


def best_progress(
    gradient: float,  # ‖∇f(θ_0)‖, not squared
    dissimilarity: float,  # κ, root of the mean squared distance of ∇f_t(θ_0) from it
    smoothness: float,
    *,
    noise: float = 0.0,  # s, the rate times the variance of a batch's gradient, mean over tasks
    tasks: int = 1,  # over which the average's noise is spread
) -> float:
    """ηK at which `descent_bound` of an average is least, at a fixed rate and for many equal steps.

    It is the positive root u of 9 L²κ² u² + 3 L²s u = ‖∇f‖²/4 − L s/T with s = ησ²/b, 0 where the
    right side is not positive, and at most `REPAIRED_DOMAIN` / L. Without noise, u = ‖∇f‖/(6 L κ).
    """
    gain = gradient**2 / 4 - smoothness * noise / tasks
    if gain <= 0:
        return 0.0
    slope = 1.5 * smoothness**2 * noise
    cost = slope + math.sqrt(slope**2 + gain * (3 * smoothness * dissimilarity) ** 2)
    limit = REPAIRED_DOMAIN / smoothness
    return min(gain / cost, limit) if cost else limit
