"""What Adam makes of gradients: a weight for every coordinate, where SGD has one for all.

Li et al. (2026, Remark 6) hold that Adam only changes the vector a of
θ_K = θ_0 − η Σ_k a_k g_k. But it divides each coordinate j by a root of its own second moment, so
that θ_Kj = θ_0j − η Σ_k a_kj g_kj, and its way need not lie in the span of its gradients.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mergelib.messages.brief import Brief


def adam_weights(
    gradients: Tensor, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> Tensor:
    """The weights a_kj of Adam with a constant rate and without weight decay, ``(K, d)``."""
    first, second = betas
    moment, shares = torch.zeros_like(gradients[0]), []
    for k, gradient in enumerate(gradients, start=1):
        moment = second * moment + (1 - second) * gradient.square()
        root = (moment / (1 - second**k)).sqrt() + eps
        shares.append((1 - first) / (1 - first**k) / root)
    later, weights = torch.zeros_like(moment), []
    for share in reversed(shares):
        later = share + first * later
        weights.append(later)
    return torch.stack(weights[::-1])


@dataclass(frozen=True, repr=False)
class AdamSteps(Brief):
    """How far Adam is from a vector a."""

    mean: Tensor  # of each step's weights over the coordinates, ``(K,)``, in units of 1/gradient
    spread: Tensor  # standard deviation of these over their mean; 0 if there is a vector a
    residual: float  # the share of ‖θ_K − θ_0‖ outside the span of the gradients, 0..1


def adam_steps(gradients: Tensor) -> AdamSteps:
    """The weights of `adam_weights` in short, and what no combination of the gradients reaches."""
    weights = adam_weights(gradients).double()
    mean = weights.mean(1)
    spread = weights.std(1, correction=0) / mean
    return AdamSteps(mean, spread, outside((weights * gradients).sum(0), gradients))


def outside(vector: Tensor, directions: Tensor) -> float:
    """The share of a vector's length outside the span of some directions, 0..1."""
    rows, aim = directions.double(), vector.double()
    shares = torch.linalg.pinv(rows @ rows.T, hermitian=True, rtol=1e-10) @ (rows @ aim)
    return float((aim - shares @ rows).norm() / aim.norm())
