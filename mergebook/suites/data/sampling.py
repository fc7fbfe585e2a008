"""Which rows of a data set are taken: drawn by a generator, classes in their shares."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor


def balanced_labels(size: int, classes: int, generator: Generator) -> Tensor:
    """int64 (size,) labels, every class equally often (to within one), in random order."""
    return (torch.arange(size) % classes)[torch.randperm(size, generator=generator)]


def draw(labels: Tensor, sizes: Sequence[int], generator: Generator) -> tuple[Tensor, Tensor]:
    """Disjoint rows of a training part to train on and to validate on, classes in their shares.

    Args:
        labels: int64 (N,) of the whole training part.
        sizes: at most so many rows of each; of the latter at most a fifth of all.
        generator: draws them.
    """
    validation = stratified(labels, min(sizes[1], len(labels) // 5), generator)
    remaining = torch.ones(len(labels), dtype=torch.bool)
    remaining[validation] = False
    rest = remaining.nonzero()[:, 0]
    return rest[stratified(labels[rest], sizes[0], generator)], validation


def stratified(labels: Tensor, size: int, generator: Generator) -> Tensor:
    """At most `size` row numbers, int64, drawn so that classes keep their shares.

    Rows come in random order. Rank each row within its class at random; the share that row stands
    for is (rank + a half) / class size, and the rows with the smallest shares are taken (Webster's
    method). A class of n rows, where the mean is m, is within (1 + n/m)/2 rows of its exact share:
    within one for classes of equal size.
    """
    if size >= len(labels):
        return torch.randperm(len(labels), generator=generator)
    order = torch.randperm(len(labels), generator=generator)
    share = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique():
        rows = order[labels[order] == label]
        share[rows] = (torch.arange(len(rows), dtype=torch.float64) + 0.5) / len(rows)
    taken = order[share[order].argsort(stable=True)[:size]]
    return taken[torch.randperm(len(taken), generator=generator)]
