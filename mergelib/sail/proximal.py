"""Weights of the proximal parameter θ^P = Σ γ_i θ_i, from distances (Anonymous, 2025, Theorem 3).

With δ_i = θ_i − θ* and Σ γ_i = 1, the distance to an optimum θ* is ‖Σ γ_i δ_i‖² = ½ γᵀHγ, where

    H_ij = a_i² + a_j² − a_ij² = 2 ⟨δ_i, δ_j⟩

needs only squared distances: a_i² from source i to the target, a_ij² between two sources. SAIL uses
distances between *data sets*. Compute θ^P with ``mergelib.merge("average", …, weights=γ)``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from mergelib.messages.brief import Brief
from mergelib.numerics.linalg import simplex_projection
from mergelib.sail.divergences import median_distance, mmd_table, permutation_p
from mergelib.statedict import StateDict, check_compatible, flatten, name_experts

Constraint = Literal["simplex", "affine"]

ENUMERATED = 12  # sources up to which every support is tried
NEGLIGIBLE = 1e-10  # of the largest entry of H: what counts as zero
STEPS = 20_000  # of projected gradient at most

IMPOSSIBLE = "these are not squared distances: one is negative or breaks the triangle inequality"
INDEFINITE = (
    "the distances between sources are not Euclidean, because H is not positive semidefinite on "
    "vectors of sum 0"
)
NEGATIVE = "the predicted squared distance is negative, so the distances are not Euclidean"
NOT_UNIQUE = "H is singular on vectors of sum 0; of equally good weights these are the shortest"
LOCAL = "with more than {} sources and an indefinite H, the minimum may have been missed"
SAME = "no two sources differ significantly ({} permutations, p > {}), so weights are uniform"


@dataclass(frozen=True, repr=False)
class Proximal(Brief):
    """Weights and how reliable they are."""

    weights: Tensor  # γ, ``(n,)``, float64, of sum 1
    squared_distance: float  # ½ γᵀHγ, the predicted squared distance of θ^P to the target
    notes: tuple[str, ...] = ()  # sentences that qualify the weights


def squared_distances(sources: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return squared distances from ``(n, d)`` to ``(d,)`` and between the n points, float64."""
    offsets = sources.double() - target.double()
    gram = offsets @ offsets.T
    squares = gram.diagonal()
    return squares, (squares[:, None] + squares - 2 * gram).fill_diagonal_(0)


def interactions(squared_to_target: Tensor, squared_pairwise: Tensor) -> Tensor:
    """Return H of SAIL's Eq. 13, a_i² + a_j² − a_ij², ``(n, n)``, float64.

    ``squared_to_target`` is a_i², ``(n,)`` (an unbiased MMD² may be negative), and
    ``squared_pairwise`` a_ij², ``(n, n)``. Other shapes, values that are not finite, and tables
    that are not symmetric with zero diagonal are a ``ValueError``.
    """
    to_target, between = squared_to_target.double(), squared_pairwise.double()
    count = len(to_target) if to_target.dim() == 1 else 0
    if count < 1 or between.shape != (count, count):
        shapes = f"{tuple(to_target.shape)} and {tuple(between.shape)}"
        raise ValueError(f"the distances have shapes {shapes}, expected (n,) and (n, n)")
    if not bool(torch.isfinite(to_target).all() and torch.isfinite(between).all()):
        raise ValueError("a distance is NaN or Inf")
    slack = 1e-9 * float(between.abs().max())
    if float((between - between.T).abs().max()) > slack:
        raise ValueError("squared_pairwise is not symmetric")
    if float(between.diagonal().abs().max()) > slack:
        raise ValueError("squared_pairwise has a diagonal that is not 0")
    return to_target[:, None] + to_target - (between + between.T) / 2


