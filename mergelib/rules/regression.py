"""WUDI (Cheng et al., 2025): regression with task vectors in place of data.

Rows of a task matrix τ_t = θ_t − θ_0 ``(out, in)`` are sums of inputs of its layer, so its Gram
matrix can replace that of the inputs in `mergelib.procedures.regmean`. The loss
Σ_t ‖(Δ − τ_t) τ_tᵀ‖² / ‖τ_t‖² is quadratic, with the gradient 2 (Δ Σ G_t − Σ τ_t G_t). The paper
follows it with Adam.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mergelib.messages.kinds import NotNegative
from mergelib.registry import rule
from mergelib.rules.arithmetic import average
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
