"""Rules that select coordinates of task vectors τ_t: Breadcrumbs, DELLA and Consensus."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mergelib.merging.reading import PerTensor
from mergelib.messages.kinds import BelowOne, Density, NotNegative, PerExpert
from mergelib.numerics.selection import count_to_keep, magnitude_thresholds
from mergelib.registry import rule
from mergelib.rules.sparse import Combine, Reduce, combined
from mergelib.settings import per_expert

Rates = PerExpert[float]
Bounds = Sequence[tuple[float, float]]  # of every expert: the magnitudes that stay, both included


def magnitude_bounds(
    experts: Sequence[Tensor], pretrained: Tensor, density: Rates, gamma: Rates
) -> Bounds:
    """Return the magnitudes between which each expert's entries are kept, ends included.

    They bound the ceil(density · n) entries after the floor(gamma · n) largest. Entries that tie
    with an end are kept, so no task vector becomes empty.
    """
    count, entries, group = len(experts), pretrained.numel(), (experts, pretrained)
    kept = [count_to_keep(share, entries) for share in per_expert("density", density, count)]
    dropped = [int(share * entries) for share in per_expert("gamma", gamma, count)]
    last = [min(sum(pair), entries) for pair in zip(dropped, kept, strict=True)]
    low = magnitude_thresholds(lambda: [group], [n / entries for n in last])
    high = magnitude_thresholds(lambda: [group], [(n + 1) / entries for n in dropped])
    return list(zip(low, high, strict=True))


@rule(
    paper="davari2024model",
    elementwise=True,
    prepare=PerTensor("bounds", magnitude_bounds),
    affine_in="scale",
)
def breadcrumbs(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    density: PerExpert[Density] = 0.9,
    gamma: PerExpert[BelowOne] = 0.01,
    scale: PerExpert[float] = 0.3,
    combine: Combine = "task_arithmetic",
    weights: PerExpert[float] | None = None,
    reduce: Reduce = "mean",
    bounds: Bounds | None = None,
) -> Tensor:
    """Model Breadcrumbs: θ_0 + scale · Σ_t of task vectors without outliers and small entries.

    Hyperparameters:
        density: fraction of a tensor's entries to keep, in (0, 1], or one per expert.
        gamma: fraction to drop as outliers, the largest magnitudes, in [0, 1), or one per expert.
        scale: λ, for ``"task_arithmetic"`` also one per expert; for ``"ties"`` 1 is usual.
        combine: as in `dare`.
        weights: w_t for ``"ties"``, as in `ties`.
        reduce: as in `dare`.
        bounds: T pairs of magnitudes to trim at; computed from these tensors by default.
    """
    limits = magnitude_bounds(experts, pretrained, density, gamma) if bounds is None else bounds

    def bounded() -> Iterator[Tensor]:
        for expert, (low, high) in zip(experts, limits, strict=True):
            task_vector = expert - pretrained
            size = task_vector.abs()
            yield task_vector.mul_((size >= low) & (size <= high))

    return combined(pretrained, bounded(), len(experts), combine, scale, weights, reduce)


def uses(task_vector: Tensor, total: Tensor, mask_scale: float) -> Tensor:
    """Return the mask of coordinates that a task uses: |τ_t| > mask_scale · |Σ τ − τ_t|.

    At ``mask_scale`` 1 the mask makes the merged vector nearest to τ_t (TALL masks, Wang et al.,
    2024, Eq. 4); a smaller one keeps more.
    """
    return task_vector.abs() > mask_scale * (total - task_vector).abs()


@rule(paper="wang2024localizing", elementwise=True, affine_in="scale")
def consensus(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    mask_scale: PerExpert[NotNegative] = 0.4,
    min_tasks: int = 2,
    scale: float = 0.3,
) -> Tensor:
    """Consensus task arithmetic: θ_0 + scale · Σ τ on coordinates that enough tasks `uses`.

    Hyperparameters:
        mask_scale: factor of the other tasks' sum that an entry must exceed, at least 0, or one
            per expert.
        min_tasks: coordinates used by fewer tasks are reset to θ_0; 0 gives task arithmetic.
        scale: λ.
    """
    task_vectors = [expert - pretrained for expert in experts]
    total = torch.stack(task_vectors).sum(0)
    users = torch.zeros_like(total)
    factors = per_expert("mask_scale", mask_scale, len(experts))
    for task_vector, factor in zip(task_vectors, factors, strict=True):
        users += uses(task_vector, total, factor)
    return pretrained + scale * total * (users >= min_tasks)


def prune_by_rank(
    rows: Tensor, drop_rate: float, epsilon: float, generator: torch.Generator
) -> Tensor:
    """MagPrune: drop entries of ``(rows, n)`` at random, and rescale the others by 1 / (1 − p_i).

    Within a row p_i falls in equal steps from drop_rate + ε/2 for the smallest magnitude to
    drop_rate − ε/2 for the largest. Expectations stay, unlike with mergekit's one factor for all
    entries. Draws are made on the CPU, hence equal on all devices.
    """
    ranks = rows.abs().argsort(dim=1, stable=True).argsort(dim=1)  # 0 is the smallest
    fall = ranks / max(1, rows.shape[1] - 1) - 0.5
    probability = drop_rate - epsilon * fall
    draws = torch.rand(rows.shape, generator=generator).to(rows.device)
    return torch.where(draws >= probability, rows / (1 - probability), 0).to(rows.dtype)


@rule(paper="deep2024della", rowwise=True, draws=True, affine_in="scale")
def della(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    drop_rate: PerExpert[float] = 0.7,
    epsilon: PerExpert[float] = 0.2,
    combine: Combine = "ties",
    weights: PerExpert[float] | None = None,
    scale: PerExpert[float] = 1.0,
    reduce: Reduce = "mean",
    seed: int = 0,
) -> Tensor:
    """DELLA: prune by magnitude and chance, elect signs, and merge agreeing entries.

    Hyperparameters:
        drop_rate: mean drop probability p, or one per expert; 0 keeps all entries.
        epsilon: spread of the probabilities, or one per expert; p ± ε/2 must lie in [0, 1).
        combine: as in `dare`.
        weights: w_t for ``"ties"``, as in `ties`.
        scale: λ on the merged task vector; for ``"task_arithmetic"`` also one per expert.
        reduce: as in `dare`.
        seed: seed of the draws; `merge` derives one per part of a tensor.
    """
    rates = per_expert("drop_rate", drop_rate, len(experts))
    spreads = per_expert("epsilon", epsilon, len(experts))
    generator, pruned = torch.Generator().manual_seed(seed), []
    for expert, p, spread in zip(experts, rates, spreads, strict=True):
        spread = spread if p else 0.0
        if spread < 0 or p - spread / 2 < 0 or p + spread / 2 >= 1:
            raise ValueError(f"drop_rate ± epsilon/2 is {p} ± {spread / 2}, expected within [0, 1)")
        pruned.append(prune_by_rank(expert - pretrained, p, spread, generator))
    return combined(pretrained, pruned, len(experts), combine, scale, weights, reduce)
