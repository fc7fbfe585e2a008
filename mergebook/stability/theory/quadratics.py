"""Tasks on which everything about a merge is known exactly: quadratic losses with noisy examples.

Task t has the loss ½ (θ − z)ᵀ H_t (θ − z) on examples z of mean c_t and covariance C_t. By plain
SGD on batches without replacement, with A_t = I − η_t H_t and R_t = I − A_t^K, an expert has

    mean        c_t + A_t^K (θ_0 − c_t),
    covariance  R_t C_t R_tᵀ / n + η_t² (1 − b/n)/b Σ_{k<K} A_t^k H_t C_t H_t A_t^k,

from the draw of the training set and from that of the batches.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mergebook.stability.theory.steps import Training
from mergelib.messages.brief import Brief

FLAT = 1e-12  # 1 − a_p a_q below this: the geometric sum is K


@dataclass(frozen=True, repr=False)
class Quadratics(Brief):
    """T quadratic tasks in d dimensions, and a start."""

    # H_t, ``(T, d, d)``, symmetric, not negative, of a positive definite mean; float64
    hessians: Tensor
    centres: Tensor  # c_t, ``(T, d)``: where task t's expected loss is least
    covariances: Tensor  # C_t of a task's examples, ``(T, d, d)``
    start: Tensor  # θ_0, ``(d,)``

    @cached_property
    def smoothness(self) -> float:
        """L: the largest eigenvalue of any H_t, which is that of every example's loss, too."""
        return float(torch.linalg.eigvalsh(self.hessians).max())

    @cached_property
    def pl_constant(self) -> float:
        """C = 1/(2μ), μ the least eigenvalue of the mean H (Li et al., 2026, Assumption 5)."""
        return 1 / (2 * float(torch.linalg.eigvalsh(self.hessians.mean(0)).min()))

    @cached_property
    def noise(self) -> Tensor:
        """σ_t: root of the expected squared distance of an example's gradient from its mean."""
        return _trace(self.hessians @ self.covariances @ self.hessians).sqrt()

    def heterogeneity(self, point: Tensor) -> Tensor:
        """ζ_t at a point: distance of ∇ℓ_t from the tasks' mean gradient, ``(T,)``, no noise."""
        slopes = self.slopes(point)
        apart: Tensor = (slopes - slopes.mean(0)).norm(dim=1)
        return apart

    def floor(self, examples: Tensor) -> float:
        """E f(θ̂): the expected least mean training loss, over draws of n_t examples a task."""
        average = self.hessians.mean(0)
        best = self.minimum
        apart = 0.5 * _form(self.hessians, best - self.centres).mean()
        spread = _trace(self.hessians @ self.covariances)
        pull = torch.linalg.solve(average, self.hessians) / len(self.hessians)
        gained = _trace(average @ pull @ self.covariances @ pull.mT) / examples
        return float(apart + 0.5 * spread.mean() - 0.5 * gained.sum())

    def opening(self, training: Training, objective: Tensor) -> tuple[float, float, float]:
        """Of f̃ = Σ p_t f_t at θ_0, all expected: f̃, ‖∇f̃‖², and κ² = Σ p_t ‖∇f_t − ∇f̃‖²."""
        slopes = self.slopes(self.start)
        spread = _trace(self.hessians @ self.covariances)
        value = 0.5 * objective @ (_form(self.hessians, self.start - self.centres) + spread)
        noise = self.noise**2 / training.examples
        squared = (objective @ slopes).square().sum() + objective**2 @ noise
        second = objective @ (slopes.square().sum(1) + noise)
        return float(value), float(squared), float(second - squared)

    def slopes(self, point: Tensor) -> Tensor:
        """∇ℓ_t of every task at a point, ``(T, d)``, without noise."""
        return (self.hessians @ (point - self.centres)[..., None])[..., 0]

    @cached_property
    def minimum(self) -> Tensor:
        """Where the mean expected loss is least, ``(d,)``."""
        pulls = (self.hessians @ self.centres[..., None]).sum(0)[:, 0]
        best: Tensor = torch.linalg.solve(self.hessians.sum(0), pulls)
        return best


