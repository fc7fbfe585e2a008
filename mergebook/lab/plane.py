"""Planes in the space of weights, with coordinates that keep all distances."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mergelib.messages.brief import Brief
from mergelib.statedict import StateDict, flatten, unflatten


@dataclass(frozen=True, repr=False)
class Plane(Brief):
    """Coordinates on a plane."""

    origin: StateDict  # the model with the coordinates (0, 0), of N entries in all
    axes: Tensor  # ``(2, N)``, of length one and at a right angle to each other

    @classmethod
    def through(cls, states: Sequence[StateDict]) -> "Plane":
        """The plane through three models: from the second to the third along the first axis."""
        if len(states) != 3:
            raise ValueError(f"{len(states)} models, expected 3: they span a plane")
        top, left, right = (flatten(state) for state in states)
        across = (right - left) / (right - left).norm()
        upward = (top - left) - ((top - left) @ across) * across
        if not bool(upward.norm() > 1e-6 * (top - left).norm()):
            raise ValueError("the three models lie on one line, which no plane follows from")
        return cls(states[1], torch.stack([across, upward / upward.norm()]))

    @classmethod
    def principal(cls, origin: StateDict, ways: Tensor) -> "Plane":
        """The plane through a model with most of the squared length of rows ``(count, N)``."""
        return cls(origin, torch.linalg.svd(ways, full_matrices=False).Vh[:2])

    def place(self, state: StateDict) -> list[float]:
        """Coordinates of a model's foot, in units of distance in weights."""
        own = {key: state[key] for key in self.origin}
        return [float(part) for part in self.axes @ (flatten(own) - flatten(self.origin))]

    def model(self, x: float, y: float) -> dict[str, Tensor]:
        point = flatten(self.origin) + self.axes.new_tensor([x, y]) @ self.axes
        return unflatten(point, self.origin)
