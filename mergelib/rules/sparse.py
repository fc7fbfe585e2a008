"""Sparse rules: TIES (Yadav et al., 2023) and DARE (Yu et al., 2024), and their steps.

Both act on task vectors τ_t = θ_t − θ_0. TIES trims each to its largest entries, elects one sign
per coordinate, and averages the entries that agree. DARE drops random entries and rescales the
rest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from mergelib.merging import Group
from mergelib.messages.kinds import BelowOne
from mergelib.numerics.selection import count_to_keep, magnitude_thresholds
from mergelib.registry import rule

Reduce = Literal["mean", "sum"]


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

    Draws are made on the CPU, hence equal on all devices.
    """
    mask = torch.rand(task_vector.shape, generator=generator) >= drop_rate
    return (task_vector * mask.to(task_vector.device)).div_(1 - drop_rate)


def elect_and_reduce(task_vectors: Tensor, reduce: Reduce) -> Tensor:
    """Elect the sign of the sum per coordinate, then average (or sum) the entries that agree.

    Task vectors have shape ``(T, …)``. Zero entries do not count in the ``"mean"``; a coordinate
    whose sum is exactly zero stays zero.
    """
    sign = task_vectors.sum(0).sign_()
    agreeing = (task_vectors * sign).relu_()  # magnitudes of the entries that agree, else 0
    total = agreeing.sum(0).mul_(sign)
    if reduce == "mean":
        total.div_(agreeing.sign_().sum(0).clamp_(min=1))
    return total


def _thresholds(
    tensors: Callable[[], Iterable[tuple[str, Group]]],
    *,
    density: float,
    trim: Literal["model", "tensor"],
    **_: Any,
) -> Mapping[str, dict[str, Any]]:
    """First pass of TIES: the magnitude that each expert's entries must reach, per key."""
    count_to_keep(density, 1)  # refuse a density out of range even without tensors
    if trim == "model":
        keys: dict[str, None] = {}

        def groups() -> Iterator[Group]:
            for key, group in tensors():
                keys[key] = None
                yield group

        shared = magnitude_thresholds(groups, density)
        return {key: {"thresholds": shared} for key in keys}

    def alone(group: Group) -> list[float]:
        return magnitude_thresholds(lambda: [group], density)

    return {key: {"thresholds": alone(group)} for key, group in tensors()}


@rule(
    paper="yadav2023ties",
    elementwise=True,
    prepare=_thresholds,
    prepared=("thresholds",),
    affine_in="scale",
)
def ties(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    density: float = 0.2,
    scale: float = 1.0,
    reduce: Reduce = "mean",
    trim: Literal["model", "tensor"] = "model",
    thresholds: Sequence[float] | None = None,
) -> Tensor:
    """TIES: trim, elect signs, merge agreeing entries: θ_0 + scale · TIES(τ_1 … τ_T).

    Hyperparameters:
        density: fraction of each task vector's entries that trimming keeps, in (0, 1]: the
            ceil(density · n) largest magnitudes and ties with the smallest of them.
        scale: λ on the merged task vector; about 1 for ``"mean"``, 0.3 for ``"sum"``.
        reduce: ``"mean"`` over agreeing entries (the paper), or ``"sum"`` (AdaMerging's variant).
        trim: the largest of the whole ``"model"`` (the paper), or of each ``"tensor"``.
        thresholds: T magnitudes to trim at; computed from these tensors by default.
    """
    if thresholds is None:
        thresholds = magnitude_thresholds(lambda: [(experts, pretrained)], density)
    return pretrained + scale * elect_and_reduce(trimmed(experts, pretrained, thresholds), reduce)


@rule(paper="yu2024language", elementwise=True, draws=True, affine_in="scale")
def dare(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    drop_rate: BelowOne = 0.9,
    combine: Literal["task_arithmetic", "ties"] = "task_arithmetic",
    scale: float | None = None,
    seed: int = 0,
) -> Tensor:
    """DARE: drop random entries of the task vectors, rescale the rest, then combine them.

    Hyperparameters:
        drop_rate: p in [0, 1); other entries are divided by 1 − p, so expectations stay.
        combine: ``"task_arithmetic"`` adds the sparse vectors up; ``"ties"`` elects signs and
            averages agreeing entries, without trimming.
        scale: λ; by default 0.3 for ``"task_arithmetic"`` and 1.0 for ``"ties"``.
        seed: seed of the draws; `merge` derives one per part of a tensor.
    """
    generator = torch.Generator().manual_seed(seed)
    thinned = (drop_and_rescale(expert - pretrained, drop_rate, generator) for expert in experts)
    if combine == "ties":
        merged = elect_and_reduce(torch.stack(list(thinned)), "mean")
        return pretrained + (1.0 if scale is None else scale) * merged
    total = pretrained.clone()
    for task_vector in thinned:
        total.add_(task_vector, alpha=0.3 if scale is None else scale)
    return total
