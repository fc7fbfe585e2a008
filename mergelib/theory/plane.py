"""The plane through three models, with coordinates that keep all distances.

One axis runs along the line from the second model to the third, the other at a right angle to it,
towards the first. Any other model has a nearest point in the plane, its foot.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mergelib.messages.brief import Brief
from mergelib.statedict import StateDict, flatten, unflatten


@dataclass(frozen=True, repr=False)
class Plane(Brief):
    """Coordinates on the plane through three models.

    Attributes:
        origin: the second model, one vector of N entries; it has the coordinates (0, 0).
        axes: ``(2, N)``, of length one and at a right angle to each other.
        like: a model whose names and shapes all have.
    """

    origin: Tensor
    axes: Tensor
    like: StateDict

    @classmethod
    def through(cls, states: Sequence[StateDict]) -> "Plane":
        """The plane through three models of the same tensors.

        Raises:
            ValueError: another number of models, or three that lie on one line.
        """
        if len(states) != 3:
            raise ValueError(f"{len(states)} models, expected 3: they span a plane")
        top, left, right = (flatten(state) for state in states)
        across = (right - left) / (right - left).norm()
        upward = (top - left) - ((top - left) @ across) * across
        if not bool(upward.norm() > 1e-6 * (top - left).norm()):
            raise ValueError("the three models lie on one line, which no plane follows from")
        return cls(left, torch.stack([across, upward / upward.norm()]), states[0])

    def place(self, state: StateDict) -> list[float]:
        """Coordinates of a model's foot, in units of distance in weights."""
        own = {key: state[key] for key in self.like}
        return [float(part) for part in self.axes @ (flatten(own) - self.origin)]

    def model(self, x: float, y: float) -> dict[str, Tensor]:
        """The model at a point of the plane."""
        return unflatten(self.origin + self.axes.new_tensor([x, y]) @ self.axes, self.like)
