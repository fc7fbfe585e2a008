"""AdaMerging: merging coefficients learned by entropy (Yang et al., 2024).

The merged weights are θ_l = o_l + Σ_t λ_{t,l} v_{t,l} in every tensor l. A data-free method defines
the origin o and basis vectors v: θ_0 and task vectors, TIES' trimmed ones that agree with the
elected sign, or CART's average and centred low-rank ones. The coefficients λ minimise the entropy
of predictions on unlabelled inputs.

The mixing needs no graph: one backward pass gives the gradient with respect to the merged weights,
g_l = ∂ℓ/∂θ_l, and ∂ℓ/∂λ_{t,l} = ⟨g_l, v_{t,l}⟩ is an inner product.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from mergelib.inspection.kinds import Matrices
from mergelib.merging import in_memory, is_weight
from mergelib.merging.applying import explain_not_finite
from mergelib.messages.brief import Brief
from mergelib.numerics.linalg import low_rank
from mergelib.numerics.selection import magnitude_thresholds
from mergelib.problems.checks import check_choice, check_steps
from mergelib.problems.problem import IsMatrix, Problem
from mergelib.procedures.common import Adapted, complete
from mergelib.procedures.objectives import batches, loss_gradients
from mergelib.progress import progress
from mergelib.registry import Needs, procedure
from mergelib.rules.arithmetic import average
from mergelib.rules.low_rank import rank_of
from mergelib.rules.sparse import trim_below
from mergelib.statedict import StateDict, is_finite, is_matrix, is_statistic

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


@torch.no_grad()
def span(
    experts: Mapping[str, StateDict],
    pretrained: StateDict,
    base: Base,
    *,
    rank_ratio: float = 0.08,
    density: float = 0.2,
    is_matrix: IsMatrix = is_matrix,
) -> Span:
    """Return the origin and basis of a data-free method.

    With all coefficients λ the point equals `merge` of the method at scale λ: ``task_arithmetic``;
    ``ties`` with ``reduce="sum"``; or ``cart``, where only matrices have a basis.

    Raises:
        ValueError: for another base, experts that do not match, NaN or Inf.
    """
    if base not in STARTS:
        raise ValueError(f"base is {base!r}, expected one of {', '.join(STARTS)}")
    source = in_memory(experts, pretrained)

    def groups() -> Iterator[tuple[str, list[Tensor], Tensor]]:
        for key in source:
            tuned, origin = source.load(key)
            if key in source.aliases or origin is None or not is_weight(key, origin):
                continue
            if not all(map(is_finite, [*tuned, origin])):
                raise ValueError(explain_not_finite(key, source.names, tuned, origin))
            dtype = torch.promote_types(origin.dtype, torch.float32)
            yield key, [tensor.to(dtype) for tensor in tuned], origin.to(dtype)

    thresholds: Sequence[float] = ()
    if base == "ties":
        thresholds = magnitude_thresholds(
            lambda: ((tuned, origin) for key, tuned, origin in groups() if not is_statistic(key)),
            density,
        )
    basis = Span({}, {})
    for key, tuned, origin in groups():
        if is_statistic(key):  # as in `merge`
            basis.origin[key] = average(tuned)
            continue
        if base == "cart":
            origin = average(tuned)
            if is_matrix(key, origin):
                rank = rank_of(origin.flatten(1).shape, rank_ratio, "ceil")
                centred = [(tensor - origin).flatten(1) for tensor in tuned]
                vectors = torch.stack([low_rank(matrix, rank) for matrix in centred])
                basis.vectors[key] = vectors.view(-1, *origin.shape)
        else:
            vectors = torch.stack([tensor - origin for tensor in tuned])
            if base == "ties":
                pairs = zip(vectors, thresholds, strict=True)
                vectors = torch.stack([trim_below(vector, least) for vector, least in pairs])
                vectors *= (vectors * vectors.sum(0)) > 0
            basis.vectors[key] = vectors
        basis.origin[key] = origin
    return basis


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
    steps: int = 500
    batch_size: int = 16
    loss: Literal["entropy", "cross_entropy"] = "entropy"
    clamp: bool = False
    seed: int = 0
    rank_ratio: float = 0.08
    density: float = 0.2

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, ("entropy", "cross_entropy"))
        check_choice("granularity", self.granularity, ("layer", "task"))
        check_choice("base", self.base, tuple(STARTS))
        check_steps(self.steps, self.batch_size)
        if self.init is not None and not math.isfinite(self.init):
            raise ValueError(f"init is {self.init}, expected a finite number")

    @property
    def start(self) -> float:
        """The initial value of all coefficients."""
        return STARTS[self.base] if self.init is None else self.init


def _needs(settings: AdaMergingSettings) -> Needs:
    if settings.loss == "entropy":
        return Needs()
    return Needs(labels="classes", setting="cross_entropy")


@procedure(
    paper="yang2024adamerging",
    data="unlabelled inputs of every task (the paper: test inputs)",
    settings=AdaMergingSettings,
    needs=_needs,
)
def adamerging(problem: Problem, settings: AdaMergingSettings) -> Adapted:
    """AdaMerging: learn coefficients by the entropy of predictions on unlabelled inputs.

    Each step passes a batch of every task through the merged model, sums the tasks' mean entropies,
    and moves the coefficients by Adam. The paper uses the test inputs, without their labels.

    Returns:
        The merged state; ``coefficients``, one row per expert and one column per tensor;
        ``history``, one row per step with each task's loss before it (nats).
    """
    import pandas as pd

    pretrained, by_layer = problem.pretrained, settings.granularity == "layer"
    basis = _basis(problem, settings)
    keys = list(basis.vectors)
    device = next(iter(basis.origin.values())).device
    shape = len(problem.experts), len(keys) if by_layer else 1
    weights = torch.full(shape, settings.start, device=device, requires_grad=True)
    optimiser = torch.optim.Adam([weights], lr=settings.learning_rate)
    stream = batches(problem.data, settings.batch_size, settings.seed, device)
    history = []
    for step in progress(range(settings.steps), desc=f"adamerging {settings.base}", leave=False):
        with torch.no_grad():
            merged = basis.at(weights.expand(-1, len(keys)))
        losses, gradients = loss_gradients(
            problem.model, merged, keys, pretrained, problem.heads, next(stream), problem.transform
        )
        history.append({"step": step, **losses})
        pulled = basis.pull(list(gradients.values()))
        weights.grad = pulled if by_layer else pulled.sum(1, keepdim=True)
        optimiser.step()
        if settings.clamp:
            with torch.no_grad():
                weights.clamp_(0, 1)
    final = weights.detach().expand(-1, len(keys))
    state = complete(basis.at(final), pretrained)
    state = {key: value.to(pretrained[key].dtype) for key, value in state.items()}
    table = pd.DataFrame(final.cpu().numpy(), index=list(problem.experts), columns=keys)
    return Adapted(state, table, pd.DataFrame(history, columns=["step", *problem.data]))


def _basis(problem: Problem, settings: AdaMergingSettings) -> Span:
    """Return origin and basis of the tensors that coefficients move: the model's parameters."""
    basis = span(
        problem.experts,
        problem.pretrained,
        settings.base,
        rank_ratio=settings.rank_ratio,
        density=settings.density,
        is_matrix=problem.is_matrix,
    )
    if settings.base == "cart" and isinstance(problem.is_matrix, Matrices):
        for key, tensor in basis.origin.items():
            problem.is_matrix.note(key, tensor)
        problem.is_matrix.tell("adamerging with base 'cart'", "leaves to average")
    basis = _of_parameters(basis, problem.model, settings.start)
    if not basis.vectors:
        raise ValueError(f"no parameter has a basis of {settings.base!r}: see is_matrix")
    return basis


def _of_parameters(basis: Span, model: nn.Module, start: float) -> Span:
    """Restrict the basis to parameters; buffers keep their initial values."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    fixed = {
        key: basis.origin[key] + start * vectors.sum(0)
        for key, vectors in basis.vectors.items()
        if key not in parameters
    }
    moved = {key: vectors for key, vectors in basis.vectors.items() if key in parameters}
    return Span({**basis.origin, **fixed}, moved)
