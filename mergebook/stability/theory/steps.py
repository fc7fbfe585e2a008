"""What an optimiser does with its gradients, as one vector, and what merging makes of several.

After K steps an expert is at θ_0 − η Σ_k a_k g_k, with K ones in ``a`` for plain SGD. So merging is

    θ_merged = θ_0 − η τ_eff Σ_t ω_t G_t a_t / ‖a_t‖₁,   τ_eff = Σ_t w_t ‖a_t‖₁,
                                                        ω_t = w_t ‖a_t‖₁ / τ_eff,

Eq. 14 of Li et al. (2026), after Wang et al. (2020): one step down Σ_t ω_t ℓ_t. Adam has no such
vector (against Remark 6): θ_Kj = θ_0j − η Σ_k a_kj g_kj may leave the span of its gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mergelib.messages.brief import Brief

TOLERANCE = 1e-6


def sgd(steps: int) -> Tensor:
    """Ones, ``(steps,)``: every gradient counts once (Li et al., 2026, before Corollary 2)."""
    return torch.ones(steps, dtype=torch.float64)


def momentum(steps: int, factor: float) -> Tensor:
    """Heavy-ball momentum, (1 − ρ^(K−k)) / (1 − ρ), as ``torch.optim.SGD`` without dampening."""
    left = torch.arange(steps, 0, -1, dtype=torch.float64)
    return (1 - factor**left) / (1 - factor)


def proximal(steps: int, pull: float) -> Tensor:
    """SGD that is pulled back to θ_0 at every step, (1 − α)^(K−1−k)."""
    return (1 - pull) ** torch.arange(steps - 1, -1, -1, dtype=torch.float64)


def effective(weights: Tensor, vectors: Sequence[Tensor]) -> tuple[float, Tensor]:
    """τ_eff and the surrogate weights ω, Eq. 14 of Li et al. (2026) for any merging weights."""
    if not bool((weights >= 0).all()) or abs(float(weights.sum()) - 1) > TOLERANCE:
        raise ValueError("weights must not be negative, and sum to 1")
    lengths = torch.stack([vector.abs().sum() for vector in vectors])
    total = float(weights @ lengths)
    return total, weights * lengths / total


def chi_square(weights: Tensor) -> float:
    """χ² = Σ_t (1/T − ω_t)² / ω_t, the divergence from the uniform weights to ω, ``(T,)``."""
    return float(((1 / len(weights) - weights) ** 2 / weights).sum())


def chi_square_printed(weights: Tensor) -> float:
    """The sum that Li et al. (2026) print below Eq. 7, with ω_t² in place of ω_t: never smaller."""
    return float(((1 / len(weights) - weights) ** 2 / weights**2).sum())


@dataclass(frozen=True, repr=False)
class Training(Brief):
    """How T experts are trained, and merged."""

    learning_rate: float  # η
    vectors: Sequence[Tensor]  # a_t of every expert; their lengths are the steps K_t
    batch: Tensor  # b_t, examples in a step's batch, ``(T,)``
    examples: Tensor  # n_t, training examples of a task, ``(T,)``
    weights: Tensor  # w_t, ``(T,)``, not negative, of sum 1

    def __post_init__(self) -> None:
        if len({len(self.vectors), len(self.batch), len(self.examples), len(self.weights)}) > 1:
            raise ValueError("vectors, batch, examples and weights must be of one length")
        if not bool(((self.batch >= 1) & (self.batch <= self.examples)).all()):
            raise ValueError("batch must lie between 1 and examples")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate is {self.learning_rate}, expected more than 0")

    @classmethod
    def alike(cls, tasks: int, steps: int, rate: float, batch: int, examples: int) -> "Training":
        """T experts of plain SGD with the same settings, averaged."""
        ones = torch.ones(tasks, dtype=torch.float64)
        vectors = [sgd(steps)] * tasks
        return cls(rate, vectors, batch * ones, examples * ones, ones / tasks)

    @property
    def steps(self) -> Tensor:
        """K_t, ``(T,)``."""
        return torch.tensor([len(vector) for vector in self.vectors], dtype=torch.float64)

    @property
    def surrogate(self) -> tuple[float, Tensor]:
        """τ_eff and ω."""
        return effective(self.weights, self.vectors)


def adam_weights(gradients: Tensor) -> Tensor:
    """The weights a_kj of Adam with a constant rate and without weight decay, ``(K, d)``."""
    first, second = 0.9, 0.999
    moment, shares = torch.zeros_like(gradients[0]), []
    for k, gradient in enumerate(gradients, start=1):
        moment = second * moment + (1 - second) * gradient.square()
        root = (moment / (1 - second**k)).sqrt() + 1e-8
        shares.append((1 - first) / (1 - first**k) / root)
    later, weights = torch.zeros_like(moment), []
    for share in reversed(shares):
        later = share + first * later
        weights.append(later)
    return torch.stack(weights[::-1])


def adam_residual(gradients: Tensor) -> float:
    """The share of Adam's ‖θ_K − θ_0‖ outside the span of the gradients, 0..1."""
    return outside((adam_weights(gradients).double() * gradients).sum(0), gradients)


def outside(vector: Tensor, directions: Tensor) -> float:
    """The share of a vector's length outside the span of some directions, 0..1."""
    rows, aim = directions.double(), vector.double()
    shares = torch.linalg.pinv(rows @ rows.T, hermitian=True, rtol=1e-10) @ (rows @ aim)
    return float((aim - shares @ rows).norm() / aim.norm())
