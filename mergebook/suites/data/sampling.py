"""Which rows of a data set are taken: drawn by a generator, classes in their shares."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from mergelib.hashing import stable_seed


def balanced_labels(size: int, classes: int, generator: Generator) -> Tensor:
    """int64 (size,) labels, every class equally often (to within one), in random order."""
    return (torch.arange(size) % classes)[torch.randperm(size, generator=generator)]


def draw(
    train_labels: Tensor, test_labels: Tensor, sizes: Sequence[int | None], *seeds: str | int
) -> tuple[Tensor, Tensor, Tensor]:
    """Disjoint rows to train and (at most a fifth) to validate on, and rows of a test part."""
    generator = Generator().manual_seed(stable_seed(*seeds))
    fifth = len(train_labels) // 5
    validation = stratified(train_labels, min(sizes[1] or 0, fifth), generator)
    remaining = torch.ones(len(train_labels), dtype=torch.bool)
    remaining[validation] = False
    rest = remaining.nonzero()[:, 0]
    train = rest[stratified(train_labels[rest], sizes[0], generator)]
    return train, validation, stratified(test_labels, sizes[2], generator)


def stratified(labels: Tensor, size: int | None, generator: Generator) -> Tensor:
    """At most `size` row numbers (None: all) in random order, in which classes keep their shares.

    Webster's method on random ranks: of n rows, where the mean is m, it is (1 + n/m)/2 off at most.
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
