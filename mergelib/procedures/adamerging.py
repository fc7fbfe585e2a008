"""AdaMerging: merging coefficients learned by entropy (Yang et al., 2024).

The merged weights are θ_l = o_l + Σ_t λ_{t,l} v_{t,l} in every tensor l, with an origin o and basis
vectors v that a data-free method defines: θ_0 and task vectors, TIES' trimmed ones that agree with
the election, or CART's average and centred low-rank ones. The coefficients λ minimise the
entropy of predictions on unlabelled inputs.

No graph goes through the mixing: one ordinary backward pass gives the gradient with respect to the
merged weights, g_l = ∂ℓ/∂θ_l, and ∂ℓ/∂λ_{t,l} = ⟨g_l, v_{t,l}⟩ is an inner product.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mergelib.linalg import low_rank
from mergelib.merging import explain_not_finite, in_memory, is_weight
from mergelib.procedures.calibration import calibration_data
from mergelib.procedures.common import (
    Adapted,
    Transform,
    check_choice,
    check_labels,
    check_tasks,
    complete,
)
from mergelib.procedures.objectives import batches, check_steps, loss_gradients
from mergelib.progress import progress
from mergelib.registry import procedure
from mergelib.rules.arithmetic import average
from mergelib.rules.low_rank import rank_of
from mergelib.rules.sparse import trim_below
from mergelib.selection import magnitude_thresholds
from mergelib.statedict import (
    Experts,
    StateDict,
    check_keys,
    is_finite,
    is_matrix,
    is_statistic,
    name_experts,
)

Base = Literal["task_arithmetic", "ties", "cart"]
STARTS = {"task_arithmetic": 0.3, "ties": 0.3, "cart": 1.0}


@dataclass(frozen=True)
class Span:
    """Origin and basis vectors, shape ``(T, …)``, of every tensor that coefficients move."""

    origin: dict[str, Tensor]
    vectors: dict[str, Tensor]

    def at(self, coefficients: Tensor) -> dict[str, Tensor]:
        """The merged tensors at coefficients of shape ``(T, tensors)``."""
        merged = dict(self.origin)
        for column, (key, vectors) in enumerate(self.vectors.items()):
            weights = coefficients[:, column].to(vectors.dtype)
            merged[key] = torch.tensordot(weights, vectors, 1).add_(self.origin[key])
        return merged

    def pull(self, gradients: Sequence[Tensor]) -> Tensor:
        """Gradients of the coefficients from those of the tensors with a basis, in their order."""
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
) -> Span:
    """Origin and basis of a data-free method.

    With all coefficients λ, its point is `merge` of that method at scale λ: ``task_arithmetic``;
    ``ties`` with ``reduce="sum"``; ``cart``, where only matrices have a basis, as elsewhere centred
    vectors of full rank are no part of the method.

    Raises:
        ValueError: another base, experts that do not match, NaN or Inf.
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
            yield key, [each.to(dtype) for each in tuned], origin.to(dtype)

    thresholds: Sequence[float] = ()
    if base == "ties":
        thresholds = magnitude_thresholds(
            lambda: ((tuned, origin) for key, tuned, origin in groups() if not is_statistic(key)),
            density,
        )
    made = Span({}, {})
    for key, tuned, origin in groups():
        if is_statistic(key):  # as in `merge`
            made.origin[key] = average(tuned)
            continue
        if base == "cart":
            origin = average(tuned)
            if is_matrix(key, origin):
                rank = rank_of(origin.shape, rank_ratio, "ceil")
                made.vectors[key] = torch.stack([low_rank(each - origin, rank) for each in tuned])
        else:
            vectors = torch.stack([each - origin for each in tuned])
            if base == "ties":
                pairs = zip(vectors, thresholds, strict=True)
                vectors = torch.stack([trim_below(vector, least) for vector, least in pairs])
                vectors *= (vectors * vectors.sum(0)) > 0
            made.vectors[key] = vectors
        made.origin[key] = origin
    return made


