"""AdaMerging: merging coefficients learned by entropy (Yang et al., 2024).

The merged weights are θ_l = o_l + Σ_t λ_{t,l} v_{t,l} in every tensor l. A data-free method defines
the origin o and basis vectors v: θ_0 and task vectors, TIES' trimmed ones that agree with the
elected sign, or CART's average and centred low-rank ones. The coefficients λ minimise the entropy
of predictions on unlabelled inputs.

The mixing needs no graph: one backward pass gives the gradient with respect to the merged weights,
g_l = ∂ℓ/∂θ_l, and ∂ℓ/∂λ_{t,l} = ⟨g_l, v_{t,l}⟩ is an inner product.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mergelib.merging import compare, first_pass, weights_of
from mergelib.messages.brief import Brief
from mergelib.messages.kinds import Count, Share, Size
from mergelib.numerics.linalg import low_rank
from mergelib.numerics.selection import magnitude_thresholds
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted, complete, tell_of_kept
from mergelib.procedures.objectives import batches, loss_gradients
from mergelib.progress import progress
from mergelib.registry import Needs, procedure
from mergelib.rules.arithmetic import average
from mergelib.rules.low_rank import rank_of
from mergelib.rules.sparse import trimmed
from mergelib.statedict import is_statistic

Base = Literal["task_arithmetic", "ties", "cart"]
STARTS = {"task_arithmetic": 0.3, "ties": 0.3, "cart": 1.0}


@dataclass(frozen=True, repr=False)
class Span(Brief):
    """Origin and basis vectors, shape ``(T, …)``, of every tensor."""

    origin: dict[str, Tensor]
    vectors: dict[str, Tensor]

    def at(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Return the merged tensors at coefficients of shape ``(T, tensors)``."""
        merged = dict(self.origin)
        for column, (key, vectors) in enumerate(self.vectors.items()):
            weights = coefficients[:, column].to(vectors.dtype)
            merged[key] = torch.tensordot(weights, vectors, 1).add_(self.origin[key])
        return merged

    def pull(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the coefficients' gradients, from those of the tensors with a basis, in order."""
        pulled = [
            (vectors.flatten(1) @ gradient.flatten()).float()
            for vectors, gradient in zip(self.vectors.values(), gradients, strict=True)
        ]
        return torch.stack(pulled, dim=1)


@dataclass(frozen=True)
class AdaMergingSettings:
    """Hyperparameters of `adamerging`.

    Attributes:
        base: the method that defines origin and basis; ``"cart"`` is CART's Eq. 8.
        granularity: one coefficient per expert and tensor (``"layer"``), or per expert.
        init: initial coefficient; None for 0.3, or 1.0 with CART.
        learning_rate: of Adam.
        steps: number of steps.
        batch_size: inputs of each task per step.
        loss: ``"cross_entropy"`` learns from labels, as an upper bound; it is not AdaMerging.
        clamp: keep coefficients in 0..1.
        seed: of the batches.
        rank_ratio: of CART.
        density: of TIES.
    """

    base: Base = "task_arithmetic"
    granularity: Literal["layer", "task"] = "layer"
    init: float | None = None
    learning_rate: float = 1e-3
    steps: Count = 500
    batch_size: Size = 16
    loss: Literal["entropy", "cross_entropy"] = "entropy"
    clamp: bool = False
    seed: int = 0
    rank_ratio: Share = 0.08
    density: float = 0.2

    @property
    def start(self) -> float:
        """The initial value of all coefficients."""
        return STARTS[self.base] if self.init is None else self.init


@torch.no_grad()
def span(problem: Problem, settings: AdaMergingSettings) -> Span:
    """Return the origin and basis of a data-free method, with a basis of parameters alone.

    With all coefficients λ the point equals `merge` of the method at scale λ: ``task_arithmetic``;
    ``ties`` with ``reduce="sum"``; or ``cart``, where only matrices have a basis. Buffers keep
    their initial values.
    """
    source, base = compare(problem.experts, problem.pretrained), settings.base
    thresholds: Sequence[float] = ()
    if base == "ties":
        thresholds = magnitude_thresholds(
            lambda: (group for _, group in first_pass(source)), settings.density
        )
    parameters = dict(problem.model.named_parameters(remove_duplicate=False))
    basis = Span({}, {})
    for key, (tuned, origin) in weights_of(source):
        assert origin is not None
        if is_statistic(key):  # as in `merge`
            basis.origin[key] = average(tuned)
            continue
        if base == "cart":
            origin = basis.origin[key] = average(tuned)
            if not problem.is_matrix(key, origin):
                continue
            rank = rank_of(origin.flatten(1).shape, settings.rank_ratio, "ceil")
            parts = [low_rank((tensor - origin).flatten(1), rank) for tensor in tuned]
            vectors = torch.stack(parts).view(-1, *origin.shape)
        elif base == "ties":
            vectors = trimmed(tuned, origin, thresholds)
            vectors *= (vectors * vectors.sum(0)) > 0
        else:
            vectors = torch.stack([tensor - origin for tensor in tuned])
        if key in parameters:
            basis.origin[key], basis.vectors[key] = origin, vectors
        else:
            basis.origin[key] = origin + settings.start * vectors.sum(0)
    if base == "cart":
        tell_of_kept(problem, basis.origin, "adamerging with base 'cart'", "leaves to average")
    if not basis.vectors:
        raise ValueError(f"no parameter has a basis of {base!r}: see is_matrix")
    return basis


@procedure(
    paper="yang2024adamerging",
    data="unlabelled inputs of every task (the paper: test inputs)",
    settings=AdaMergingSettings,
    needs=Needs(labels="classes", unless=("loss", "entropy")),
)
def adamerging(problem: Problem, settings: AdaMergingSettings) -> Adapted:
    """AdaMerging: learn coefficients by the entropy of predictions on unlabelled inputs.

    Each step passes a batch of every task through the merged model, sums the tasks' mean entropies,
    and moves the coefficients by Adam. The paper uses the test inputs, without their labels.

    Returns:
        The merged state; ``coefficients``, one row per expert and one column per tensor;
        ``history``, one row per step with each task's loss before it (nats).
    """
    return learned(problem, settings, f"adamerging {settings.base}")


def learned(
    problem: Problem, settings: AdaMergingSettings, desc: str, trained: Sequence[Tensor] = ()
) -> Adapted:
    """Return what `adamerging` does, where its loss also trains further tensors, in place."""
    import pandas as pd

    pretrained, by_layer = problem.pretrained, settings.granularity == "layer"
    basis = span(problem, settings)
    keys = list(basis.vectors)
    device = next(iter(basis.origin.values())).device
    shape = len(problem.experts), len(keys) if by_layer else 1
    weights = torch.full(shape, settings.start, device=device, dtype=torch.float32)
    optimiser = torch.optim.Adam([weights, *trained], lr=settings.learning_rate)
    stream = batches(problem.data, settings.batch_size, settings.seed, device)
    history = []
    for step in progress(range(settings.steps), desc=desc, leave=False):
        merged = basis.at(weights.expand(-1, len(keys)))
        losses, gradients = loss_gradients(problem, merged, keys, next(stream), trained)
        history.append({"step": step, **losses})
        pulled = basis.pull(list(gradients.values()))
        weights.grad = pulled if by_layer else pulled.sum(1, keepdim=True)
        optimiser.step()
        if settings.clamp:
            weights.clamp_(0, 1)
    final = weights.expand(-1, len(keys))
    state = complete(basis.at(final), pretrained)
    table = pd.DataFrame(final.cpu().numpy(), index=list(problem.experts), columns=keys)
    return Adapted(state, table, pd.DataFrame(history, columns=["step", *problem.data]))