def proximal_weights(
    squared_to_target: Tensor, squared_pairwise: Tensor, constraint: Constraint = "simplex"
) -> Proximal:
    """Return the γ that minimises ½ γᵀHγ (Theorem 3), for any number of sources and any H.

    For two sources this is Eq. 11, clipped to 0..1 on the simplex. Eq. 12, H⁻¹e / eᵀH⁻¹e, agrees
    where H is positive definite and the result is positive. Eq. 12 fails where a source equals the
    target, and is a saddle point where H is indefinite.

    Pass *squared* distances. Plain ones give other weights without an error, because square roots
    of Euclidean distances are also Euclidean distances (Schoenberg, 1938).

    Args:
        squared_to_target: a_i², ``(n,)``.
        squared_pairwise: a_ij², ``(n, n)``.
        constraint: ``"simplex"`` (γ_i ≥ 0, Σ γ_i = 1; exact up to `ENUMERATED` sources) or
            ``"affine"`` (Σ γ_i = 1).

    Raises:
        ValueError: an unknown constraint, what `interactions` refuses, or affine weights where
            distances are not Euclidean, so that the objective has no minimum.
    """
    if constraint not in ("simplex", "affine"):
        raise ValueError(f"constraint is {constraint!r}, expected 'simplex' or 'affine'")
    matrix = interactions(squared_to_target, squared_pairwise)
    scale = float(matrix.abs().max())
    unit = matrix / scale if scale > 0 else matrix
    centre = torch.eye(len(unit), dtype=unit.dtype) - 1 / len(unit)
    curvatures = torch.linalg.eigvalsh(centre @ unit @ centre)  # one is 0, along (1, …, 1)
    euclidean = bool((curvatures >= -NEGLIGIBLE).all())
    notes = [] if euclidean else [INDEFINITE]
    if constraint == "affine":
        weights = _stationary(unit)
        slopes = unit @ weights
        error = float((slopes - slopes.mean()).abs().max() + (weights.sum() - 1).abs())
        if not euclidean or error > 1e-6:
            raise ValueError(
                "the distances are not Euclidean, so the objective of affine weights falls without "
                "end; use constraint='simplex'"
            )
        weights /= weights.sum()
        if int((curvatures.abs() <= NEGLIGIBLE).sum()) > 1:
            notes.append(NOT_UNIQUE)
    elif len(unit) <= ENUMERATED:
        weights = _enumerated(unit)
    else:
        weights = _descended(unit)
        notes += [] if euclidean else [LOCAL.format(ENUMERATED)]
    squared = float(weights @ matrix @ weights) / 2
    if squared < -NEGLIGIBLE * scale:
        notes.append(NEGATIVE)
    if not _are_squares(squared_to_target.double(), squared_pairwise.double()):
        notes.append(IMPOSSIBLE)
    return Proximal(weights, squared, tuple(notes))


def oracle_gamma(
    states: Mapping[str, StateDict] | Sequence[StateDict],
    optimum: StateDict,
    constraint: Constraint = "simplex",
) -> Proximal:
    """Return the weights whose mean of sources is nearest to a known optimum (SAIL, Eqs. 4 and 10).

    All floating tensors count, including running statistics. Distances to ``optimum`` are
    meaningful only if it shares the sources' initialisation. Sources that do not match are a
    ``ValueError``.
    """
    sources = name_experts(states)
    check_compatible(optimum, sources, "the optimum")
    rows = torch.stack([flatten(state).double() for state in sources.values()])
    return proximal_weights(*squared_distances(rows, flatten(optimum)), constraint)