@procedure(
    paper="yang2024adamerging",
    data="model, heads, unlabelled inputs of every task (the paper: test inputs)",
)
def adamerging(
    experts: Experts,
    pretrained: StateDict,
    *,
    model: nn.Module,
    heads: Mapping[str, nn.Module],
    data: Mapping[str, Any],
    base: Base = "task_arithmetic",
    granularity: Literal["layer", "task"] = "layer",
    init: float | None = None,
    learning_rate: float = 1e-3,
    steps: int = 500,
    batch_size: int = 16,
    loss: Literal["entropy", "cross_entropy"] = "entropy",
    clamp: bool = False,
    seed: int = 0,
    rank_ratio: float = 0.08,
    density: float = 0.2,
    transform: Transform | None = None,
) -> Adapted:
    """AdaMerging: learn coefficients by the entropy of predictions on unlabelled inputs.

    A step takes a batch of every task through the merged model together, adds up the tasks' mean
    entropies, and moves the coefficients by Adam. In the paper the inputs are the test inputs
    themselves, so it adapts to what it is judged on, though not to its labels.

    Args:
        experts: mapping of name to state dict, or a list of them.
        pretrained: θ_0.
        model: the architecture, run in evaluation mode.
        heads: task to what turns the model's output into logits; for every task of ``data``.
        data: task to inputs, the first dimension counts them, or to inputs and labels, which the
            entropy does not use.
        base: what the coefficients weight; see `span`. CART's Eq. 8 is ``"cart"``.
        granularity: a coefficient for each expert and tensor (``"layer"``), or for each expert.
        init: the coefficients' start; 0.3, and 1.0 for CART, when left out.
        learning_rate: of Adam.
        steps: how many.
        batch_size: inputs of each task in a step.
        loss: ``"cross_entropy"`` learns from labels, which is not AdaMerging; it tells how much
            the coefficients could give.
        clamp: keep coefficients in 0..1.
        seed: of the batches.
        rank_ratio: for CART.
        density: for TIES.
        transform: from a batch of ``data`` to the model's input, e.g. the testbed's `normalise`.

    Raises:
        ValueError: what `span` refuses; a task without a head, inputs, or the labels that the loss
            needs; a label that is no class; a loss that is not finite, naming the task.
    """
    import pandas as pd

    named = name_experts(experts)
    check_tasks(data, heads, "head")
    check_choice("loss", loss, ("entropy", "cross_entropy"))
    pairs = calibration_data(data, loss, "adamerging")
    check_steps(steps, batch_size)
    check_choice("granularity", granularity, ("layer", "task"))
    if init is not None and not math.isfinite(init):
        raise ValueError(f"init is {init}, expected a finite number")
    check_keys(model.state_dict(), pretrained, "pretrained", "the model")
    check_labels(pairs, model, pretrained, heads, transform)
    basis = span(named, pretrained, base, rank_ratio=rank_ratio, density=density)
    start = STARTS[base] if init is None else init
    basis = _of_parameters(basis, model, start)
    columns = len(basis.vectors) if granularity == "layer" else 1
    device = next(iter(basis.origin.values())).device
    weights = torch.full((len(named), columns), start, device=device, requires_grad=True)
    optimiser = torch.optim.Adam([weights], lr=learning_rate)
    keys = list(basis.vectors)
    history = []
    inputs = {task: each for task, (each, _) in pairs.items()}
    labels = {task: each for task, (_, each) in pairs.items() if each is not None}
    streams = [batches(each, batch_size, seed, device) for each in (inputs, labels)]
    for step in progress(range(steps), desc=f"adamerging {base}", leave=False):
        with torch.no_grad():
            merged = basis.at(weights.expand(-1, len(keys)))
        some, targets = map(next, streams)
        losses, gradients = loss_gradients(
            model, merged, keys, pretrained, heads, some, transform, targets
        )
        history.append({"step": step, **losses})
        pulled = basis.pull(list(gradients.values()))
        weights.grad = pulled if granularity == "layer" else pulled.sum(1, keepdim=True)
        optimiser.step()
        if clamp:
            with torch.no_grad():
                weights.clamp_(0, 1)
    final = weights.detach().expand(-1, len(basis.vectors))
    state = complete(basis.at(final), pretrained)
    state = {key: value.to(pretrained[key].dtype) for key, value in state.items()}
    table = pd.DataFrame(final.cpu().numpy(), index=list(named), columns=list(basis.vectors))
    return Adapted(state, table, pd.DataFrame(history, columns=["step", *pairs]))


def _of_parameters(basis: Span, model: nn.Module, start: float) -> Span:
    """The basis of what takes gradients; buffers such as running means stay where they start."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    fixed = {
        key: basis.origin[key] + start * vectors.sum(0)
        for key, vectors in basis.vectors.items()
        if key not in parameters
    }
    moved = {key: vectors for key, vectors in basis.vectors.items() if key in parameters}
    return Span({**basis.origin, **fixed}, moved)
