"""Match one group of units by a linear assignment problem, solved exactly by scipy.

The rows of paired units (weights or activations) get the largest sum of inner products.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from mergelib.messages.extras import needs
from mergelib.structure import Axis, Structure

# An axis, and tensors of A and B that have it first.
Pairs = Iterable[tuple[Axis, Tensor, Tensor]]


def solve(structure: Structure, name: str, pairs: Pairs) -> dict[str, Tensor]:
    """Return the best permutations of a group and of the groups inside its units.

    ``name`` must be permutable and lie in no other group; ``pairs`` without it are ignored.
    """
    size = structure.groups[name].size
    gains = _gains(structure, name, pairs)
    total = gains.pop(name)
    inner: dict[str, Tensor] = {}
    for group, gain in gains.items():
        width = structure.groups[group].size
        values, inner[group] = _match_pairs(gain.view(size, width, size, width))
        total += values
    order = _assign(total)
    places = torch.arange(size)
    return {name: order, **{group: table[places, order] for group, table in inner.items()}}


def _gains(structure: Structure, name: str, pairs: Pairs) -> dict[str, Tensor]:
    """Return Σ ⟨A, B⟩ for every pair of units, or of dimensions inside heads."""
    sizes = {group: structure.groups[group].size for group in structure.groups}
    counts = {group: sizes[name] * sizes[group] for group in structure.inside(name)}
    counts[name] = sizes[name]
    gains = {group: torch.zeros(n, n, dtype=torch.float64) for group, n in counts.items()}
    for factors, x, y in parts_of(structure, pairs):
        if name not in factors:
            continue
        dims = [factors.index(name)]
        owner = name
        if factors[dims[0] + 1 : dims[0] + 2] and factors[dims[0] + 1] in counts:
            owner = factors[dims[0] + 1]
            dims.append(dims[0] + 1)
        shape = [sizes[factor] for factor in factors]
        gains[owner] += (_rows(x, shape, dims) @ _rows(y, shape, dims).T).cpu()
    return gains


def parts_of(
    structure: Structure, pairs: Pairs
) -> Iterator[tuple[tuple[str, ...], Tensor, Tensor]]:
    """Yield the parts of all axes: factors, and the tensors of A and B there."""
    for axis, a, b in pairs:
        start = 0
        for factors, size in structure.part_sizes(axis):
            yield factors, a[start : start + size], b[start : start + size]
            start += size


def _rows(part: Tensor, shape: list[int], dims: list[int]) -> Tensor:
    """Return one row per index of these dimensions of the first axis."""
    split = part.reshape(*shape, -1).movedim(dims, list(range(len(dims))))
    return split.flatten(0, len(dims) - 1).flatten(1)


def _assign(gain: Tensor) -> Tensor:
    """Return for every row the column of the assignment with the largest sum."""
    with needs("align"):
        from scipy.optimize import linear_sum_assignment

    return torch.as_tensor(linear_sum_assignment(gain.numpy(), maximize=True)[1])


def _match_pairs(gain: Tensor) -> tuple[Tensor, Tensor]:
    """Match the dimensions of every pair of heads, for gains ``(heads, size, heads, size)``.

    Returns:
        The values ``(heads, heads)`` and the permutations ``(heads, heads, size)``.
    """
    heads, size = gain.shape[:2]
    values, tables = torch.zeros(heads, heads, dtype=gain.dtype), torch.zeros(heads, heads, size)
    tables = tables.long()
    for i in range(heads):
        for j in range(heads):
            block = gain[i, :, j]
            tables[i, j] = _assign(block)
            values[i, j] = block.gather(1, tables[i, j][:, None]).sum()
    return values, tables
