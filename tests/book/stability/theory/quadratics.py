"""Random tasks, and the bound of a theorem that only tests compute."""

import math

import torch
from torch import Tensor

from mergebook.stability.theory import bounds
from mergebook.stability.theory.bounds import Losses
from mergebook.stability.theory.quadratics import Quadratics
from mergebook.stability.theory.steps import Training


def many(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_quadratics(seed: int, tasks: int = 3, size: int = 2) -> Quadratics:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    roots, spreads, scale = draw(tasks, size, size), draw(tasks, size, size), draw(1).exp()
    return Quadratics(roots @ roots.mT, draw(tasks, size), scale * spreads @ spreads.mT, draw(size))


def weighted_descent_bound(
    opening: tuple[float, float, float, float],  # f, ‖∇f‖², δ² = ‖∇f − ∇f̃‖², m² = Σ ω_t ‖∇f_t‖²
    losses: Losses,  # σ_t in the mean square of Assumption 2; ζ is not needed
    training: Training,
) -> dict[str, float]:
    """A bound of E f at the merge, whatever its weights and its experts' steps, in parts to add.

    f(θ_0) − u/2 ‖∇f(θ_0)‖² + u² L Σω²σ²‖a‖₂²/(b‖a‖₁²) + u/2 (δ + √P)², where u = η τ_eff, and
    P = η²L² [3 Σωσ²A/b + 6 m² max A₃] bounds how far the experts leave their first gradients.
    `descent_bound` speaks of f̃ = Σ ω_t f_t; this one of the mean f, and δ is what that costs.
    Under the same conditions, and never larger where both apply.
    """
    value, gradient, apart, second_moment = opening
    total, surrogate = training.surrogate
    length, smooth = training.learning_rate * total, losses.smoothness
    share, second, third = bounds.accumulation(training)
    noise = losses.noise**2 / training.batch
    left = 3 * float((surrogate * noise) @ second) + 6 * second_moment * float(third.max())
    left *= (training.learning_rate * smooth) ** 2
    return {
        "start": value,
        "descent": -length / 2 * gradient,
        "noise": length**2 * smooth * float((surrogate**2 * noise) @ share),
        "another objective": length / 2 * apart,
        "tasks pull apart": length * (left / 2 + math.sqrt(max(apart, 0) * left)),
    }