@dataclass(frozen=True, repr=False)
class Errors(Brief):
    """Exact expectations at a merge, over the draws of training sets and batches."""

    generalisation: float  # E_G, expected less training loss, mean over tasks
    optimisation: float  # E_O, training loss of the merge less the least that any θ has
    empirical: float  # the mean training loss
    # s_t, ``(T,)``: squared distance that expert t moves when one of its examples is drawn again,
    # with all batches the same
    local_stability: Tensor
    stability: float  # S of Definition 2 (Li et al., 2026): of the merge, mean over the tasks
    second_moment: float  # V, squared gradient of a training example's loss, mean over all
    gradient: float  # ‖∇f‖² of the mean training loss

    @property
    def excess(self) -> float:
        """The excess error of Li et al. (2026), Eq. 3: generalisation plus optimisation."""
        return self.generalisation + self.optimisation


def covered(tasks: Quadratics, training: Training) -> tuple[Tensor, Tensor]:
    """R_t and the batches' part of the covariance of every expert, both ``(T, d, d)``."""
    if any(not bool((vector == vector[0]).all()) for vector in training.vectors):
        raise ValueError("constant vectors only: quadratics know plain SGD with a constant rate")
    pace = training.learning_rate * torch.stack([vector[0] for vector in training.vectors])
    values, axes = torch.linalg.eigh(tasks.hessians)
    rates, steps = 1 - pace[:, None] * values, training.steps[:, None]
    reach = axes * (1 - rates**steps)[:, None] @ axes.mT
    inner = axes.mT @ tasks.hessians @ tasks.covariances @ tasks.hessians @ axes
    ratio = rates[:, :, None] * rates[:, None, :]
    flat = (1 - ratio).abs() < FLAT
    powers = (1 - ratio ** steps[..., None]) / torch.where(flat, 1, 1 - ratio)
    sums = torch.where(flat, steps[..., None], powers)
    share = (1 - training.batch / training.examples) / training.batch
    scale = (pace**2 * share)[:, None, None]
    return reach, scale * (axes @ (inner * sums) @ axes.mT)


def errors(tasks: Quadratics, training: Training) -> Errors:
    """What a merge of experts has, exactly."""
    hessians, weights, counts = tasks.hessians, training.weights, training.examples[:, None, None]
    total = len(hessians)
    average = hessians.mean(0)
    reach, batches = covered(tasks, training)
    gap = (tasks.start - tasks.centres)[..., None]
    experts = tasks.centres + gap[..., 0] - (reach @ gap)[..., 0]
    mean = tasks.start + weights @ (experts - tasks.start)
    per_expert = reach @ tasks.covariances @ reach.mT / counts + batches
    spread = (weights[:, None, None] ** 2 * per_expert).sum(0)  # of the merge
    joint = weights[:, None, None] * reach @ tasks.covariances / counts  # with the data's mean
    local = 2 / training.examples * _trace(per_expert)

    # E_O = ½ (θ − θ̂)ᵀ H (θ − θ̂) with the mean H, and θ̂ linear in the data's means.
    pull = torch.linalg.solve(average, hessians) / total
    apart = weights[:, None, None] * reach - pull
    residual = apart @ tasks.covariances @ apart.mT / counts
    residual = (residual + weights[:, None, None] ** 2 * batches).sum(0)
    ahead = mean - tasks.minimum
    moment = torch.outer(ahead, ahead) + residual

    away = mean - tasks.centres
    outer = away[:, :, None] * away[:, None, :]
    means = outer + spread + tasks.covariances / counts - joint - joint.mT
    losses = 0.5 * _trace(hessians @ (means + (1 - 1 / counts) * tasks.covariances))
    slopes = hessians @ (outer + spread + tasks.covariances - joint - joint.mT) @ hessians
    return Errors(
        generalisation=float(_trace(hessians @ joint).mean()),
        optimisation=float(0.5 * _trace(average @ moment)),
        empirical=float(losses.mean()),
        local_stability=local,
        stability=float((weights**2 * local).mean()),
        second_moment=float(_trace(slopes).mean()),
        gradient=float(_trace(average @ moment @ average)),
    )


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def _form(matrices: Tensor, vectors: Tensor) -> Tensor:
    """vᵀ M v for every one."""
    return torch.einsum("td,tde,te->t", vectors, matrices, vectors)
