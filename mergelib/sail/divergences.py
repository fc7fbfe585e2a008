"""Distances between data distributions, from which SAIL computes weights (Anonymous, 2025).

The paper uses total variation in its theorems and in appendix D, and the maximum mean discrepancy
(MMD, Gretton et al., 2012) in its experiment. MMD is the distance between mean embeddings under a
kernel, here k(x, y) = exp(−‖x − y‖² / 2h²) with the bandwidth h.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

Kernel = Callable[[Tensor, Tensor], Tensor]

SUBSAMPLE = 1000  # points of each sample at most that the median distance is taken over


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    """Return ½ Σ |p − q| of two histograms, in 0..1.

    Args:
        first: counts or fractions per bin, ``(…, bins)``; they are normalised. For tokens, use
            ``torch.bincount(tokens, minlength=vocabulary)``.
        second: the same for the second distribution.

    Raises:
        ValueError: the bins differ, or a histogram is empty, negative or not finite.
    """
    if first.shape[-1] != second.shape[-1]:
        raise ValueError(f"histograms of {first.shape[-1]} and {second.shape[-1]} bins")
    shares = []
    for counts in (first.double(), second.double()):
        total = counts.sum(-1, keepdim=True)
        if not bool(torch.isfinite(counts).all() and (counts >= 0).all() and (total > 0).all()):
            raise ValueError("a histogram has no counts, or one that is negative or not finite")
        shares.append(counts / total)
    distance: Tensor = ((shares[0] - shares[1]).abs().sum(-1) / 2).clamp(max=1)
    return distance


def empirical_variation(first: Tensor, second: Tensor) -> float:
    """Return the total variation of two samples whose distinct rows are the atoms (appendix D).

    Two samples of continuous features share no rows, so the result is 1 however close their
    distributions are. Bin the rows first if you need an estimate.

    Args:
        first: ``(m, …)``.
        second: ``(n, …)``, rows of the same shape.
    """
    _, places = torch.unique(torch.cat([first, second]), dim=0, return_inverse=True)
    own, other = places[: len(first)], places[len(first) :]
    bins = int(places.max()) + 1
    counts = (torch.bincount(part, minlength=bins) for part in (own, other))
    return float(total_variation(*counts))


def mahalanobis(first: Tensor, second: Tensor, covariance: Tensor) -> Tensor:
    """Return Δ = √((a − b)ᵀ Σ⁻¹ (a − b)) for means ``(…, d)`` and positive definite Σ ``(d, d)``.

    Raises:
        ValueError: the covariance is not positive definite.
    """
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if int(failed):
        raise ValueError("the covariance is not positive definite")
    white = torch.linalg.solve_triangular(factor, (first - second)[..., None], upper=False)
    distance: Tensor = white[..., 0].norm(dim=-1)
    return distance


def gaussian_variation(distance: Tensor | float) -> Tensor:
    """Return 2Φ(Δ/2) − 1, the total variation of two Gaussians with the same covariance.

    ``distance`` is their Mahalanobis distance Δ ≥ 0.
    """
    return torch.erf(torch.as_tensor(distance, dtype=torch.float64) / math.sqrt(8))


def median_distance(samples: Sequence[Tensor]) -> float:
    """Return the median distance between two points of the pooled samples, the usual bandwidth.

    Args:
        samples: each ``(count, d)``; at most `SUBSAMPLE` evenly spaced rows of each are used.

    Raises:
        ValueError: more than half of all pairs coincide, so the median is 0.
    """
    pooled = torch.cat([rows[:: -(-len(rows) // SUBSAMPLE)] for rows in _checked(samples)])
    middle = float(torch.pdist(pooled).median())
    if not middle > 0:
        raise ValueError("most points coincide: the median distance is 0, pass a bandwidth")
    return middle


def squared_mmd(
    first: Tensor,
    second: Tensor,
    *,
    bandwidth: float | None = None,
    unbiased: bool = False,
    batch: int = 2048,
) -> float:
    """MMD² of two samples.

    Args:
        first: features, ``(m, d)``, at least two rows.
        second: ``(n, d)``.
        bandwidth: h; by default `median_distance`.
        unbiased: leave out each point's kernel with itself (the U-statistic), so that the mean over
            draws is right and values can be negative; for reports and tests. The default
            (the V-statistic) is never negative, and the one to make weights of: tables of it are
            squared Euclidean distances.
        batch: rows at a time; changes memory only.

    Raises:
        ValueError: features that do not match, NaN or Inf, or a bandwidth that is not positive.
    """
    table = mmd_table([first, second], bandwidth=bandwidth, unbiased=unbiased, batch=batch)
    return float(table[0, 1])


def mmd_table(
    samples: Sequence[Tensor],
    *,
    bandwidth: float | None = None,
    unbiased: bool = False,
    batch: int = 2048,
) -> Tensor:
    """Return MMD² between all pairs of samples, ``(count, count)``, with a zero diagonal.

    Args:
        samples: features, each ``(rows, d)`` with at least two rows.
        bandwidth: h; by default `median_distance`.
        unbiased: leave out each point's kernel with itself (the U-statistic, which can be
            negative). Compute weights from the default, the V-statistic: its tables are squared
            Euclidean distances.
        batch: rows per kernel block; affects memory only.

    Raises:
        ValueError: features do not match or are not finite, or the bandwidth is not positive.
    """
    rows = _checked(samples)
    width = median_distance(rows) if bandwidth is None else bandwidth
    if not 0 < width < math.inf:
        raise ValueError(f"bandwidth is {width}, expected a positive number")
    return _table(rows, partial(_kernel, bandwidth=width), unbiased, batch)


def _table(
    samples: Sequence[Tensor],
    kernel: Callable[[Tensor, Tensor], Tensor],
    unbiased: bool,
    batch: int,
) -> Tensor:
    """Return MMD² of all pairs of samples, for any kernel."""
    means = torch.zeros(len(samples), len(samples), dtype=torch.float64)
    for i, own in enumerate(samples):
        for j, other in enumerate(samples[: i + 1]):
            alone = i == j and unbiased
            total = 0.0
            for place, part in enumerate(own.split(batch)):
                values = kernel(part, other)
                total += float(values.sum())
                if alone:
                    total -= float(values.diagonal(place * batch).sum())
            means[i, j] = means[j, i] = total / (len(own) * (len(other) - alone))
    return (means.diagonal()[:, None] + means.diagonal() - 2 * means).fill_diagonal_(0)


def frechet_distance(first: Tensor, second: Tensor) -> float:
    """Return ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2 (Σ₁ Σ₂)^½) of two samples (Heusel et al., 2017).

    The value depends on the features and, because it is biased upwards, on the number of rows.

    Args:
        first: features, ``(m, d)``; use as many rows as in ``second`` to compare values.
        second: ``(n, d)``.
    """
    rows = _checked([first, second])
    means, covariances = [part.mean(0) for part in rows], [torch.cov(part.T) for part in rows]
    values, vectors = torch.linalg.eigh(covariances[0])
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    shared = torch.linalg.eigvalsh(root @ covariances[1] @ root).clamp(min=0).sqrt().sum()
    spread = covariances[0].trace() + covariances[1].trace() - 2 * shared
    return float((means[0] - means[1]).square().sum() + spread)


def kernel_distance(first: Tensor, second: Tensor, *, batch: int = 2048) -> float:
    """Return the unbiased MMD² with kernel (x·y/d + 1)³ (KID, Bińkowski et al., 2018).

    It can be negative. The samples are ``(m, d)`` and ``(n, d)``; ``batch`` affects memory only.
    """
    _checked([first, second])

    def cubic(own: Tensor, other: Tensor) -> Tensor:
        return (own @ other.T / own.shape[1] + 1) ** 3

    table = _table([first.double(), second.double()], cubic, True, batch)
    return float(table[0, 1])


def permutation_p(
    first: Tensor,
    second: Tensor,
    *,
    bandwidth: float | None = None,
    permutations: int = 199,
    seed: int = 0,
) -> float:
    """Return the p-value of the samples' MMD² under the hypothesis of one common distribution.

    The pooled rows are permuted. The observed split counts as one draw, so the result is at least
    1/(permutations + 1), and rejecting at p ≤ α has an error rate of at most α.

    Args:
        first: features, ``(m, d)``.
        second: ``(n, d)``; m + n rows are held as one square matrix.
        bandwidth: as in `mmd_table`.
        permutations: number of random splits, at least 1.
        seed: seed of the splits.
    """
    if permutations < 1:
        raise ValueError(f"permutations is {permutations}, expected at least 1")
    pooled = torch.cat(_checked([first, second]))
    width = median_distance([first, second]) if bandwidth is None else bandwidth
    kernel = _kernel(pooled, pooled, width)
    signs = torch.full((len(pooled),), -1 / len(second), dtype=torch.float64)
    signs[: len(first)] = 1 / len(first)
    generator = torch.Generator().manual_seed(seed)
    deals = [torch.randperm(len(pooled), generator=generator) for _ in range(permutations)]
    dealt = signs[torch.stack([torch.arange(len(pooled)), *deals])]
    values = ((dealt @ kernel) * dealt).sum(1)
    return float((values >= values[0] * (1 - 1e-12)).double().mean())


def classifier_auc(
    first: Tensor,
    second: Tensor,
    *,
    given: tuple[Tensor, Tensor] | None = None,
    folds: int = 5,
) -> float:
    """Return the mean test AUC of a linear classifier that separates two samples; ½ is chance.

    A logistic regression on standardised features is cross-validated on contiguous folds, so that
    neighbouring rows of a text stay together.

    Args:
        first: features, ``(m, d)``.
        second: ``(n, d)``.
        given: a statistic of each row, ``(m,)`` and ``(n,)``, whose effect is removed: a cubic
            regression on it is subtracted from the features. It is fitted on the training folds
            only, since a fit on all rows would bias the test fold.
        folds: number of folds, at least 2.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import KFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    samples = [rows.numpy() for rows in _checked([first, second])]
    scores = []
    splits = [list(KFold(folds).split(rows)) for rows in samples]
    for (train, test), (other_train, other_test) in zip(*splits, strict=True):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
        inputs = np.concatenate([samples[0][train], samples[1][other_train]])
        judged = np.concatenate([samples[0][test], samples[1][other_test]])
        if given is not None:
            at = torch.cat([given[0][train], given[1][other_train]])
            then = torch.cat([given[0][test], given[1][other_test]])
            pairs = (torch.from_numpy(inputs), at), (torch.from_numpy(judged), then)
            inputs, judged = (rest.numpy() for rest in residuals(*pairs))
        model.fit(inputs, np.repeat([0, 1], [len(train), len(other_train)]))
        values = model.decision_function(judged)
        scores.append(roc_auc_score(np.repeat([0, 1], [len(test), len(other_test)]), values))
    return float(np.mean(scores))


