"""Merge updates into factors B and A: weighted sums by concatenation, others by truncation."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mergelib.adapters.comparing import FULL, OR_EXCLUDE, Adapters, dora_refusal
from mergelib.merging import Source, merge_checked, merge_tensors
from mergelib.merging.applying import not_finite, rounded, too_large
from mergelib.numerics.linalg import truncated_svd
from mergelib.progress import progress
from mergelib.registry import Method
from mergelib.statedict import is_finite

Device = torch.device | str | None


class Factors(NamedTuple):
    """Factors of an update, ``(m, r)`` and ``(r, n)``, and the relative error of rounded ones."""

    b: Tensor
    a: Tensor
    error: Callable[[Tensor, Tensor], float]


def is_sum(method: Method, source: Source, opened: Adapters, rank: int | None) -> bool:
    """Whether the result is a weighted sum of products; ValueError if not, and without a rank."""
    for adapter in opened.values():
        for key in source.kinds:
            if "magnitude_vector" in adapter.parts.get(key, ()):
                if rank is None:
                    raise ValueError(dora_refusal(adapter, key))
                return False
    if _has_weights(method) or rank is not None:
        return _has_weights(method)
    ranks = [
        sum(len(adapter.factors(key)[1]) for adapter in opened.values() if key in adapter.parts)
        for key in source.kinds
    ]
    raise ValueError(
        f"{method.name} is not a weighted sum of the updates, so its result has a larger rank than "
        f"they have: pass rank= to truncate it (their ranks add up to {max(ranks, default=1)}), or "
        f"{FULL}"
    )


def _has_weights(method: Method) -> bool:
    return method.linear and method.elementwise and method.prepare is None


def weights_of(
    method: Method, source: Source, hyperparameters: Mapping[str, Any]
) -> dict[str, list[float]]:
    """Return each adapter's weight in a weighted sum, by key: the result for unit vectors."""
    if not _has_weights(method):
        return {}
    units = torch.eye(len(source.experts), dtype=torch.float64)
    probes = {
        name: {key: unit.clone() for key in source}  # else the keys would be tied
        for name, unit in zip(source.experts, units, strict=True)
    }
    zeros = {key: torch.zeros_like(units[0]) for key in source}
    merged = merge_checked(method.name, probes, zeros, **hyperparameters)
    return {key: weights.tolist() for key, weights in merged.items()}


def check_whole(method: Method, source: Source, weights: Mapping[str, Sequence[float]]) -> None:
    """Refuse modules that were trained whole if the method needs pretrained ones not here."""
    for key in (key for key in source if key not in source.kinds):
        needed = abs(_rest(weights[key])) > 1e-9 if weights else method.needs_pretrained
        if needed and source.pretrained is None:
            raise ValueError(
                f"{key!r} was trained whole, and {method.name} with these settings needs the "
                f"pretrained tensor: {OR_EXCLUDE}"
            )


def _rest(weights: Sequence[float]) -> float:
    """Return the weight of the pretrained model."""
    return 1 - math.fsum(weights)


def summed(
    method: Method,
    source: Source,
    opened: Adapters,
    weights: Mapping[str, Sequence[float]],
    rank: int | None,
    device: Device,
) -> Iterator[tuple[str, Factors | Tensor]]:
    """Yield weighted sums of updates as factors in float64; and modules that were trained whole."""
    for key in (key for key in source if key not in source.kinds):
        yield key, _whole(source, key, weights[key])
    for key in progress(source.kinds, method.name, len(source.kinds)):
        factors = []
        for (name, adapter), weight in zip(opened.items(), weights[key], strict=True):
            if key not in adapter.parts or not weight:
                continue
            b, a, scale = adapter.factors(key)
            for factor in (b, a):
                if not is_finite(factor):
                    raise ValueError(not_finite(f"a factor of {name}[{key!r}]", factor))
            b, a = (factor.flatten(1).to(device, torch.float64) for factor in (b, a))
            factors.append((weight * scale * b, a))
        if factors:
            b, a = torch.cat([b for b, _ in factors], 1), torch.cat([a for _, a in factors])
            most = min(len(b), a.shape[1], rank or len(a))  # more would be of no use
            shorter = (b, a) if len(a) <= most else _shortened(b, a, most)
            yield key, Factors(*shorter, partial(_error_of_factors, b, a))


def _whole(source: Source, key: str, weights: Sequence[float]) -> Tensor:
    """Return the weighted sum of what was learned, added to the pretrained tensor."""
    reference = source.reference[key]
    total = torch.zeros(reference.shape, dtype=torch.float64)
    for number, weight in enumerate(weights):
        total.add_(source.read(key, number).double(), alpha=weight)
    if source.pretrained is not None:
        total.add_(source.pretrained[key].double(), alpha=_rest(weights))
    return rounded_once(key, total, reference.dtype)


def rounded_once(key: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor in a dtype; ValueError if that does not hold its values."""
    result = rounded(tensor, dtype)
    if not is_finite(result):
        raise ValueError(f"merging {key!r} overflowed: it {too_large(tensor, dtype)}")
    return result


def truncated(
    method: Method,
    source: Source,
    opened: Adapters,
    hyperparameters: Mapping[str, Any],
    rank: int | None,
    device: Device,
) -> Iterator[tuple[str, Factors | Tensor]]:
    """Yield any method's results, updates as factors of a rank."""
    assert rank is not None
    for key, merged in merge_tensors(method, source, hyperparameters, device=device, shown=True):
        if key not in source.kinds:
            yield key, merged
            continue
        owner = next(adapter for adapter in opened.values() if key in adapter.parts)
        matrix = (merged.T if owner.turned(key) else merged).flatten(1).to(device)
        if not matrix.any():
            continue
        u, s, vh = truncated_svd(matrix, rank)
        root = s.sqrt()
        yield key, Factors(u * root, root[:, None] * vh, partial(_error_of_matrix, matrix))


def _shortened(b: Tensor, a: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return factors of the nearest product of this rank (Eckart and Young, 1936)."""
    (qb, rb), (qa, ra) = torch.linalg.qr(b), torch.linalg.qr(a.T)
    u, s, vh = torch.linalg.svd(rb @ ra.T, full_matrices=False)
    root = s[:rank].sqrt()
    return qb @ u[:, :rank] * root, root[:, None] * (vh[:rank] @ qa.T)


def _error_of_factors(b: Tensor, a: Tensor, b_written: Tensor, a_written: Tensor) -> float:
    """Return the relative error of a product of factors, which is not formed."""
    pairs = (torch.cat([b, b_written], 1), torch.cat([a, -a_written])), (b, a)
    triangles = [[torch.linalg.qr(f, mode="r").R for f in (b, a.T)] for b, a in pairs]
    return _ratio(*(rb @ ra.T for rb, ra in triangles))


def _error_of_matrix(matrix: Tensor, b: Tensor, a: Tensor) -> float:
    return _ratio(matrix.double() - b @ a, matrix.double())


def _ratio(error: Tensor, whole: Tensor) -> float:
    return float(error.norm() / whole.norm().clamp(min=1e-300))
