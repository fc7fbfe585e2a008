"""Merging weights at which a bound is least, from what is known at θ_0 (chapter 43 of the book)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mergebook.stability.theory import bounds
from mergebook.stability.theory.steps import Training
from mergelib.messages.brief import Brief


@dataclass(frozen=True, repr=False)
class Beginning(Brief):
    """What the bound of an excess error takes from θ_0, for any merging weights."""

    value: float  # f(θ_0)
    products: Tensor  # ⟨∇f_t, ∇f_s⟩ there, ``(T, T)``, e.g. of `inner_products`
    losses: bounds.Losses  # L, and σ_t in the mean square
    largest: bounds.Losses  # the same with the largest σ_t, which stability asks for

    def excess(self, training: Training) -> dict[str, float]:
        """`convex_excess_bound` of a merge with any weights, above a floor of 0."""
        _, surrogate = training.surrogate
        even = torch.full_like(surrogate, 1 / len(surrogate))
        gradient, apart = (float(c @ self.products @ c) for c in (even, even - surrogate))
        opening = (self.value, gradient, apart, float(surrogate @ self.products.diagonal()))
        parts = bounds.weighted_descent_bound(opening, self.losses, training)
        return bounds.convex_excess_bound(parts, 0.0, self.largest, training)

    def best(self, training: Training) -> Tensor:
        """Where `excess` is least over the simplex, for experts trained in this way; ``(T,)``."""

        def value(weights: Tensor) -> float:
            return sum(self.excess(replace(training, weights=weights)).values())

        return least_weights(value, len(training.weights))


def inner_products(products: Tensor) -> Tensor:
    """⟨∇f_t, ∇f_s⟩ without bias, ``(T, T)``, moved to the nearest Gram matrix."""
    parts = products.shape[1]
    same = torch.einsum("tasa->ts", products)
    table = (products.sum((1, 3)) - same) / (parts * (parts - 1))
    values, vectors = torch.linalg.eigh((table + table.T) / 2)
    clipped: Tensor = (vectors * values.clamp(min=0)) @ vectors.T
    return clipped


def least_weights(value: Callable[[Tensor], float], tasks: int) -> Tensor:
    """Weights on the simplex at which a function is least, ``(T,)``.

    Searched from equal weights, and from a point near every corner, so that the best of several
    minima is found where there are any; in units of the function's own range over these.
    """
    from scipy.optimize import minimize

    even = np.full(tasks, 1 / tasks)
    starts = [even, *(0.7 * np.eye(tasks) + 0.3 * even)]
    first, *others = (value(torch.from_numpy(start)) for start in starts)
    unit = max(abs(other - first) for other in others) or 1.0

    def on_simplex(weights: np.ndarray) -> float:
        return (value(torch.from_numpy(weights / weights.sum())) - first) / unit

    found = [
        minimize(
            on_simplex,
            start,
            method="SLSQP",
            bounds=[(0, 1)] * tasks,
            constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
            options={"ftol": 1e-10},
        )
        for start in starts
    ]
    best = min(found, key=lambda each: float(each.fun)).x
    return torch.from_numpy(best / best.sum())
