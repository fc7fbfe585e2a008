"""Planes in the space of weights: where models stand on one, and the loss over it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mergelib.statedict import StateDict, flatten, lerp, subtract, unflatten
from mergelib.studies.comparison import merge_zoo, only
from mergelib.testbed.evaluation import evaluate_many
from mergelib.testbed.tasks import Zoo


@dataclass(frozen=True)
class Plane:
    """The plane through ``origin`` along two orthonormal rows of ``axes``, shape ``(2, n)``."""

    origin: StateDict
    axes: Tensor

    def place(self, state: StateDict) -> np.ndarray:
        """Coordinates of a model's projection, shape ``(2,)``."""
        return np.asarray((self.axes @ flatten(subtract(state, self.origin))).tolist())

    def at(self, x: float, y: float) -> dict[str, Tensor]:
        """The model that stands at a place."""
        return unflatten(flatten(self.origin) + x * self.axes[0] + y * self.axes[1], self.origin)


def path(zoo: Zoo, rank_ratios: Sequence[float]) -> Tensor:
    """CART's way from the average at scale 1, Δ_k as one long vector for each rank.

    Returns:
        Shape ``(ranks, n)``; scale λ multiplies it by λ.
    """
    origin = flatten(merge_zoo("average", zoo))
    return torch.stack(
        [flatten(merge_zoo("cart", zoo, rank_ratio=ratio)) - origin for ratio in rank_ratios]
    )


def uncentred_path(zoo: Zoo, rank_ratios: Sequence[float], plane: Plane) -> np.ndarray:
    """Places of low-rank task arithmetic at its usual scale on a plane, shape ``(ranks, 2)``."""
    method = "low_rank_task_arithmetic"
    merges = (merge_zoo(method, zoo, rank_ratio=ratio) for ratio in rank_ratios)
    return np.stack([plane.place(merged) for merged in merges])


def principal_plane(origin: StateDict, ways: Tensor) -> Plane:
    """The plane through a model that holds most of the squared length of rows ``(count, n)``."""
    return Plane(origin, torch.linalg.svd(ways, full_matrices=False).Vh[:2])


def plane_through(corner: StateDict, along: StateDict, third: StateDict) -> Plane:
    """The plane of three models; ``along`` lies on the first axis, ``third`` above it.

    Raises:
        ValueError: if they lie on a line.
    """
    first, second = (flatten(subtract(state, corner)) for state in (along, third))
    first = first / first.norm()
    rest = second - (second @ first) * first
    if not rest.norm() > 1e-6 * second.norm():
        raise ValueError("the three models lie on a line, and span no plane")
    return Plane(corner, torch.stack([first, rest / rest.norm()]))


def window(places: np.ndarray, size: int, margin: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of a square grid around places, shape ``(count, 2)``.

    Args:
        places: what shall be inside.
        size: points along each side.
        margin: added on every side, as a share of the extent.
    """
    edge = margin * np.ptp(places, axis=0)
    xs, ys = np.linspace(places.min(0) - edge, places.max(0) + edge, size).T
    return xs, ys


def loss_map(zoo: Zoo, plane: Plane, xs: np.ndarray, ys: np.ndarray) -> pd.DataFrame:
    """Mean test loss over the zoo's tasks on a grid of a plane, one row per y and column per x."""

    def candidates() -> Iterator[tuple[tuple[float, float], dict[str, Tensor]]]:
        for x in xs.tolist():
            for y in ys.tolist():
                yield (x, y), plane.at(x, y)

    table = evaluate_many(zoo.model, candidates(), zoo.heads, zoo.suite, autocast=True)
    table[["x", "y"]] = table["candidate"].tolist()
    return table.groupby(["y", "x"])["loss"].mean().unstack()


def mean_cosine(zoo: Zoo, start: StateDict) -> float:
    """Mean cosine between the ways from a model to two different experts."""
    ways = torch.stack([flatten(subtract(expert, start)) for expert in zoo.experts.values()])
    directions = torch.nn.functional.normalize(ways, dim=1)
    others = ~torch.eye(len(ways), dtype=torch.bool)
    return float((directions @ directions.T)[others].mean())


def towards_experts(zoo: Zoo, merges: Mapping[str, StateDict]) -> pd.DataFrame:
    """How far merged models are from the experts, and what they lose on the experts' tasks.

    Args:
        zoo: experts and their suite.
        merges: name to model; the model half-way from the last one to each expert, and the expert,
            are judged as well.

    Returns:
        Means over the tasks: ``distance`` in weights and ``loss, nats`` on test data.
    """
    rows = []
    for task, expert in zoo.experts.items():
        *_, last = merges.items()
        states = {
            **merges,
            f"half-way from {last[0]}": lerp(last[1], expert, 0.5),
            "expert": expert,
        }
        losses = evaluate_many(zoo.model, states, zoo.heads, only(zoo.suite, [task]))["loss"]
        for (name, state), loss in zip(states.items(), losses, strict=True):
            distance = float(flatten(subtract(state, expert)).norm())
            rows.append({"model": name, "distance": distance, "loss, nats": loss})
    return pd.DataFrame(rows).groupby("model", sort=False).mean()
