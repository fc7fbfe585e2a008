"""Maximum mean discrepancy (MMD) between samples, from which SAIL computes weights.

MMD is the distance between mean embeddings under a kernel (Gretton et al., 2012), here
k(x, y) = exp(−‖x − y‖² / 2h²) with the bandwidth h.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 2048  # rows whose kernels are held at once
SUBSAMPLE = 1000  # points of each sample at most that the median distance is taken over


def median_distance(samples: Sequence[Tensor]) -> float:
    """Return the median distance between two points of the pooled samples, the usual bandwidth.

    At most `SUBSAMPLE` evenly spaced rows of each sample ``(count, d)`` are used. If most points
    coincide, so that the median is 0, it raises a ``ValueError``.
    """
    pooled = torch.cat([rows[:: -(-len(rows) // SUBSAMPLE)] for rows in checked_samples(samples)])
    middle = float(torch.pdist(pooled).median())
    if not middle > 0:
        raise ValueError("the median distance is 0 because most points coincide; pass a bandwidth")
    return middle


def mmd_table(
    samples: Sequence[Tensor], *, bandwidth: float | None = None, unbiased: bool = False
) -> Tensor:
    """Return MMD² between all pairs of samples, ``(count, count)``, with a zero diagonal.

    Args:
        samples: features, each ``(rows, d)`` with at least two rows.
        bandwidth: h; by default `median_distance`.
        unbiased: leave out each point's kernel with itself (the U-statistic, which can be
            negative). Compute weights from the default, the V-statistic: its tables are squared
            Euclidean distances.

    Raises:
        ValueError: features do not match or are not finite, or the bandwidth is not positive.
    """
    rows = checked_samples(samples)
    width = median_distance(rows) if bandwidth is None else bandwidth
    if not 0 < width < math.inf:
        raise ValueError(f"bandwidth is {width}, expected a positive number")
    means = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for i, first in enumerate(rows):
        for j, second in enumerate(rows[: i + 1]):
            skipped = i == j and unbiased  # each point's kernel with itself, which is 1
            total = sum(float(_kernel(part, second, width).sum()) for part in first.split(BLOCK))
            total -= len(first) * skipped
            means[i, j] = means[j, i] = total / (len(first) * (len(second) - skipped))
    return (means.diagonal()[:, None] + means.diagonal() - 2 * means).fill_diagonal_(0)


def permutation_p(
    first: Tensor,
    second: Tensor,
    *,
    bandwidth: float | None = None,
    permutations: int = 199,
    seed: int = 0,
) -> float:
    """Return the p-value of MMD² of ``(m, d)`` and ``(n, d)`` if both have the same distribution.

    The m + n pooled rows are permuted; their kernel is one square matrix. The observed split counts
    as one draw, so the result is at least 1/(permutations + 1), and rejecting at p ≤ α has an error
    rate of at most α. ``bandwidth`` is as in `mmd_table`.
    """
    if permutations < 1:
        raise ValueError(f"permutations is {permutations}, expected at least 1")
    pooled = torch.cat(checked_samples([first, second]))
    width = median_distance([first, second]) if bandwidth is None else bandwidth
    kernel = _kernel(pooled, pooled, width)
    signs = torch.full((len(pooled),), -1 / len(second), dtype=torch.float64)
    signs[: len(first)] = 1 / len(first)
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(pooled), generator=generator) for _ in range(permutations)]
    splits = signs[torch.stack([torch.arange(len(pooled)), *orders])]
    values = ((splits @ kernel) * splits).sum(1)
    return float((values >= values[0] * (1 - 1e-12)).double().mean())


def _kernel(first: Tensor, second: Tensor, bandwidth: float) -> Tensor:
    return torch.exp(torch.cdist(first, second).square() / (-2 * bandwidth**2))


def checked_samples(samples: Sequence[Tensor]) -> list[Tensor]:
    """Return the samples in double precision, centred on the mean of the first."""
    for rows in samples:
        if rows.dim() != 2 or len(rows) < 2 or rows.shape[1] != samples[0].shape[1]:
            shapes = [tuple(part.shape) for part in samples]
            raise ValueError(
                f"the samples have shapes {shapes}, expected at least 2 rows and equal features"
            )
        if not bool(torch.isfinite(rows).all()):
            raise ValueError("a sample contains NaN or Inf")
    origin = samples[0].double().mean(0)
    return [rows.double() - origin for rows in samples]
