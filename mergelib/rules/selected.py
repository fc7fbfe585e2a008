"""Rules that average the entries of task vectors τ_t = θ_t − θ_0 that each of them selects.

SCE selects by variance between experts and by sign; RAM what training has changed; Arcee Fusion
what has changed more than most entries. NearSwap limits changes instead.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mergelib.merging import Group
from mergelib.merging.applying import CHUNK, precision
from mergelib.messages.kinds import Density, NotNegative
from mergelib.numerics.selection import magnitude_thresholds
from mergelib.registry import rule
from mergelib.rules.arithmetic import pieces

Tensors = Callable[[], Iterable[tuple[str, Group]]]
Settings = Mapping[str, dict[str, Any]]


def mean_where(
    chosen: Tensor, task_vectors: Tensor, weights: Sequence[float] | None = None
) -> Tensor:
    """Return per entry the mean of the task vectors that are chosen there, or 0: all ``(T, …)``."""
    shares = chosen.to(task_vectors.dtype)
    if weights is not None:
        shares *= _column(weights, task_vectors)
    total = (task_vectors * shares).sum(0)
    return total.div_(shares.sum(0).clamp_(min=torch.finfo(total.dtype).tiny))


def _column(values: Sequence[float], task_vectors: Tensor) -> Tensor:
    return task_vectors.new_tensor(values).view(-1, *[1] * (task_vectors.dim() - 1))


def _task_vectors(experts: Sequence[Tensor], pretrained: Tensor) -> Tensor:
    return torch.stack([expert - pretrained for expert in experts])


def variance(task_vectors: Tensor) -> Tensor:
    """Return Σ_t (τ_t − mean)² / T, added up so that an entry's place does not matter."""
    count, zero = len(task_vectors), torch.zeros_like(task_vectors[0])
    mean = sum(task_vectors, zero) / count
    return sum(((each - mean).square() for each in task_vectors), zero) / count


def selection(
    experts: Sequence[Tensor], pretrained: Tensor, density: float
) -> tuple[float, list[float]]:
    """Return the least variance that SCE selects in a tensor, and the experts' weights."""

    def varying() -> Iterator[tuple[list[Tensor], None]]:
        for each in map(variance, pieces(experts, pretrained)):
            yield [each[each > 0]], None

    threshold = 0.0
    if density < 1:
        any_varies = any(len(group[0]) for group, _ in varying())
        threshold = magnitude_thresholds(varying, density)[0] if any_varies else math.inf
    energies = torch.zeros(len(experts), dtype=torch.float64)
    for vectors in pieces(experts, pretrained):
        chosen = vectors[:, variance(vectors) >= threshold]
        energies += chosen.double().square().sum(1).cpu()
    total = energies.sum()
    return threshold, (energies / total if total else energies + 1).tolist()


def _selections(tensors: Tensors, at: Settings) -> Settings:
    """First pass of SCE: what is selected in each tensor, and the weights."""
    return {
        key: {"selected": selection(*group, at[key]["density"])}  # type: ignore[arg-type]
        for key, group in tensors()
    }


@rule(paper="wan2024fusechat", elementwise=True, prepare=_selections, prepared=("selected",))
def sce(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    density: Density = 1.0,
    selected: tuple[float, Sequence[float]] | None = None,
) -> Tensor:
    """SCE: select entries that vary, calculate weights, erase minority signs: θ_0 + their mean.

    Expert t has weight Σ τ_t² over a tensor's selected entries. An entry's sign is that of Σ_t τ_t,
    and the mean is over the experts that have it.

    Hyperparameters:
        density: fraction of the entries that differ between experts to select, those with the
            largest variance, in (0, 1]; 1 selects all entries.
        selected: the least variance and the T weights; computed from these tensors by default.
    """
    threshold, weights = selected or selection(experts, pretrained, density)
    task_vectors = _task_vectors(experts, pretrained)
    task_vectors *= variance(task_vectors) >= threshold
    agreeing = task_vectors * task_vectors.sum(0).sign() > 0
    return pretrained + mean_where(agreeing, task_vectors, weights)


def _rescaling(tensors: Tensors, at: Settings) -> Settings:
    """First pass of RAM+: the factors of the entries that one expert alone has changed."""
    if not any(settings["r"] for settings in at.values()):
        return {}
    return {key: {"factors": unique_factors(*group, **at[key])} for key, group in tensors()}


def unique_factors(
    experts: Sequence[Tensor], pretrained: Tensor | None, epsilon: float, r: float, alpha: float
) -> list[float]:
    """Return RAM+'s 1 + r · min(ρ_t, α), with ρ_t the ratio of shared to unique changes."""
    shared, unique = torch.zeros(2, len(experts), dtype=torch.float64)
    for vectors in pieces(experts, pretrained):
        changed = vectors.abs() > epsilon
        alone = changed & (changed.sum(0) == 1)
        unique += alone.sum(1).cpu()
        shared += (changed & ~alone).sum(1).cpu()
    return (1 + r * (shared / unique.clamp(min=1e-5)).clamp(max=alpha)).tolist()


