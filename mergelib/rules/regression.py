"""WUDI (Cheng et al., 2025) and ACE (Xu et al., 2026): regression without data.

Rows of a task matrix τ_t = θ_t − θ_0 ``(out, in)`` are sums of inputs of its layer, so its Gram
matrix can replace that of the inputs in `mergelib.procedures.regmean`. The loss
Σ_t ‖(Δ − τ_t) τ_tᵀ‖² / ‖τ_t‖² is quadratic, with the gradient 2 (Δ Σ G_t − Σ τ_t G_t). The paper
follows it with Adam. ACE centres the rows, adds ε to the diagonal, and balances unequal tasks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mergelib.messages.kinds import NotNegative, Positive, Share
from mergelib.numerics.linalg import truncated_svd
from mergelib.registry import rule
from mergelib.rules.arithmetic import average
from mergelib.rules.low_rank import rank_of
from mergelib.rules.spectral import NEGLIGIBLE


def normal_equations(
    experts: Sequence[Tensor], pretrained: Tensor, *, transposed: bool = False
) -> tuple[Tensor, Tensor]:
    """Return Σ_t τ_t G_t and Σ_t G_t in float64, where G_t = τ_tᵀ τ_t / ‖τ_t‖², or 0 if τ_t is."""
    totals: list[Tensor] = []
    for t in range(len(experts)):  # free each cast copy before the next is made
        task = (experts[t] - pretrained).double()
        task = task.T if transposed else task
        gram = task.T @ task / task.square().sum().clamp(min=torch.finfo(task.dtype).tiny)
        parts = (task @ gram, gram)
        totals = [a.add_(b) for a, b in zip(totals, parts, strict=True)] if totals else [*parts]
    return totals[0], totals[1]


@rule(paper="cheng2025whoever", elsewhere=average, affine_in="scale")
def wudi(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    ridge: NotNegative = 0.0,
    transposed: bool = False,
    scale: float = 1.0,
) -> Tensor:
    """WUDI in closed form: θ_0 + scale · (Σ_t τ_t G_t)(Σ_t G_t)⁺, with G_t = τ_tᵀ τ_t / ‖τ_t‖².

    The minimiser of the paper's loss, where its code takes 300 steps of Adam from Σ τ_t. The
    pseudo-inverse is zero in directions that no task changes. So are Σ τ_t and all other sums of
    task vectors, from which gradient descent therefore ends at the same matrix.

    Hyperparameters:
        ridge: added to the diagonal of Σ G_t, as a fraction of its mean; it shrinks directions in
            which all tasks change little and disagree, where the minimiser can be very long; try
            0.1 first.
        transposed: the weights are stored ``(in, out)``, as those of GPT-2's Conv1D.
        scale: λ on the merged task matrix.
    """
    products, total = normal_equations(experts, pretrained, transposed=transposed)
    total.diagonal().add_(ridge * total.diagonal().mean())
    merged = products @ torch.linalg.pinv(total, rtol=NEGLIGIBLE**2, hermitian=True)
    merged = merged.T if transposed else merged
    return torch.add(pretrained, merged.to(pretrained), alpha=scale)


@rule(paper="xu2026ace", elsewhere=average, affine_in="scale")
def ace(
    experts: Sequence[Tensor],
    pretrained: Tensor,
    *,
    epsilon: Positive = 1e-5,
    threshold: NotNegative = 0.3,
    rank_ratio: Share = 0.3,
    transposed: bool = False,
    scale: float = 1.0,
) -> Tensor:
    """ACE: θ_0 + scale · W, where W regresses on task matrices with centred rows.

    X_t is τ_t less the mean of its rows, and S_t = X_tᵀ X_t. With c the mean row of Σ_t S_t,
    W = (Σ_t X_t (S_t + ε I)) (Σ_t (S_t + ε I) + 1 cᵀ)⁻¹. The norms of tasks are unequal if
    Var(log ‖τ_t‖²) > threshold · mean(log ‖τ_t‖²)². Then S_t and ε are divided by tr S_t, and c by
    the mean of ‖τ_t‖². W also gets σ U_k V_kᵀ, the k leading singular directions of W +
    Σ_t τ_t (S_t − mean_s (S_s + ε I)), all with their mean singular value σ.

    This is the released code, whose numerator has X_t where the paper has the experts' weights.
    Logarithms and ε depend on the unit of the weights. An expert that adds the same row
    everywhere, as one without changes, is left out here.

    Hyperparameters:
        epsilon: ε; the paper takes 1e-5, for RoBERTa 2e-4 and for GPT-2 0.04, the code 0.01.
        threshold: above which norms count as unequal; 0 always balances them.
        rank_ratio: k relative to the smaller dimension, rounded down and at least 1; 0 leaves the
            singular values as they are.
        transposed: the weights are stored ``(in, out)``, as those of GPT-2's Conv1D.
        scale: on the merged task matrix; 1 in the released code.
    """

    def centred(t: int) -> tuple[Tensor, Tensor]:
        task = (experts[t] - pretrained).double()
        task = task.T if transposed else task
        return task, task - task.mean(0)

    energies = {}
    for t in range(len(experts)):
        task, rows = centred(t)
        if rows.norm() > NEGLIGIBLE * task.norm():
            energies[t] = task.square().sum()
    if not energies:
        return pretrained.clone()
    squared_norms = torch.stack([*energies.values()])
    logs = squared_norms.log()
    unequal = len(logs) > 1 and bool(logs.var() > threshold * logs.mean().square())
    total, plain, products = (torch.zeros_like(rows) for _ in range(3))
    grams, ridges = rows.new_zeros(rows.shape[1], rows.shape[1]), 0.0
    for t in energies:
        task, rows = centred(t)
        gram, ridge = rows.T @ rows, epsilon
        if unequal:
            ridge = epsilon / float(gram.trace())
            gram /= gram.trace()
        total += task
        plain += task @ gram
        products += rows @ gram + ridge * rows
        grams += gram
        ridges += ridge
    prior = grams.mean(0)
    grams.diagonal().add_(ridges)
    if unequal:
        prior /= squared_norms.mean()
    merged = torch.linalg.solve(grams + prior, products, left=False)
    if unequal and (rank := rank_of(rows.shape, rank_ratio, "floor")):
        u, s, vh = truncated_svd(merged + plain - total @ grams / len(energies), rank)
        merged += s.mean() * u @ vh
    merged = merged.T if transposed else merged
    return torch.add(pretrained, merged.to(pretrained), alpha=scale)
