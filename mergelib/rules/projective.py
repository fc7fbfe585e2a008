"""DOGE (Wei et al., 2025): a change that all task vectors share, found by projected descent.

The merged task matrix is Σ_t λ_t (τ_t + Δ) with λ_t = η / ‖τ_t‖ and τ_t = θ_t − θ_0. To first
order, what task t loses grows with the distance of this matrix from τ_t along τ_t, which Adam
reduces. Gradients are projected off the directions of the outputs that the tasks share.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mergelib.messages.kinds import Count, Density, Positive, Size
from mergelib.numerics.linalg import truncated_svd
from mergelib.numerics.selection import magnitude_thresholds
from mergelib.registry import rule
from mergelib.rules.arithmetic import average
from mergelib.rules.sparse import trim_thresholds


@rule(
    paper="wei2025modeling",
    elsewhere=average,
    prepare=trim_thresholds,
    prepared=("thresholds",),
)
def doge(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    norm: Positive = 0.07,
    density: Density = 0.3,
    subspace: Size = 6,
    learning_rate: Positive = 1e-4,
    steps: Count = 400,
    trim: Literal["model", "tensor"] = "model",
    thresholds: Sequence[float] | None = None,
) -> Tensor:
    """DOGE: θ_0 + Σ_t λ_t M_t (τ_t + Δ), where Δ moves the sum towards each τ_t along τ_t.

    Adam minimises Σ_t Σ_r ⟨τ_tr, τ_tr − Σ_s λ_s (τ_sr + Δ_r)⟩² over rows r from Δ = 0. P Pᵀ is
    taken off each gradient, where P holds the first floor(r / subspace) left singular vectors of
    the tasks' first floor(r / T) ones, with r = min(m, n). M_t keeps the largest entries of τ_t.
    This is the authors' code, in which products are of rows and λ_t differs between layers.

    Hyperparameters:
        norm: η, to which λ_t shortens every τ_t; choose it on validation data.
        density: fraction of entries that M_t keeps, in (0, 1].
        subspace: r divided by the number of shared directions.
        learning_rate: of Adam, which moves an entry of Δ by about this at every step; of the size
            of CLIP's task vectors, so experts that went further need a larger one.
        steps: of Adam.
        trim: the largest entries of the whole ``"model"``, or of each ``"tensor"``.
        thresholds: T magnitudes to trim at; computed from these tensors by default.
    """
    if thresholds is None:
        thresholds = magnitude_thresholds(lambda: [(experts, pretrained)], density)
    tasks = torch.stack([experts[t] - pretrained for t in range(len(experts))])
    norms = torch.linalg.matrix_norm(tasks)
    factors: Tensor = (norm / norms).where(norms > 0, 0)[:, None, None]
    full = min(pretrained.shape)
    own = [truncated_svd(task, max(1, full // len(tasks)))[0] for task in tasks]
    shared = truncated_svd(torch.cat(own, dim=1), full // subspace)[0]
    start = (tasks * (tasks - (factors * tasks).sum(0))).sum(-1)  # what Δ = 0 leaves, (T, m)
    delta = torch.zeros_like(pretrained)
    optimiser = torch.optim.Adam([delta], lr=learning_rate)
    for _ in range(steps):
        left = start - factors.sum() * (tasks * delta).sum(-1)
        gradient = -2 * factors.sum() * (left[..., None] * tasks).sum(0)
        delta.grad = gradient - shared @ (shared.T @ gradient)
        optimiser.step()
    kept = tasks.abs() >= tasks.new_tensor(thresholds).view(-1, 1, 1)
    return pretrained + (factors * (tasks + delta) * kept).sum(0)