def _kernel(own: Tensor, other: Tensor, bandwidth: float) -> Tensor:
    return torch.exp(torch.cdist(own, other).square() / (-2 * bandwidth**2))


def _checked(samples: Sequence[Tensor]) -> list[Tensor]:
    """Return the samples in double precision, centred on the mean of the first."""
    for rows in samples:
        if rows.dim() != 2 or len(rows) < 2 or rows.shape[1] != samples[0].shape[1]:
            shapes = [tuple(part.shape) for part in samples]
            raise ValueError(f"samples of shapes {shapes}, expected (rows ≥ 2, features) alike")
        if not bool(torch.isfinite(rows).all()):
            raise ValueError("a sample holds NaN or Inf")
    origin = samples[0].double().mean(0)
    return [rows.double() - origin for rows in samples]


def residuals(fitted: tuple[Tensor, Tensor], *others: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Subtract from each (features, statistic) pair the cubic regression fitted on the first pair."""
    features, statistic = (part.double() for part in fitted)
    middle, width = statistic.mean(), statistic.std()

    def powers(values: Tensor) -> Tensor:
        scaled = (values.double() - middle) / width
        return torch.stack([scaled**k for k in range(4)], 1)

    slopes = torch.linalg.lstsq(powers(statistic), features).solution
    return tuple(rows.double() - powers(values) @ slopes for rows, values in (fitted, *others))
