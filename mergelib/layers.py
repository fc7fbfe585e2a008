"""LARV: scales of a task vector's layers, from weights alone (Wang et al., 2026)."""

from fnmatch import fnmatchcase

import torch
from torch import Tensor
from torch.nn.functional import softplus

from mergelib import statedict
from mergelib.inspection.kinds import IsMatrix
from mergelib.io import Model, as_state
from mergelib.merging.applying import not_finite
from mergelib.settings import NUMBERED


def larv_scales(
    expert: Model,
    pretrained: Model,
    *,
    is_matrix: IsMatrix = statedict.is_matrix,
    eta: float = 1.0,
    rho: float = 0.5,
    gamma: float = 3.0,
) -> dict[str, float]:
    """Return LARV's scale of each numbered layer of a task vector τ = θ − θ_0.

    Layer l of L has the scale 1 + tanh(γ (score − 1)) / 2, with score = e^η (l / L)^ρ / (1 +
    softplus(z)). e is the effective rank of θ_0 divided by that of τ, where the effective rank is
    the exponential of the entropy of the squared singular values. z is c = (‖θ_0 τᵀ − τ θ_0ᵀ‖ +
    ‖θ_0ᵀ τ − τᵀ θ_0‖) / (2 ‖θ_0‖ ‖τ‖), standardised across layers. So the first layers get small
    scales, and so do layers whose change commutes least with their weights.

    This is the continuous form of LARV (Wang et al., 2026, Eq. 8). Its authors call it an ablation
    and prefer a few fixed scales. We could not read their paper, and know the form from notes and
    a program by others. A layer with several matrices has their mean e and c, which is our choice.

    Args:
        expert: θ, a state dict, module or path.
        pretrained: θ_0.
        is_matrix: predicate (key, pretrained tensor) of what counts as a matrix; `is_kernel` also
            accepts convolutions, one row per filter.
        eta: η, the exponent of e.
        rho: ρ, the exponent of the depth.
        gamma: γ, how fast the scale grows with the score.

    Returns:
        Scales between 0.5 and 1.5 by patterns of keys, as ``scale=`` of `merge` accepts them:
        ``{"blocks.0.*": 0.8, …, "*": 1.0}``, where ``"*"`` is for the remaining keys.

    Raises:
        ValueError: if the models differ in keys or shapes or are not finite, or if no matrix of a
            numbered layer differs.
    """
    base = as_state(pretrained, lazy=True)
    tuned = as_state(expert, lazy=True, base=base)
    layout, other = map(statedict.layout_of, (base, tuned))
    statedict.check_compatible(layout, {"expert": other}, "pretrained", mixed=True)
    rows: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
    lasts: dict[str, int] = {}
    for key, kind in layout.items():
        layer = NUMBERED.match(key)
        if layer is None or not is_matrix(key, kind):
            continue
        place, number = layer[1], int(layer[2])
        lasts[place] = max(number, lasts.get(place, 0))
        models = {"pretrained": base[key], "expert": tuned[key]}
        for name, each in models.items():
            if not statedict.is_finite(each):
                raise ValueError(not_finite(f"{name}[{key!r}]", each))
        weights, tuned_weights = (each.flatten(1).double() for each in models.values())
        change = tuned_weights - weights
        if weights.any() and change.any():
            ratio = _effective_rank(weights) / _effective_rank(change)
            conflict = _conflict(weights, change)
            pattern = layer[0] + "*" if layer[0].endswith(".") else key
            rows.setdefault((place, number, pattern), []).append((ratio, conflict))
    if not rows:
        raise ValueError(
            "larv_scales finds no matrix of a numbered layer that differs from pretrained: pass a "
            "fine-tuned model, and is_matrix=mergelib.is_kernel for convolutions"
        )
    ranks, conflicts = torch.stack([torch.tensor(each).mean(0) for each in rows.values()]).T
    spread = conflicts.std(correction=0)
    conflicts = (conflicts - conflicts.mean()) / spread.where(spread > 1e-8, 1)
    depths = torch.tensor([(number + 1) / (lasts[place] + 1) for place, number, _ in rows])
    scores = ranks**eta * depths**rho / (1 + softplus(conflicts))
    scales = (1 + torch.tanh(gamma * (scores - 1)) / 2).tolist()
    result = {pattern: scale for (*_, pattern), scale in zip(rows, scales, strict=True)}
    others = [key for key in base if not any(fnmatchcase(key, pattern) for pattern in result)]
    return {**result, "*": 1.0} if others else result


def _effective_rank(matrix: Tensor) -> float:
    wide = matrix if len(matrix) <= matrix.shape[1] else matrix.T
    squares = torch.linalg.eigvalsh(wide @ wide.T).clamp(min=0)  # of the singular values
    return float(torch.special.entr(squares / squares.sum()).sum().exp())


def _conflict(weights: Tensor, change: Tensor) -> float:
    """Return c of one matrix, from both of its commutators."""
    left, right = weights @ change.T, weights.T @ change
    norms = (left - left.T).norm() + (right - right.T).norm()
    return float(norms / (2 * weights.norm() * change.norm()))
