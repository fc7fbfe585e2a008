"""Rules that average the entries of task vectors τ_t = θ_t − θ_0 that are selected in each."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mergelib.merging.applying import CHUNK, precision
from mergelib.merging.reading import PerTensor
from mergelib.messages.kinds import Density, NotNegative
from mergelib.numerics.selection import magnitude_thresholds
from mergelib.registry import rule
from mergelib.rules.arithmetic import pieces


def _column(values: Sequence[float], task_vectors: Tensor) -> Tensor:
    return task_vectors.new_tensor(values).view(-1, *[1] * (task_vectors.dim() - 1))


def mean_where(chosen: Tensor, task_vectors: Tensor, weights: Sequence[float] = ()) -> Tensor:
    """Return the weighted mean of each entry over the task vectors chosen for it, or 0 for none."""
    shares = chosen * _column(weights or [1.0] * len(chosen), task_vectors)
    return (task_vectors * shares).sum(0) / shares.sum(0).clamp_(min=1e-30)


def selection(
    experts: Sequence[Tensor], pretrained: Tensor, density: float
) -> tuple[float, list[float]]:
    """Return the least variance that SCE selects in a tensor, and the experts' weights."""

    def varying() -> Iterator[tuple[list[Tensor], None]]:
        for each in pieces(experts, pretrained):
            variance = each.var(0, correction=0)
            yield [variance[variance > 0]], None

    threshold = 0.0
    if density < 1:
        some = any(len(group[0]) for group, _ in varying())
        threshold = magnitude_thresholds(varying, density)[0] if some else math.inf
    energies = torch.zeros(len(experts), dtype=torch.float64)
    for vectors in pieces(experts, pretrained):
        chosen = vectors[:, vectors.var(0, correction=0) >= threshold]
        energies += chosen.double().square().sum(1).cpu()
    return threshold, (energies / energies.sum() if energies.sum() else energies + 1).tolist()


@rule(paper="wan2024fusechat", elementwise=True, prepare=PerTensor("selected", selection))
def sce(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    density: Density = 1.0,
    selected: tuple[float, Sequence[float]] | None = None,
) -> Tensor:
    """SCE: select entries that vary, calculate the experts' weights, erase minority signs.

    Expert t has the weight Σ τ_t² over the selected entries of a tensor (in mergekit 1 where their
    means add up to less than 1e-6). An entry's sign is that of Σ_t τ_t, and the weighted mean of
    the τ_t that have it is added to θ_0.

    Hyperparameters:
        density: fraction of the entries that differ between experts to select, those with the
            largest variance, in (0, 1]; 1 selects all entries.
        selected: the least variance and the T weights; computed from these tensors by default.
    """
    threshold, weights = selected or selection(experts, pretrained, density)
    task_vectors = torch.stack([expert - pretrained for expert in experts])
    task_vectors *= task_vectors.var(0, correction=0) >= threshold
    agreeing = task_vectors * task_vectors.sum(0).sign() > 0
    return pretrained + mean_where(agreeing, task_vectors, weights)


def unique_factors(
    experts: Sequence[Tensor], pretrained: Tensor, epsilon: float, r: float, alpha: float
) -> list[float]:
    """Return RAM+'s 1 + r · min(ρ_t, α) of every expert."""
    shared, unique = torch.zeros(2, len(experts), dtype=torch.float64)
    for vectors in pieces(experts, pretrained) if r else ():
        changed = vectors.abs() > epsilon
        alone = changed & (changed.sum(0) == 1)
        unique += alone.sum(1).cpu()
        shared += (changed & ~alone).sum(1).cpu()
    return [1 + r * min(float(ratio), alpha) for ratio in shared / unique.clamp(min=1e-5)]


