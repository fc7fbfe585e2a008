"""Which rows of a data set are taken: drawn by a generator, classes in their shares."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor


def balanced_labels(size: int, classes: int, generator: Generator) -> Tensor:
    """int64 (size,) labels, every class equally often (to within one), in random order."""
    return (torch.arange(size) % classes)[torch.randperm(size, generator=generator)]


def draw(labels: Tensor, sizes: Sequence[int], generator: Generator) -> tuple[Tensor, Tensor]:
    """Disjoint rows to train on and to validate on; the latter are at most a fifth of all."""
    validation = stratified(labels, min(sizes[1], len(labels) // 5), generator)
    remaining = torch.ones(len(labels), dtype=torch.bool)
    remaining[validation] = False
    rest = remaining.nonzero()[:, 0]
    return rest[stratified(labels[rest], sizes[0], generator)], validation


def stratified(labels: Tensor, size: int | None, generator: Generator) -> Tensor:
    """At most `size` row numbers (None: all) in random order, in which classes keep their shares.

    Rank each row within its class at random; the share that a row stands for is (rank + a half) /
    class size, and the rows with the smallest shares are taken (Webster's method). A class of n
    rows, where the mean is m, is within (1 + n/m)/2 rows of its exact share.
    """
    order = torch.randperm(len(labels), generator=generator)
    if size is None or size >= len(labels):
        return order
    share = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique():
        rows = order[labels[order] == label]
        share[rows] = (torch.arange(len(rows), dtype=torch.float64) + 0.5) / len(rows)
    taken = order[share[order].argsort(stable=True)[:size]]
    return taken[torch.randperm(len(taken), generator=generator)]
