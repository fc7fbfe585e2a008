"""Which unit of B goes with which of A: one group of units as a linear assignment problem.

Units are compared by rows: of the weights that write or read them, or of their activations. The sum
of the inner products of paired rows is made as large as it can be, exactly, by scipy's
`linear_sum_assignment`.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from mergelib.messages.extras import needs
from mergelib.structure import Axis, Structure

# An axis, and tensors of A and B that have it first.
Pairs = Iterable[tuple[Axis, Tensor, Tensor]]


def solve(structure: Structure, name: str, pairs: Pairs) -> dict[str, Tensor]:
    """The best permutation of a group, and of what lies inside its units.

    Args:
        structure: of the network.
        name: a permutable group that lies in no other.
        pairs: what to compare by; axes without the group are passed over.

    Returns:
        Permutations by name of a group, as `mergelib.align.permute` takes them.
    """
    size = structure.groups[name].size
    gains = _gains(structure, name, pairs)
    total = gains.pop(name)
    inner: dict[str, Tensor] = {}
    for group, gain in gains.items():
        width = structure.groups[group].size
        worth, inner[group] = _match_pairs(gain.view(size, width, size, width))
        total += worth
    chosen = _assign(total)
    places = torch.arange(size)
    return {name: chosen, **{group: table[places, chosen] for group, table in inner.items()}}


def _gains(structure: Structure, name: str, pairs: Pairs) -> dict[str, Tensor]:
    """⟨A, B⟩ for every pair of units (of A, of B), summed over what they are compared by.

    Where heads have dimensions inside, the pairs are of these, under the name of their group.
    """
    sizes = {group: structure.groups[group].size for group in structure.groups}
    counts = {group: sizes[name] * sizes[group] for group in structure.inside(name)}
    counts[name] = sizes[name]
    gains = {group: torch.zeros(n, n, dtype=torch.float64) for group, n in counts.items()}
    for factors, x, y in _parts(structure, name, pairs):
        dims = [factors.index(name)]
        owner = name
        if factors[dims[0] + 1 : dims[0] + 2] and factors[dims[0] + 1] in counts:
            owner = factors[dims[0] + 1]
            dims.append(dims[0] + 1)
        shape = [sizes[factor] for factor in factors]
        gains[owner] += (_rows(x, shape, dims) @ _rows(y, shape, dims).T).cpu()
    return gains


def _parts(
    structure: Structure, name: str, pairs: Pairs
) -> Iterator[tuple[tuple[str, ...], Tensor, Tensor]]:
    """The parts of axes that have a group among their factors: of A and B, that axis first."""
    for axis, a, b in pairs:
        if not any(name in factors for factors in axis.layout):
            continue
        sizes = [size for _, size in structure.part_sizes(axis)]
        sides = (side.split_with_sizes(sizes) for side in (a, b))
        for factors, x, y in zip(axis.layout, *sides, strict=True):
            if name in factors:
                yield factors, x, y


def _rows(part: Tensor, shape: list[int], dims: list[int]) -> Tensor:
    """One row for each index of these dimensions of the first axis."""
    split = part.reshape(*shape, -1).movedim(dims, list(range(len(dims))))
    return split.flatten(0, len(dims) - 1).flatten(1)


def _assign(gain: Tensor) -> Tensor:
    """For every row the column that the assignment of the largest sum gives it."""
    with needs("align"):
        from scipy.optimize import linear_sum_assignment

    return torch.as_tensor(linear_sum_assignment(gain.numpy(), maximize=True)[1])


def _match_pairs(gain: Tensor) -> tuple[Tensor, Tensor]:
    """The best match inside every pair of heads.

    Args:
        gain: shape ``(heads, size, heads, size)``.

    Returns:
        What it is worth, ``(heads, heads)``, and the permutations, ``(heads, heads, size)``.
    """
    heads, size = gain.shape[:2]
    worth, tables = torch.zeros(heads, heads, dtype=gain.dtype), torch.zeros(heads, heads, size)
    tables = tables.long()
    for i in range(heads):
        for j in range(heads):
            block = gain[i, :, j]
            tables[i, j] = _assign(block)
            worth[i, j] = block.gather(1, tables[i, j][:, None]).sum()
    return worth, tables
