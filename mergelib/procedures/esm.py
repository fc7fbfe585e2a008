"""ESM: merge the output directions that each expert changes most (Li et al., 2026).

A task matrix τ_t = θ_t − θ_0 ``(out, in)`` changes the outputs of its layer by X_t τ_tᵀ, with the
expert's inputs X_t in rows. P_t holds the k = max(1, floor(out / T)) leading eigenvectors of
τ_t G_t τ_tᵀ, where G_t is the Gram matrix of the inputs. P_t P_tᵀ τ_t is the change of rank k that
comes closest to these outputs. Directions P_t and coordinates A_t = P_tᵀ τ_t of all tasks, side by
side, are made orthogonal as in `mergelib.rules.spectral.tsv`; each gets its mean singular value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mergelib.merging import merge_checked
from mergelib.messages.kinds import Size
from mergelib.numerics.linalg import truncated_svd
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted, complete, tell_of_kept
from mergelib.procedures.regmean import TRANSPOSED, expert_grams, matrix_of
from mergelib.registry import Needs, procedure
from mergelib.rules.spectral import NEGLIGIBLE, isotropic
from mergelib.settings import NUMBERED
from mergelib.statedict import check_keys

Part = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class EsmSettings:
    """Hyperparameters of `esm`.

    Attributes:
        scale: α on the merged task matrices, which the paper chooses on validation data.
        polarise: weight tasks, columns and layers by their squared relative norms.
        batch_size: inputs at once.
    """

    scale: float = 1.0
    polarise: bool = True
    batch_size: Size = 100


@procedure(
    paper="li2026model",
    data="unlabelled inputs of every task (the paper: 32)",
    settings=EsmSettings,
    needs=Needs(heads=False, every_expert=True, every_task=True, accepts=("statistics",)),
)
def esm(problem: Problem, settings: EsmSettings) -> Adapted:
    """ESM: θ_0 + α β · P̄ Ā in every linear layer, TSV in other matrices, the average elsewhere.

    P̄ and Ā are ``[P_1 … P_T]`` and the stacked A_t, each with its mean singular value in place of
    all. Polarised scaling squares relative norms: A_t is multiplied by (‖A_t‖ / mean over tasks)²,
    and each column of the stack by (its norm / mean over columns)². In the same way, β compares
    ‖P̄ Ā‖ with other layers, whose keys differ in the layer's number alone. The mean singular value
    and TSV elsewhere are those of the authors' code. Its factor of 2 belongs to α here, and its
    weights of directions, which a later paper adds, are left out.
    """
    parts: dict[str, list[Part]] = {}
    base, count = problem.pretrained, len(problem.experts)
    for name, grams in expert_grams(problem, settings.batch_size, "esm"):
        check_keys(parts or grams, grams, f"the Gram matrices of {name!r}", "those before")
        for key, gram in grams.items():
            gram = gram.double()
            models = (problem.experts[name], base)
            expert, origin = (matrix_of(name, model, key, gram).to(gram) for model in models)
            rank = max(1, len(origin) // count)
            parts.setdefault(key, []).append(essential_part(expert - origin, gram, rank))
    if not parts:
        raise ValueError("esm found no linear layer in the model: use mergelib.merge('tsv', …)")
    changes = {key: merge_parts(own, settings.polarise) for key, own in parts.items()}
    factors = layer_factors(changes) if settings.polarise else dict.fromkeys(changes, 1.0)
    known = {key.removesuffix(TRANSPOSED) for key in changes}
    tell_of_kept(problem, base, "esm", "leaves to average")
    state = merge_checked(
        "tsv",
        problem.experts,
        base,
        is_matrix=lambda key, tensor: key not in known and problem.is_matrix(key, tensor),
        scale=settings.scale,
    )
    for key, change in changes.items():
        weight_key = key.removesuffix(TRANSPOSED)
        change = change if weight_key == key else change.T
        state[weight_key] = base[weight_key] + settings.scale * factors[key] * change
    return Adapted(complete(state, base))


def essential_part(task_matrix: Tensor, gram: Tensor, rank: int) -> Part:
    """Return P ``(out, k)`` and A = Pᵀτ ``(k, in)``, without directions that do not change.

    P holds the leading eigenvectors of τ G τᵀ, which are left singular vectors of τ R for any R
    with R Rᵀ = G.
    """
    values, vectors = torch.linalg.eigh(gram)
    root = vectors * values.clamp(min=0).sqrt()
    directions, sizes, _ = truncated_svd(task_matrix @ root, rank)
    directions = directions[:, sizes > NEGLIGIBLE * sizes[0]]
    return directions, directions.T @ task_matrix


def merge_parts(parts: Sequence[Part], polarise: bool) -> Tensor:
    """Return P̄ Ā ``(out, in)`` of the tasks' parts."""
    if polarise:
        weights = squared_relative(torch.stack([own.norm() for _, own in parts]))
        parts = [(p, weight * own) for (p, own), weight in zip(parts, weights, strict=True)]
    directions = torch.cat([p for p, _ in parts], dim=1)
    coordinates = torch.cat([own for _, own in parts])
    if not len(coordinates):
        return directions @ coordinates  # no expert changes the outputs
    if polarise:
        coordinates *= squared_relative(torch.linalg.vector_norm(coordinates, dim=0))
    return isotropic(directions) @ isotropic(coordinates)


def layer_factors(changes: Mapping[str, Tensor]) -> dict[str, float]:
    """Return β of every layer, from its norm among those of its shape and its name but a number."""
    kinds: dict[tuple[str, torch.Size], list[str]] = {}
    for key, change in changes.items():
        numbered = NUMBERED.match(key)
        name = key if numbered is None else key[: numbered.start(2)] + key[numbered.end(2) :]
        kinds.setdefault((name, change.shape), []).append(key)
    factors: dict[str, float] = {}
    for keys in kinds.values():
        norms = torch.stack([changes[key].norm() for key in keys])
        factors |= dict(zip(keys, squared_relative(norms).tolist(), strict=True))
    return factors


def squared_relative(norms: Tensor) -> Tensor:
    """Return the squares of norms over their mean; 0 if all are 0."""
    return (norms / norms.mean().clamp(min=torch.finfo(norms.dtype).tiny)).square()
