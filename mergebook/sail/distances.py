"""Distances between data that SAIL speaks of; its theorems use total variation."""

import math

import numpy as np
import torch
from torch import Tensor

from mergebook.sail.networks.byol import linear_classifier
from mergelib.sail.divergences import checked_samples


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    """Return ½ Σ |p − q|, in 0..1, of two histograms ``(…, bins)``, counts or fractions.

    Bins that differ, and counts that are all zero, negative or not finite are a ``ValueError``.
    """
    if first.shape[-1] != second.shape[-1]:
        bins = f"{first.shape[-1]} and {second.shape[-1]}"
        raise ValueError(f"the histograms have {bins} bins, expected equal numbers")
    fractions = []
    for counts in (first.double(), second.double()):
        total = counts.sum(-1, keepdim=True)
        if not bool(torch.isfinite(counts).all() and (counts >= 0).all() and (total > 0).all()):
            raise ValueError("a histogram is empty or has a count that is negative or not finite")
        fractions.append(counts / total)
    return ((fractions[0] - fractions[1]).abs().sum(-1) / 2).clamp(max=1)


def gaussian_variation(distance: Tensor | float) -> Tensor:
    """Return 2Φ(Δ/2) − 1: total variation of Gaussians of one covariance, Δ apart (Mahalanobis)."""
    return torch.erf(torch.as_tensor(distance, dtype=torch.float64) / math.sqrt(8))


def frechet_distance(first: Tensor, second: Tensor) -> float:
    """Return ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2 (Σ₁ Σ₂)^½) of two samples (Heusel et al., 2017).

    It is biased upwards, so compare values only for equal numbers of rows.
    """
    rows = checked_samples([first, second])
    means, covariances = [part.mean(0) for part in rows], [torch.cov(part.T) for part in rows]
    values, vectors = torch.linalg.eigh(covariances[0])
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    cross = torch.linalg.eigvalsh(root @ covariances[1] @ root).clamp(min=0).sqrt().sum()
    spread = covariances[0].trace() + covariances[1].trace() - 2 * cross
    return float((means[0] - means[1]).square().sum() + spread)


def kernel_distance(first: Tensor, second: Tensor) -> float:
    """Return the unbiased MMD² with kernel (x·y/d + 1)³ (KID, Bińkowski et al., 2018)."""
    checked_samples([first, second])
    x, y = first.double(), second.double()
    xx, yy, xy = ((a @ b.T / a.shape[1] + 1) ** 3 for a, b in ((x, x), (y, y), (x, y)))
    within = sum((k.sum() - k.trace()) / (len(k) * (len(k) - 1)) for k in (xx, yy))
    return float(within - 2 * xy.mean())


def classifier_auc(
    first: Tensor, second: Tensor, *, given: tuple[Tensor, Tensor] | None = None
) -> float:
    """Return the mean AUC of a linear classifier that separates two samples; ½ is chance.

    Cross-validated on five contiguous folds, so that neighbouring rows of a text stay together; a
    cubic effect of the statistic ``given`` of each row is fitted on training folds, and removed.
    """
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import KFold

    samples = [rows.numpy() for rows in checked_samples([first, second])]
    scores = []
    splits = [list(KFold(5).split(rows)) for rows in samples]
    for (train, test), (other_train, other_test) in zip(*splits, strict=True):
        inputs = np.concatenate([samples[0][train], samples[1][other_train]])
        held_out = np.concatenate([samples[0][test], samples[1][other_test]])
        if given is not None:
            fitted = torch.cat([given[0][train], given[1][other_train]])
            others = torch.cat([given[0][test], given[1][other_test]])
            pairs = (torch.from_numpy(inputs), fitted), (torch.from_numpy(held_out), others)
            inputs, held_out = (rest.numpy() for rest in residuals(*pairs))
        labels = np.repeat([0, 1], [len(train), len(other_train)])
        values = linear_classifier().fit(inputs, labels).decision_function(held_out)
        scores.append(roc_auc_score(np.repeat([0, 1], [len(test), len(other_test)]), values))
    return float(np.mean(scores))


def residuals(fitted: tuple[Tensor, Tensor], *others: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Subtract from each (features, statistic) pair the cubic regression fitted on the first."""
    features, statistic = (part.double() for part in fitted)
    middle, width = statistic.mean(), statistic.std()

    def powers(values: Tensor) -> Tensor:
        scaled = (values.double() - middle) / width
        return torch.stack([scaled**k for k in range(4)], 1)

    slopes = torch.linalg.lstsq(powers(statistic), features).solution
    return tuple(rows.double() - powers(values) @ slopes for rows, values in (fitted, *others))
