"""Rules that select coordinates of task vectors τ_t: Breadcrumbs, DELLA and Consensus."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from mergelib.merging import Group
from mergelib.messages.kinds import BelowOne, NotNegative
from mergelib.numerics.selection import count_to_keep, magnitude_thresholds
from mergelib.registry import rule
from mergelib.rules.sparse import elect_and_reduce

Bounds = Sequence[tuple[float, float]]  # of every expert: the magnitudes that stay, both included


def magnitude_bounds(group: Group, density: float, gamma: float) -> Bounds:
    """Return the magnitudes between which each expert's entries are kept, ends included.

    They bound the ceil(density · n) entries after the floor(gamma · n) largest. Entries that tie
    with an end are kept, so no task vector becomes empty.
    """
    entries = group[0][0].numel()
    dropped = int(gamma * entries)
    last = min(dropped + count_to_keep(density, entries), entries)
    low = magnitude_thresholds(lambda: [group], last / entries)
    high = magnitude_thresholds(lambda: [group], (dropped + 1) / entries)
    return list(zip(low, high, strict=True))


def _bounds(
    tensors: Callable[[], Iterable[tuple[str, Group]]], *, density: float, gamma: float, **_: Any
) -> Mapping[str, dict[str, Any]]:
    """First pass of Breadcrumbs: the bounds of every tensor."""
    count_to_keep(density, 1)  # refuse a fraction out of range even without tensors
    return {key: {"bounds": magnitude_bounds(group, density, gamma)} for key, group in tensors()}


@rule(
    paper="davari2024model",
    elementwise=True,
    prepare=_bounds,
    prepared=("bounds",),
    affine_in="scale",
)
def breadcrumbs(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    density: float = 0.9,
    gamma: BelowOne = 0.01,
    scale: float = 0.3,
    bounds: Bounds | None = None,
) -> Tensor:
    """Model Breadcrumbs: θ_0 + scale · Σ_t of task vectors without outliers and small entries.

    Hyperparameters:
        density: fraction of a tensor's entries to keep, in (0, 1].
        gamma: fraction to drop as outliers, the largest magnitudes, in [0, 1).
        scale: λ; density 1 and gamma 0 give task arithmetic.
        bounds: T pairs of magnitudes to trim at; computed from these tensors by default.
    """
    if bounds is None:
        bounds = magnitude_bounds((list(experts), pretrained), density, gamma)
    merged = pretrained.clone()
    for expert, (low, high) in zip(experts, bounds, strict=True):
        task_vector = expert - pretrained
        size = task_vector.abs()
        merged.add_(task_vector.mul_((size >= low) & (size <= high)), alpha=scale)
    return merged


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
    mask_scale: NotNegative = 0.4,
    min_tasks: int = 2,
    scale: float = 0.3,
) -> Tensor:
    """Consensus task arithmetic: θ_0 + scale · Σ τ on coordinates that enough tasks `uses`.

    Hyperparameters:
        mask_scale: factor of the other tasks' sum that an entry must exceed, at least 0.
        min_tasks: coordinates used by fewer tasks are reset to θ_0; 0 gives task arithmetic.
        scale: λ.
    """
    task_vectors = [expert - pretrained for expert in experts]
    total = torch.stack(task_vectors).sum(0)
    users = torch.zeros_like(total)
    for task_vector in task_vectors:
        users += uses(task_vector, total, mask_scale)
    return pretrained + scale * total * (users >= min_tasks)


def prune_by_rank(
    rows: Tensor, drop_rate: float, epsilon: float, generator: torch.Generator
) -> Tensor:
    """MagPrune: drop entries of ``(rows, n)`` at random, and rescale the others by 1 / (1 − p_i).

    Within a row p_i falls in equal steps from drop_rate + ε/2 for the smallest magnitude to
    drop_rate − ε/2 for the largest, so expectations stay. Draws are made on the CPU, hence equal on
    all devices.
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
    drop_rate: float = 0.7,
    epsilon: float = 0.2,
    scale: float = 1.0,
    reduce: Literal["mean", "sum"] = "mean",
    seed: int = 0,
) -> Tensor:
    """DELLA: prune by magnitude and chance, elect signs, and merge agreeing entries.

    Hyperparameters:
        drop_rate: mean drop probability p.
        epsilon: spread of the probabilities; p ± ε/2 must lie in [0, 1).
        scale: λ on the merged task vector, which is added to θ_0.
        reduce: ``"mean"`` or ``"sum"`` of agreeing entries; see `elect_and_reduce`.
        seed: seed of the draws; `merge` derives one per part of a tensor.
    """
    if epsilon < 0 or drop_rate - epsilon / 2 < 0 or drop_rate + epsilon / 2 >= 1:
        raise ValueError(
            f"drop_rate ± epsilon/2 is {drop_rate} ± {epsilon / 2}, expected within [0, 1)"
        )
    generator = torch.Generator().manual_seed(seed)
    pruned = [prune_by_rank(e - pretrained, drop_rate, epsilon, generator) for e in experts]
    return pretrained + scale * elect_and_reduce(torch.stack(pruned), reduce)
