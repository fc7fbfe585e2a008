"""Exact k-th largest magnitude of task vectors τ_t = θ_t − θ_0, without a sort or a full copy.

The threshold of TIES (Yadav et al., 2023) is an order statistic of perhaps 10⁸ numbers, which may
be in files. Usually two passes find it: a strided sample suggests a bracket, then one pass counts
the magnitudes above it and collects those inside. If the bracket misses, a wider one is tried on
the right side; if too many lie inside, the interval is bisected over floating-point bit patterns.
The search ends on any data, and its answer does not depend on the sample. Symbols: T experts, n
entries each, k = ceil(density · n).
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

Parameters = Iterable[tuple[Sequence[Tensor], Tensor | None]]

SAMPLE = 2**19  # entries sampled of each expert, at most
CAPACITY = 2**22  # entries collected of each expert in one pass, at most
STRIDE = 7  # strides are its powers: coprime to usual widths, so a sample visits every column
CHUNK = 2**18  # entries at a time on a CPU, where the buffers then stay in the cache
CHUNK_CUDA = 2**24


def count_to_keep(density: float, entries: int) -> int:
    """Return ceil(density · entries), at least 1: the number of entries that trimming keeps.

    The product is rounded to six decimals first: 0.07 of 100 is 7, not 7.000000000000001. A density
    outside (0, 1] is a ``ValueError``.
    """
    if not 0 < density <= 1:
        raise ValueError(f"density is {density}, expected above 0 and at most 1")
    return max(1, math.ceil(round(density * entries, 6)))


@torch.no_grad()
def magnitude_thresholds(tensors: Callable[[], Parameters], density: float) -> list[float]:
    """Return the k-th largest |θ_t − θ_0| of each expert over all tensors.

    Trimming to |θ_t − θ_0| ≥ threshold keeps k entries, or more if some equal it. Differences use
    float32, or float64 if the tensors do. NaN ranks below all numbers.

    Args:
        tensors: returns an iterator over (T experts' tensors, pretrained tensor) at every call;
            with None for pretrained the experts' tensors are task vectors. About 20 MB per expert
            are used.
        density: k = ceil(density · n), in (0, 1].

    Raises:
        ValueError: density is out of range, or there are no entries.
    """
    sample, entries = _strided_sample(tensors)
    k = count_to_keep(density, entries)
    if not entries:
        raise ValueError("no entries to select the largest from")
    searches = [_Search(k, entries, row[~row.isnan()]) for row in sample]
    scratch = _Scratch(sample)
    while pending := [t for t, search in enumerate(searches) if search.answer is None]:
        for experts, pretrained in tensors():
            flat = {t: experts[t].reshape(-1) for t in pending}
            base = None if pretrained is None else pretrained.reshape(-1)
            for start in range(0, experts[0].numel(), scratch.size):
                piece = slice(start, start + scratch.size)
                origin = None if base is None else base[piece]
                for t in pending:
                    searches[t].scan(*scratch.magnitudes(flat[t][piece], origin))
        for t in pending:
            searches[t].conclude()
    return [search.answer for search in searches if search.answer is not None]


class _Search:
    """Search for the ``rank``-th largest of ``entries`` magnitudes, known to lie in [low, high]."""

    def __init__(self, rank: int, entries: int, sample: Tensor) -> None:
        self.rank, self.share, self.sample = rank, rank / entries, sample
        self.low, self.high = 0.0, math.inf
        # A rank in a random sample of size s has a standard deviation of at most √s/2.
        self.margin = 1 + 2 * math.sqrt(len(sample))
        self.bisecting = False
        self.answer: float | None = None
        self._probe()

    def scan(self, magnitudes: Tensor, buffer: Tensor, mask: Tensor) -> None:
        """Count some magnitudes; ``buffer`` and ``mask`` are scratch space of the same shape."""
        # Comparing into a floating buffer and summing it is faster than counting booleans.
        self.above += int(torch.gt(magnitudes, self.top, out=buffer).sum())
        torch.clamp(magnitudes, self.bottom, self.top, out=buffer)
        candidates = magnitudes[torch.eq(magnitudes, buffer, out=mask)]
        at_top, at_bottom = candidates == self.top, candidates == self.bottom
        self.at_top += int(at_top.sum())
        inside = candidates[~(at_top | at_bottom)]
        self.at_bottom += int((at_bottom & ~at_top).sum())
        self.inside += len(inside)
        if self.inside > CAPACITY:
            self.values.clear()
        else:
            self.values.append(inside)

    def conclude(self) -> None:
        """Set the answer, or the next bracket, after a full pass."""
        rank = self.rank - self.above
        if rank <= 0:  # the answer lies above the bracket
            self.low = self.top
        elif rank <= self.at_top:
            self.answer = self.top
        elif rank <= self.at_top + self.inside:
            if self.values:
                self.answer = _largest(torch.cat(self.values), rank - self.at_top)
            else:
                self.low, self.high, self.bisecting = self.bottom, self.top, True
        elif rank <= self.at_top + self.inside + self.at_bottom or self.bottom == 0:
            self.answer = self.bottom
        else:
            self.high = self.bottom
        self.margin *= 8
        self._probe()

    def _probe(self) -> None:
        """Choose the next bracket and reset the counts."""
        self.bottom, self.top = self.low, self.high
        if self.bisecting:
            self.bottom = _halfway(self.low, self.high, self.sample.dtype)
        else:
            expected = self.share * len(self.sample)
            first, last = math.floor(expected - self.margin), math.ceil(expected + self.margin)
            if first >= 1:
                self.top = min(self.high, _largest(self.sample, first))
            if last <= len(self.sample):
                self.bottom = max(self.low, _largest(self.sample, last))
        self.above = self.at_top = self.inside = self.at_bottom = 0
        self.values: list[Tensor] = []


class _Scratch:
    """Buffers for one chunk, allocated once because fresh memory costs page faults."""

    def __init__(self, like: Tensor) -> None:
        self.size = CHUNK if like.device.type == "cpu" else CHUNK_CUDA
        self._buffers = [torch.empty(self.size, dtype=like.dtype, device=like.device) for _ in "ab"]
        self._mask = torch.empty(self.size, dtype=torch.bool, device=like.device)

    def magnitudes(self, expert: Tensor, origin: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return |expert − origin| in one buffer, another buffer, and a mask of equal length."""
        entries = len(expert)
        magnitudes, buffer = (part[:entries] for part in self._buffers)
        return _magnitudes(expert, origin, magnitudes), buffer, self._mask[:entries]


def _magnitudes(expert: Tensor, origin: Tensor | None, out: Tensor | None = None) -> Tensor:
    dtype = torch.promote_types(expert.dtype, torch.float32)
    if origin is None:
        return torch.abs(expert.to(dtype), out=out)
    return torch.sub(expert.to(dtype), origin.to(dtype), out=out).abs_()


def _strided_sample(tensors: Callable[[], Parameters]) -> tuple[Tensor, int]:
    """Return magnitudes at evenly spaced positions, ``(T, at most SAMPLE)``, and the count n."""
    parts: list[Tensor] = []
    stride, size, entries = 1, 0, 0
    for experts, pretrained in tensors():
        numel = experts[0].numel()
        while size + numel // stride >= SAMPLE:  # too many to come: thin out what is there
            stride *= STRIDE
            parts = [part[:, ::STRIDE].contiguous() for part in parts]
            size = sum(part.shape[1] for part in parts)
        spots = slice(-entries % stride, numel, stride)
        origin = None if pretrained is None else pretrained.reshape(-1)[spots]
        parts.append(torch.stack([_magnitudes(e.reshape(-1)[spots], origin) for e in experts]))
        size += parts[-1].shape[1]
        entries += numel
    return (torch.cat(parts, dim=1) if parts else torch.empty(0, 0)), entries


def _largest(values: Tensor, rank: int) -> float:
    return torch.kthvalue(values, len(values) + 1 - rank).values.item()


def _halfway(low: float, high: float, dtype: torch.dtype) -> float:
    """Return the middle float of [low, high], 0 ≤ low; bit patterns are ordered as numbers."""
    ends = torch.tensor([low, high], dtype=dtype)
    bits = ends.view(torch.int64 if dtype == torch.float64 else torch.int32)
    first, last = bits.tolist()
    return bits.new_tensor(first + (last - first) // 2).view(dtype).item()
