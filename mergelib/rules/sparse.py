"""Sparse rules: TIES (Yadav et al., 2023) and DARE (Yu et al., 2024), and their steps.

Both act on task vectors τ_t = θ_t − θ_0. TIES trims each to its largest entries, elects one sign
per coordinate, and averages the entries that agree. DARE drops random entries and rescales the
rest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from mergelib.merging import Group
from mergelib.messages.kinds import BelowOne, Density, PerExpert
from mergelib.numerics.selection import magnitude_thresholds
from mergelib.registry import rule
from mergelib.settings import per_expert

Reduce = Literal["mean", "sum"]
Combine = Literal["task_arithmetic", "ties"]


def trim_below(task_vector: Tensor, threshold: float) -> Tensor:
    """Zero the entries with magnitude below the threshold."""
    # hardshrink zeroes what is at most its bound, so the bound is the number just below.
    bound = torch.tensor(threshold, dtype=task_vector.dtype)
    below = torch.nextafter(bound, torch.zeros_like(bound)).item()
    return torch.nn.functional.hardshrink(task_vector, below)


def trimmed(experts: Sequence[Tensor], pretrained: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Return the task vectors, ``(T, …)``, each without its entries below its threshold."""
    pairs = zip(experts, thresholds, strict=True)
    return torch.stack([trim_below(expert - pretrained, threshold) for expert, threshold in pairs])


def drop_and_rescale(task_vector: Tensor, drop_rate: float, generator: torch.Generator) -> Tensor:
    """Drop each entry with probability ``drop_rate`` and divide the rest by 1 − drop_rate.

    Draws are made on the CPU, hence equal on all devices. mergekit keeps the sum of magnitudes.
    """
    mask = torch.rand(task_vector.shape, generator=generator) >= drop_rate
    return (task_vector * mask.to(task_vector.device)).div_(1 - drop_rate)


def elect_and_reduce(
    task_vectors: Tensor, reduce: Reduce, weights: PerExpert[float] | None = None
) -> Tensor:
    """Elect the sign of Σ w_t τ_t per coordinate, then average (or sum) the entries that agree.

    Task vectors have shape ``(T, …)``. The ``"mean"`` divides by the sum of |w_t| over the entries
    that agree and are not zero. A coordinate whose sum is exactly zero stays zero.
    """
    if weights is not None:
        factors = task_vectors.new_tensor(per_expert("weights", weights, len(task_vectors)))
        factors = factors.view(-1, *[1] * (task_vectors.dim() - 1))
        task_vectors = task_vectors * factors
    sign = task_vectors.sum(0).sign_()
    agreeing = (task_vectors * sign).relu_()  # magnitudes of the entries that agree, else 0
    total = agreeing.sum(0).mul_(sign)
    if reduce == "mean":
        counted = agreeing.sign_() if weights is None else agreeing.sign_().mul_(factors.abs())
        total.div_(counted.sum(0).clamp_(min=torch.finfo(total.dtype).tiny))  # 0 stays 0
    return total


def combined(
    pretrained: Tensor,
    task_vectors: Iterable[Tensor],
    count: int,
    combine: Combine,
    scale: PerExpert[float],
    weights: PerExpert[float] | None,
    reduce: Reduce,
) -> Tensor:
    """Return θ_0 + Σ_t scale_t τ_t, or for ``"ties"`` θ_0 + scale · `elect_and_reduce`."""
    if combine == "ties":
        if isinstance(scale, Sequence):
            raise ValueError(f"scale is {scale}, expected one number with 'ties': set weights")
        return pretrained + scale * elect_and_reduce(torch.stack([*task_vectors]), reduce, weights)
    if weights is not None:
        raise ValueError(f"weights is {weights}, which only 'ties' has: set scale per expert")
    merged = pretrained.clone()
    for task_vector, factor in zip(task_vectors, per_expert("scale", scale, count), strict=True):
        merged.add_(task_vector, alpha=factor)
    return merged


