"""Git Re-Basin by weight matching (Ainsworth et al., 2023, section 3.2, Algorithm 1).

Weight matching searches permutations π that minimise ‖A − π(B)‖² = const − 2⟨A, π(B)⟩. This is
NP-hard for all groups at once, but a linear assignment problem for one group with the others fixed.
Algorithm 1 solves group after group in random order until nothing changes. The result depends on
the initial permutation. Besides the paper's (the identity) we try one that follows the network from
its inputs, and keep the better result; without it, known permutations of untrained transformers
were missed in a third of draws. Attention heads are matched by the values of the best matches
inside every pair of heads (queries with keys, and values), which is exact for both together.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mergelib.align.assignment import solve
from mergelib.align.permutations import identity, permute, permute_tensor
from mergelib.messages.brief import Brief
from mergelib.statedict import StateDict, is_finite, is_statistic, tied_keys
from mergelib.structure import Structure, structure_of


@dataclass(frozen=True, repr=False)
class Alignment(Brief):
    """Result of matching.

    ``objective`` is, for `git_rebasin`, the cosine ⟨A, π(B)⟩ / ‖A‖‖B‖ at the better initial
    permutation and after every sweep, never decreasing; for `activation_matching`, the mean
    correlation of paired units before and after.
    """

    state: dict[str, Tensor]  # B's weights, reordered
    permutations: dict[str, Tensor]  # of all permutable groups; permute(b, …) gives the state
    objective: tuple[float, ...]
    converged: bool  # further sweeps would change nothing


@torch.no_grad()
def git_rebasin(
    a: StateDict,
    b: StateDict,
    model: nn.Module | Structure,
    *,
    iterations: int = 100,
    seed: int = 0,
    tolerance: float = 1e-9,
    device: torch.device | str | None = None,
) -> Alignment:
    """Reorder the units of B to bring its weights close to A's by weight matching.

    Args:
        a: the reference weights.
        b: the weights to reorder, of the same structure.
        model: the model of both, or its `mergelib.structure.Structure`.
        iterations: largest number of sweeps over all groups, at least 1.
        seed: seed of the order of groups in a sweep.
        tolerance: stop when a sweep raises the cosine by at most this.
        device: where to compute, by default where A is; assignments run on the CPU.

    Returns:
        An `Alignment`. Running statistics are permuted but not matched.

    Raises:
        ValueError: a state dict does not fit or is not finite (naming the key), or iterations < 1.
    """
    if iterations < 1:
        raise ValueError(f"iterations is {iterations}, expected at least 1")
    structure = model if isinstance(model, Structure) else structure_of(model)
    for name, state in (("a", a), ("b", b)):
        check_state(state, structure, name)
    runs = []
    for forward in (False, True):
        match = _Match(a, b, structure, device)
        if forward:
            match.follow()
        objective = match.descend(iterations, seed, tolerance)
        converged = len(objective) > 1 and objective[-1] - objective[-2] <= tolerance
        runs.append((objective, match.permutations, converged))
        if objective[-1] > 1 - 1e-12:  # equal to A: nothing can be better
            break
    objective, permutations, converged = max(runs, key=lambda run: run[0][-1])
    state = permute(b, structure, permutations)
    return Alignment(state, permutations, tuple(objective), converged)


class _Match:
    """A, the reordered B, and the permutations so far."""

    def __init__(
        self, a: StateDict, b: StateDict, structure: Structure, device: torch.device | str | None
    ) -> None:
        tied = tied_keys(a)
        keys = [key for key in structure.axes if not (key in tied or is_statistic(key))]
        self.structure = structure
        double = any(state[key].dtype == torch.float64 for state in (a, b) for key in keys)
        dtype = torch.float64 if double else torch.float32
        self.a, self.b = (
            {key: state[key].to(device or a[key].device, dtype) for key in keys} for state in (a, b)
        )
        self.permutations = identity(structure)
        self.groups = [name for name in self.permutations if structure.groups[name].within is None]
        self._dots = {key: _dot(self.a[key], self.b[key]) for key in keys}
        squares = [sum(_dot(x, x) for x in state.values()) for state in (self.a, self.b)]
        self._scale = max(math.sqrt(squares[0] * squares[1]), 1e-300)  # both may be all zero

    def cosine(self) -> float:
        return sum(self._dots.values()) / self._scale

    def descend(self, iterations: int, seed: int, tolerance: float) -> list[float]:
        """Run Algorithm 1; return the cosine at the beginning and after every sweep."""
        generator = torch.Generator().manual_seed(seed)
        objective = [self.cosine()]
        for _ in range(iterations):
            for number in torch.randperm(len(self.groups), generator=generator).tolist():
                self._match(self.groups[number], list(self.a), least=1e-12)  # more than rounding
            objective.append(self.cosine())
            if objective[-1] - objective[-2] <= tolerance:
                break
        return objective

    def follow(self) -> None:
        """Match groups from inputs to outputs, by parameters whose other groups are matched."""
        settled = set(self.structure.groups) - set(self.permutations)
        axes = self.structure.axes
        groups = {k: {n for axis in axes[k] for f in axis.layout for n in f} for k in self.a}
        for name in self.groups:
            settled |= {name, *self.structure.inside(name)}
            self._match(name, [key for key in self.a if groups[key] <= settled])

    def _match(self, name: str, keys: list[str], least: float = -math.inf) -> None:
        """Solve one group by these parameters; accept it if the cosine rises by at least this."""
        pairs = (
            (axis, self.a[key].movedim(number, 0), self.b[key].movedim(number, 0))
            for key in keys
            for number, axis in enumerate(self.structure.axes[key])
        )
        change = solve(self.structure, name, pairs)
        moved = {}
        for key, tensor in self.b.items():
            permuted = permute_tensor(tensor, self.structure.axes[key], self.structure, change)
            if permuted is not tensor:
                moved[key] = permuted
        dots = {key: _dot(self.a[key], tensor) for key, tensor in moved.items()}
        if sum(dots.values()) - sum(self._dots[key] for key in dots) <= least * self._scale:
            return
        self.b |= moved
        self._dots |= dots
        for group, permutation in change.items():
            earlier = self.permutations[group]
            if group != name:  # inside heads, which moved themselves
                earlier = earlier[change[name]]
            self.permutations[group] = earlier.gather(-1, permutation)


def check_state(state: StateDict, structure: Structure, name: str) -> None:
    """Raise ``ValueError`` if weights do not fit the structure or are not finite."""
    structure.check(state, name)
    for key in structure.axes:
        if not is_finite(state[key]):
            raise ValueError(f"{name}[{key!r}] contains NaN or Inf")


def _dot(x: Tensor, y: Tensor) -> float:
    return (x.double() * y.double()).sum().item()