@rule(paper="yuan2026behavior", elementwise=True, prepare=_rescaling, prepared=("factors",))
def ram(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    epsilon: NotNegative = 1e-5,
    r: NotNegative = 0.0,
    alpha: NotNegative = 0.2,
    factors: Sequence[float] | None = None,
) -> Tensor:
    """RAM: θ_0 + the mean of each entry's changes over the experts that have changed it.

    Made for reinforcement learning, which leaves most entries as they were. RAM+ multiplies changes
    of one expert alone by 1 + r · min(ρ_t, α), with ρ_t the ratio of the entries that expert t has
    changed like others to those that it alone has changed.

    Hyperparameters:
        epsilon: the largest difference that does not count as a change.
        r: 0 for RAM; mergekit's ``ramplus_tl`` has 0.1.
        alpha: the largest ρ_t that counts.
        factors: T factors of such changes; computed from these tensors by default.
    """
    task_vectors = _task_vectors(experts, pretrained)
    changed = task_vectors.abs() > epsilon
    if r:
        factors = factors or unique_factors(experts, pretrained, epsilon, r, alpha)
        scaled = task_vectors * _column(factors, task_vectors)
        task_vectors = torch.where(changed.sum(0) == 1, scaled, task_vectors)
    return pretrained + mean_where(changed, task_vectors)


@rule(paper="alchemonaut2024quartet", elementwise=True)
def nearswap(experts: Sequence[Tensor], pretrained: Tensor, *, t: NotNegative = 1e-4) -> Tensor:
    """NearSwap: θ_0 + the mean of the changes θ_t − θ_0, each limited to −t..t.

    An entry that is nearer than t to the expert's becomes the expert's. mergekit has one expert.

    Hyperparameters:
        t: the largest change of an entry.
    """
    return pretrained + _task_vectors(experts, pretrained).clamp_(-t, t).mean(0)


def importance(expert: Tensor, pretrained: Tensor) -> Tensor:
    """Return |τ| times its row's divergence KL(softmax θ_t, softmax θ_0), computed in float64."""
    p, q = (rows.double().softmax(-1) + 1e-8 for rows in (expert, pretrained))
    divergence = (p * (p / q).log()).sum(-1, keepdim=True)
    return (expert - pretrained).abs() * divergence.to(expert.dtype)


def fence(expert: Tensor, pretrained: Tensor) -> float:
    """Return median + 1.5 · (third − first quartile) of the `importance` of a tensor's entries."""
    dtype, entries = precision([expert], pretrained), expert.numel()
    shape = (len(expert) if expert.dim() > 1 else 1, -1)
    rows = [tensor.reshape(shape) for tensor in (expert, pretrained)]
    step = max(1, CHUNK // rows[0].shape[1])

    def scores() -> Iterator[tuple[list[Tensor], None]]:
        for start in range(0, len(rows[0]), step):
            yield [importance(*(part[start : start + step].to(dtype) for part in rows))] * 3, None

    ranks = [entries - int(quarter / 4 * (entries - 1)) for quarter in (1, 2, 3)]
    low, median, high = magnitude_thresholds(scores, [rank / entries for rank in ranks])
    return median + 1.5 * (high - low)


def _fences(tensors: Tensors, _: Settings) -> Settings:
    """First pass of Arcee Fusion: the least importance of the entries that every expert changes."""
    return {
        key: {"fences": [fence(expert, pretrained) for expert in experts]}
        for key, (experts, pretrained) in tensors()
        if pretrained is not None
    }


@rule(paper="goddard2024arcee", rowwise=True, prepare=_fences, prepared=("fences",))
def arcee_fusion(
    experts: Sequence[Tensor], pretrained: Tensor, *, fences: Sequence[float] | None = None
) -> Tensor:
    """Arcee Fusion: θ_0 + the mean of the changes that are important, of each expert's tensor.

    The `importance` of an entry is its change, times the divergence between the softmax of its row
    in the expert and in θ_0. Important entries reach the median + 1.5 · interquartile range.
    mergekit has one expert, and draws a million entries for the quartiles of larger tensors.

    Hyperparameters:
        fences: T importances to reach; computed from these tensors by default.
    """
    if fences is None:
        fences = [fence(expert, pretrained) for expert in experts]
    chosen = [
        importance(expert, pretrained) >= least
        for expert, least in zip(experts, fences, strict=True)
    ]
    return pretrained + mean_where(torch.stack(chosen), _task_vectors(experts, pretrained))
