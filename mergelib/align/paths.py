"""The straight path between two networks, and how much worse than its ends it is."""

from collections.abc import Callable

import torch

from mergelib.statedict import StateDict, lerp


def losses_along(
    loss: Callable[[StateDict], float], a: StateDict, b: StateDict, *, points: int = 11
) -> list[float]:
    """The loss of (1 − λ)·a + λ·b at ``points`` values of λ, evenly spaced from 0 to 1.

    Raises:
        ValueError: for fewer than 3 points, or state dicts that do not match.
    """
    if points < 3:
        raise ValueError(f"points is {points}, expected at least 3")
    weights = torch.linspace(0, 1, points, dtype=torch.float64).tolist()
    return [float(loss(lerp(a, b, weight))) for weight in weights]


def barrier(
    loss: Callable[[StateDict], float], a: StateDict, b: StateDict, *, points: int = 11
) -> float:
    """How far the loss rises above the chord between two networks: their loss barrier.

    max_λ L((1 − λ)a + λb) − ((1 − λ)L(a) + λL(b)), at least 0, as both ends lie on the chord. For
    equal ends it is the barrier of Ainsworth et al. (2023, definition 2.2).

    Args:
        loss: from a state dict to its loss; it may change nothing.
        a: one end of the path.
        b: the other end, of the same keys and shapes.
        points: values of λ that are tried, both ends among them.
    """
    losses = losses_along(loss, a, b, points=points)
    steps = len(losses) - 1
    chord = [losses[0] + (losses[-1] - losses[0]) * i / steps for i in range(steps + 1)]
    return max(0.0, *(value - line for value, line in zip(losses, chord, strict=True)))