@rule(paper="yuan2026behavior", elementwise=True, prepare=PerTensor("factors", unique_factors))
def ram(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    epsilon: NotNegative = 1e-5,
    r: NotNegative = 0.0,
    alpha: NotNegative = 0.2,
    factors: Sequence[float] | None = None,
) -> Tensor:
    """RAM: θ_0 + the mean of an entry's changes over the experts that have changed it.

    RAM+ multiplies what expert t alone has changed by 1 + r · min(ρ_t, α). ρ_t is the number of
    entries that it has changed like others, divided by the number that it alone has changed.

    Hyperparameters:
        epsilon: the largest difference from θ_0 that does not count as a change.
        r: 0 is RAM; mergekit's ``ramplus_tl`` has 0.1.
        alpha: α.
        factors: of RAM+, T numbers; computed from these tensors by default.
    """
    factors = factors or unique_factors(experts, pretrained, epsilon, r, alpha)
    task_vectors = torch.stack([expert - pretrained for expert in experts])
    changed = task_vectors.abs() > epsilon
    task_vectors *= torch.where(changed.sum(0) == 1, _column(factors, task_vectors), 1)
    return pretrained + mean_where(changed, task_vectors)


@rule(paper="alchemonaut2024quartet", elementwise=True)
def nearswap(experts: Sequence[Tensor], pretrained: Tensor, *, t: NotNegative = 1e-4) -> Tensor:
    """NearSwap: θ_0 + the mean of the changes θ_t − θ_0, each limited to the range −t..t.

    Hyperparameters:
        t: the largest change of an entry.
    """
    limited = [(expert - pretrained).clamp_(-t, t) for expert in experts]
    return pretrained + torch.stack(limited).mean(0)


def importance(expert: Tensor, pretrained: Tensor) -> Tensor:
    """Return |τ| times its row's KL(softmax θ_t, softmax θ_0), in float64, unlike mergekit's."""
    p, q = (rows.double().softmax(-1).add_(1e-8) for rows in (expert, pretrained))
    divergence = (p / q).log_().mul_(p).sum(-1, keepdim=True)
    return (expert - pretrained).abs_().mul_(divergence.to(expert.dtype))


def fence(expert: Tensor, pretrained: Tensor) -> float:
    """Return median + 1.5 · interquartile range of the `importance` of a tensor's entries."""
    n, dtype = expert.numel(), precision([expert], pretrained)
    rows = [each.reshape(len(each) if each.dim() > 1 else 1, -1) for each in (expert, pretrained)]
    step = max(1, 4 * CHUNK // rows[0].shape[1])  # as many as a pass has counts

    def scores() -> Iterator[tuple[list[Tensor], None]]:
        for some in (slice(start, start + step) for start in range(0, len(rows[0]), step)):
            yield [importance(*(each[some].to(dtype) for each in rows))] * 3, None

    ranks = [(n - part * (n - 1) // 4) / n for part in (1, 2, 3)]  # of the quartiles, from the top
    low, median, high = magnitude_thresholds(scores, ranks)
    return median + 1.5 * (high - low)


def fences(experts: Sequence[Tensor], pretrained: Tensor) -> list[float]:
    """Return every expert's `fence`."""
    return [fence(expert, pretrained) for expert in experts]


@rule(paper="goddard2024arcee", rowwise=True, prepare=PerTensor("least", fences))
def arcee_fusion(
    experts: Sequence[Tensor], pretrained: Tensor, *, least: Sequence[float] | None = None
) -> Tensor:
    """Arcee Fusion: θ_0 + the changes with a large `importance`; the mean where experts share one.

    Large means at least the median + 1.5 · interquartile range of an expert's tensor.

    Hyperparameters:
        least: T importances to reach; computed from these tensors by default.
    """
    limits = least or fences(experts, pretrained)
    pairs = zip(experts, limits, strict=True)
    chosen = torch.stack([importance(expert, pretrained) >= limit for expert, limit in pairs])
    task_vectors = torch.stack([expert - pretrained for expert in experts])
    return pretrained + mean_where(chosen, task_vectors)
