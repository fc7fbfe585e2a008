"""Exact k-th largest magnitude of task vectors τ_t = θ_t − θ_0, without a sort or a full copy.

The threshold of TIES (Yadav et al., 2023) is an order statistic of perhaps 10⁸ numbers, which may
be in files. The bits of a number that is not negative are ordered as the number, so one pass counts
how often each value of the highest 16 bits occurs, which fixes these bits of the answer, and a
second pass counts the next 16 among the numbers that agree so far. Float64 needs two more passes.
Symbols: T experts, n entries each, k = ceil(density · n).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from mergelib.messages.kinds import PerExpert
from mergelib.settings import per_expert

Parameters = Iterable[tuple[Sequence[Tensor], Tensor | None]]

CHUNK = 2**18  # entries at a time, which fit a cache
DIGIT = 16  # bits that one pass finds
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def count_to_keep(density: float, entries: int) -> int:
    """Return ceil(density · entries), at least 1: the number of entries that trimming keeps.

    The product is rounded to six decimals first: 0.07 of 100 is 7, not 7.000000000000001. A density
    outside (0, 1] is a ``ValueError``.
    """
    if not 0 < density <= 1:
        raise ValueError(f"density is {density}, expected above 0 and at most 1")
    return max(1, math.ceil(round(density * entries, 6)))


@torch.no_grad()
def magnitude_thresholds(
    tensors: Callable[[], Parameters], density: PerExpert[float]
) -> list[float]:
    """Return the k-th largest |θ_t − θ_0| of each expert over all tensors.

    Trimming to |θ_t − θ_0| ≥ threshold keeps k entries, or more if some equal it. Differences use
    float32, or float64 if the tensors do. NaN ranks below all numbers.

    Args:
        tensors: returns an iterator over (T experts' tensors, pretrained tensor) at every call;
            with None for pretrained the experts' tensors are task vectors.
        density: k = ceil(density · n), in (0, 1]; a number, or one per expert.

    Raises:
        ValueError: density is out of range, or there are no entries.
    """
    return _search(tensors, density, torch.float32) or _search(tensors, density, torch.float64)


def _search(
    tensors: Callable[[], Parameters], density: PerExpert[float], dtype: torch.dtype
) -> list[float]:
    """Return the thresholds, or nothing if a tensor is wider than ``dtype``."""
    ranks: dict[int, int] = {}  # of the answers, among the numbers that agree with them so far
    found: dict[int, int] = {}  # the answers' highest bits
    for shift in range(8 * dtype.itemsize - DIGIT, -1, -DIGIT):
        counts: dict[int, Tensor] = {}
        for t, bits in _magnitudes(tensors, dtype):
            if bits.dtype != _BITS[dtype]:
                return []
            if found:
                bits = bits[bits >> (shift + DIGIT) == found[t]]
            digits = (bits >> shift).bitwise_and_(2**DIGIT - 1).bincount(minlength=2**DIGIT)
            counts[t] = digits.to(counts[t].device).add_(counts[t]) if t in counts else digits
        if not counts:
            raise ValueError("no entries to select the largest from")
        densities = per_expert("density", density, len(counts))
        for (t, count), own in zip(counts.items(), densities, strict=True):
            rank = ranks.get(t) or count_to_keep(own, int(count.sum()))
            reached = count.flip(0).cumsum(0)  # how many entries have this digit or a larger one
            place = int((reached < rank).sum())
            ranks[t] = rank - int(reached[place - 1] if place else 0)
            found[t] = found.get(t, 0) << DIGIT | 2**DIGIT - 1 - place
    return [torch.tensor(bits, dtype=_BITS[dtype]).view(dtype).item() for bits in found.values()]


def _magnitudes(
    tensors: Callable[[], Parameters], dtype: torch.dtype
) -> Iterator[tuple[int, Tensor]]:
    """Yield an expert's number and the bits of some of its magnitudes; NaN counts as 0."""
    for experts, pretrained in tensors():
        base = None if pretrained is None else pretrained.reshape(-1)
        for t, expert in enumerate(experts):
            kind = torch.promote_types(expert.dtype, dtype)
            for start in range(0, expert.numel(), CHUNK):
                piece = slice(start, start + CHUNK)
                values = expert.reshape(-1)[piece].to(kind)
                values = values.abs() if base is None else values.sub(base[piece].to(kind)).abs_()
                yield t, values.nan_to_num_(0.0, math.inf).view(_BITS[kind])
