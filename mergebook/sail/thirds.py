"""Splits of a text into blocks: overlap, and thirds by mean token value (Anonymous, 2025, H.1)."""

from collections.abc import Sequence

import torch
from torch import Tensor

LEAST = 3  # blocks of a third


def cut_blocks(tokens: Tensor, size: int) -> Tensor:
    """Consecutive blocks of a text, ``(n, size)``; what is left at its end is dropped."""
    count = len(tokens) // size
    return tokens[: count * size].reshape(count, size)


def mean_thirds(blocks: Tensor) -> list[Tensor]:
    """Rows of D_1, D_2 and D_t: the thirds by rising mean token value, of one size."""
    return _cut(blocks.double().mean(1).argsort(stable=True))


def random_thirds(count: int, seed: int) -> list[Tensor]:
    """Thirds that differ in nothing: the null beside `mean_thirds`."""
    return _cut(permuted(count, seed))


def permuted(count: int, seed: int) -> Tensor:
    """Numbers below a count in an order that a seed draws."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def _cut(order: Tensor) -> list[Tensor]:
    size = len(order) // 3
    if size < LEAST:
        raise ValueError(f"{len(order)} blocks, expected at least {3 * LEAST}: take smaller ones")
    return [order[:size], order[size : 2 * size], order[-size:]]


def held_stretch(count: int, share: float, seed: int) -> Tensor:
    """Which of the blocks are held out, bool ``(count,)``: one contiguous stretch of the text."""
    length = round(share * count)
    generator = torch.Generator().manual_seed(seed)
    first = int(torch.randint(count - length + 1, (1,), generator=generator))
    places = torch.arange(count)
    return (places >= first) & (places < first + length)


def overlapped(parts: Sequence[Tensor], alpha: float, beta: float, seed: int) -> list[Tensor]:
    """D_1, D_2 and D_t of N rows each with |D_1 ∩ D_2| = αN and |D_i ∩ D_t| = βN, rounded."""
    if not (0 <= alpha <= 1 and 0 <= beta <= 1):
        raise ValueError(f"alpha is {alpha} and beta is {beta}, expected shares in 0..1")
    if beta > (1 + alpha) / 2:
        raise ValueError(
            f"alpha is {alpha} and beta is {beta}: two sets that share αN of N rows cover at most "
            "2N − αN, and no more of a third than its N: beta is at most (1 + alpha)/2"
        )
    generator = torch.Generator().manual_seed(seed)
    size = min(len(rows) for rows in parts)
    one, two, target = (rows[torch.randperm(len(rows), generator=generator)] for rows in parts)
    both = round(alpha * size)
    seen = min(round(beta * size), (size + both) // 2)
    everywhere = max(0, 2 * seen - size, both + seen - size)
    half, outside = (both - everywhere) // 2, both - everywhere
    common = torch.cat([one[:half], two[: outside - half]])
    alone = size - seen - outside
    target = target[:size]
    first = [target[:seen], common, one[half : half + alone]]
    known = [target[:everywhere], target[seen : 2 * seen - everywhere]]
    second = [*known, common, two[outside - half : outside - half + alone]]
    return [torch.cat(first), torch.cat(second), target]


def mix(parts: Sequence[Tensor], shares: Sequence[float], seed: int) -> Tensor:
    """Rows of Σ ρ_i D_i, as many as the smallest part has, drawn without replacement."""
    size = min(len(rows) for rows in parts)
    counts = [round(share * size) for share in shares[:-1]]
    counts.append(size - sum(counts))
    generator = torch.Generator().manual_seed(seed)
    drawn = (rows[torch.randperm(len(rows), generator=generator)] for rows in parts)
    return torch.cat([rows[:count] for rows, count in zip(drawn, counts, strict=True)])


def histograms(blocks: Tensor, vocabulary: int) -> Tensor:
    """Shares of every token in every block, ``(n, vocabulary)``, float64."""
    counts = torch.zeros(len(blocks), vocabulary, dtype=torch.float64)
    ones = torch.ones(blocks.shape, dtype=torch.float64)
    return counts.scatter_add_(1, blocks.long(), ones) / blocks.shape[1]