def weights_from_samples(
    target: Tensor,
    sources: Sequence[Tensor],
    constraint: Constraint = "simplex",
    *,
    bandwidth: float | None = None,
    level: float = 0.05,
    permutations: int = 199,
    seed: int = 0,
) -> Proximal:
    """Return SAIL's weights from data: `proximal_weights` of MMD² (V-statistics).

    Samples are features ``(rows, d)`` of the target's and each source's data. Eq. 11 divides by the
    distance between sources. If that distance is noise, the weights are noise; so they are uniform
    unless a permutation test, at ``level`` over all pairs (Bonferroni), finds two sources that
    differ. The default ``bandwidth`` is the median distance of the pooled samples.
    """
    samples = [target, *sources]
    width = median_distance(samples) if bandwidth is None else bandwidth
    table = mmd_table(samples, bandwidth=width)
    result = proximal_weights(table[0, 1:], table[1:, 1:], constraint)
    pairs = list(combinations(sources, 2))
    each = level / max(len(pairs), 1)
    if any(
        permutation_p(*pair, bandwidth=width, permutations=permutations, seed=seed) <= each
        for pair in pairs
    ):
        return result
    uniform = torch.full_like(result.weights, 1 / len(sources))
    squared = float(uniform @ interactions(table[0, 1:], table[1:, 1:]) @ uniform) / 2
    return Proximal(uniform, squared, (*result.notes, SAME.format(permutations, each)))


def _stationary(matrices: Tensor) -> Tensor:
    """Return the shortest γ of sum 1 at which γᵀHγ is stationary, ``(…, k)``, by least squares."""
    count = matrices.shape[-1]
    system = matrices.new_ones(*matrices.shape[:-2], count + 1, count + 1)
    system[..., :-1, :-1] = matrices
    system[..., -1, -1] = 0
    inverse: Tensor = torch.linalg.pinv(system, rtol=1e-13, hermitian=True)
    return inverse[..., :-1, -1]


def _enumerated(matrix: Tensor) -> Tensor:
    """Return the best stationary point of all faces of the simplex; ties go to larger supports."""
    count = len(matrix)
    candidates = []
    for size in range(count, 0, -1):
        rows = torch.tensor(list(combinations(range(count), size)))
        points = _stationary(matrix[rows[:, :, None], rows[:, None, :]])
        inside = (points >= -NEGLIGIBLE).all(1) & ((points.sum(1) - 1).abs() < 1e-6)
        full = matrix.new_zeros(int(inside.sum()), count)
        candidates.append(full.scatter(1, rows[inside], _tidy(points[inside])))
    weights = torch.cat(candidates)
    values = ((weights @ matrix) * weights).sum(1)
    best: Tensor = weights[(values <= values.min() + NEGLIGIBLE).nonzero()[0, 0]]
    return best


def _descended(matrix: Tensor) -> Tensor:
    """Minimise over the simplex by projected gradient, then solve exactly on the support."""
    weights = matrix.new_full((len(matrix),), 1 / len(matrix))
    step = 1 / float(torch.linalg.eigvalsh(matrix).abs().max())
    for _ in range(STEPS):
        slopes = matrix @ weights
        if float(weights @ slopes - slopes.min()) < 1e-12:
            break
        weights = simplex_projection(weights - step * slopes)
    support = (weights > 1e-6).nonzero().flatten()
    exact = torch.zeros_like(weights)
    exact[support] = _stationary(matrix[support[:, None], support])
    better = bool((exact >= 0).all()) and float(exact @ matrix @ exact) <= float(
        weights @ matrix @ weights
    )
    return _tidy(exact if better else weights)


def _tidy(weights: Tensor) -> Tensor:
    """Set negligible weights to zero and rescale to sum 1."""
    positive = torch.where(weights > NEGLIGIBLE, weights, 0)
    return positive / positive.sum(-1, keepdim=True)


def _are_squares(to_target: Tensor, between: Tensor) -> bool:
    """Whether the square roots of these numbers satisfy the triangle inequality."""
    table = torch.zeros(len(between) + 1, len(between) + 1, dtype=torch.float64)
    table[0, 1:] = table[1:, 0] = to_target
    table[1:, 1:] = between
    roots = table.clamp(min=0).sqrt()
    detours = (roots[:, :, None] + roots[None]).amin(1)
    slack = 1e-6 * float(roots.max())
    return bool((table >= -slack * slack).all() and (roots <= detours + slack).all())