def trim_thresholds(
    tensors: Callable[[], Iterable[tuple[str, Group]]], at: Mapping[str, dict[str, Any]]
) -> Mapping[str, dict[str, Any]]:
    """First pass of TIES: the magnitude that each expert's entries must reach, per key."""
    whole = {key: own["density"] for key, own in at.items() if own["trim"] == "model"}
    thresholds: dict[str, list[float]] = {}
    if whole:
        first, density = next(iter(whole.items()))
        other = next((key for key in whole if whole[key] != density), None)
        if other is not None:
            raise ValueError(
                f"density is {density} for {first!r} and {whole[other]} for {other!r}, but the "
                "whole model is trimmed to one density: set trim to 'tensor'"
            )
        groups = partial(filter, lambda named: named[0] in whole)
        shared = magnitude_thresholds(lambda: (g for _, g in groups(tensors())), density)
        thresholds = dict.fromkeys(whole, shared)
    if len(whole) < len(at):
        for key, group in tensors():
            if key not in whole:
                thresholds[key] = magnitude_thresholds(partial(iter, [group]), at[key]["density"])
    return {key: {"thresholds": own} for key, own in thresholds.items()}


@rule(
    paper="yadav2023ties",
    elementwise=True,
    prepare=trim_thresholds,
    prepared=("thresholds",),
    affine_in="scale",
)
def ties(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    density: PerExpert[Density] = 0.2,
    weights: PerExpert[float] | None = None,
    scale: float = 1.0,
    reduce: Reduce = "mean",
    trim: Literal["model", "tensor"] = "model",
    thresholds: Sequence[float] | None = None,
) -> Tensor:
    """TIES: trim, elect signs, merge agreeing entries: θ_0 + scale · TIES(τ_1 … τ_T).

    Hyperparameters:
        density: fraction of each task vector's entries that trimming keeps, in (0, 1], or one per
            expert: the ceil(density · n) largest magnitudes and ties with the smallest of them.
        weights: w_t, factors of the trimmed task vectors, 1 by default. The ``"mean"`` of agreeing
            entries is weighted by |w_t|.
        scale: λ on the merged task vector; about 1 for ``"mean"``, 0.3 for ``"sum"``.
        reduce: ``"mean"`` over agreeing entries (the paper), or ``"sum"`` (AdaMerging's variant).
        trim: the largest of the whole ``"model"`` (the paper), or of each ``"tensor"``.
        thresholds: T magnitudes to trim at; computed from these tensors by default.
    """
    if thresholds is None:
        thresholds = magnitude_thresholds(lambda: [(experts, pretrained)], density)
    task_vectors = trimmed(experts, pretrained, thresholds)
    return pretrained + scale * elect_and_reduce(task_vectors, reduce, weights)


@rule(paper="yu2024language", elementwise=True, draws=True, affine_in="scale")
def dare(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    drop_rate: PerExpert[BelowOne] = 0.9,
    combine: Combine = "task_arithmetic",
    weights: PerExpert[float] | None = None,
    scale: PerExpert[float] | None = None,
    reduce: Reduce = "mean",
    seed: int = 0,
) -> Tensor:
    """DARE: drop random entries of the task vectors, rescale the rest, then combine them.

    Hyperparameters:
        drop_rate: p in [0, 1), or one per expert; other entries are divided by 1 − p, so
            expectations stay.
        combine: ``"task_arithmetic"`` adds the sparse vectors up; ``"ties"`` elects signs and
            merges agreeing entries, without trimming.
        weights: w_t for ``"ties"``, as in `ties`.
        scale: λ, for ``"task_arithmetic"`` also one per expert; by default 0.3 for it and 1.0 for
            ``"ties"``.
        reduce: ``"mean"`` or ``"sum"`` of the entries that ``"ties"`` finds to agree.
        seed: seed of the draws; `merge` derives one per part of a tensor.
    """
    generator = torch.Generator().manual_seed(seed)
    rates = zip(experts, per_expert("drop_rate", drop_rate, len(experts)), strict=True)
    thinned = (drop_and_rescale(expert - pretrained, p, generator) for expert, p in rates)
    if scale is None:
        scale = 1.0 if combine == "ties" else 0.3
    return combined(pretrained, thinned, len(experts), combine, scale, weights, reduce)
