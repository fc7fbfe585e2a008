"""The loss over planes in the space of weights, and CART's path on them."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mergebook.lab.comparison import merge_zoo
from mergebook.lab.plane import Plane
from mergebook.suites.types import (
    Zoo,
)
from mergelib.evaluation.loops import evaluate_many
from mergelib.statedict import flatten


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
    return np.array([plane.place(merged) for merged in merges])


def window(places: np.ndarray, size: int, margin: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of a square grid around places, shape ``(count, 2)``."""
    edge = margin * np.ptp(places, axis=0)
    xs, ys = np.linspace(places.min(0) - edge, places.max(0) + edge, size).T
    return xs, ys


def loss_map(zoo: Zoo, plane: Plane, xs: np.ndarray, ys: np.ndarray) -> pd.DataFrame:
    """Mean test loss over the zoo's tasks on a grid of a plane, one row per y and column per x."""

    def candidates() -> Iterator[tuple[tuple[float, float], dict[str, Tensor]]]:
        for x in xs.tolist():
            for y in ys.tolist():
                yield (x, y), plane.model(x, y)

    table = evaluate_many(zoo.model, candidates(), zoo.heads, zoo.suite, autocast=True)
    table[["x", "y"]] = table["candidate"].tolist()
    return table.groupby(["y", "x"])["loss"].mean().unstack()
