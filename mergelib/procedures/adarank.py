"""AdaRank: which singular directions of task vectors stay, learned by entropy (Lee et al., 2026).

The merged weights are θ = o + Σ_t λ_t U_t diag(b_t ∘ s_t) V_tᵀ in every matrix, with masks b of
zeros and ones. U s Vᵀ is the full SVD of θ_t − o, where the origin o is θ_0 (task arithmetic) or
the average (CART). With TSV, o is θ_0, and U s Vᵀ are the orthogonal directions that `tsv` adds;
this is our reading, as the released code has no TSV. Iso-C cannot be the base: its directions
belong to the merged matrix, not to experts.

Masks are b = [x > 0] of logits x. The straight-through estimator replaces the step's derivative by
that of σ(x / 10). One backward pass gives G = ∂ℓ/∂θ, and then
∂ℓ/∂x_i = λ s_i u_iᵀ G v_i σ'(x_i / 10) / 10 and ∂ℓ/∂λ = Σ_i b_i s_i u_iᵀ G v_i.

Directions that are off have gradients too, so all of them stay in memory. Those of a matrix take
at most twice the memory of its task vectors.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mergelib.merging import compare, weights_of
from mergelib.messages.brief import Brief
from mergelib.messages.kinds import Count, Share, Size
from mergelib.numerics.linalg import truncated_svd
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted, complete, tell_of_kept
from mergelib.procedures.objectives import batches, loss_gradients
from mergelib.progress import progress
from mergelib.registry import Needs, procedure
from mergelib.rules.arithmetic import average
from mergelib.rules.low_rank import rank_of
from mergelib.rules.spectral import task_directions
from mergelib.statedict import is_statistic

# λ and share of directions at the start: the released code's for eight tasks, and TSV's default.
STARTS = {"task_arithmetic": (0.3, 1.0), "cart": (2.3, 0.16), "tsv": (1.0, 1.0)}
LOGIT, TEMPERATURE = 0.1, 10.0  # the released code's


@dataclass(frozen=True, repr=False)
class Directions(Brief):
    """Rank-one parts of the T task vectors of a tensor, R of each, one after another.

    ``left`` has shape ``(m, T·R)``, its columns are u s; ``right`` has shape ``(T·R, n)``. Other
    tensors than matrices have one direction per expert: m is the number of entries, n = 1.
    """

    origin: Tensor
    left: Tensor
    right: Tensor

    def at(self, weights: Tensor) -> Tensor:
        """Return the merged tensor with weights λ b, shape ``(T, R)``."""
        added = (self.left * weights.flatten().to(self.left)) @ self.right
        return self.origin + added.view_as(self.origin)

    def pull(self, gradient: Tensor) -> Tensor:
        """Return the weights' gradient s uᵀ G v, shape ``(T·R,)``, from the merged tensor's G."""
        matrix = gradient.reshape(-1, self.right.shape[1])
        return ((self.left.T @ matrix) * self.right).sum(1).float()


@dataclass(frozen=True)
class AdaRankSettings:
    """Hyperparameters of `adarank`.

    Attributes:
        base: the origin and the directions; ``"cart"`` takes the average and centred task vectors,
            and ``"tsv"`` its orthogonal directions, with the average of other tensors.
        init: initial λ; None for the released code's with eight tasks: 0.3, or 2.3 with CART; 1
            with TSV.
        rank_ratio: share of the leading directions that are on at the start, rounded up as in
            `cart`; None for the released code's, which rounds down: 1, or 0.16 with CART; 1 with
            TSV.
        learning_rate: of Adam, for logits and λ, and about their change per step. Logits start
            at ±0.1, so a mask needs about 0.1 / learning_rate steps to change.
        steps: number of steps. The released code measures test accuracy after every 500, and keeps
            the best.
        batch_size: inputs of each task per step.
        seed: of the batches.
    """

    base: Literal["task_arithmetic", "cart", "tsv"] = "task_arithmetic"
    init: float | None = None
    rank_ratio: Share | None = None
    learning_rate: float = 1e-3
    steps: Count = 10_000
    batch_size: Size = 16
    seed: int = 0

    @property
    def start(self) -> tuple[float, float]:
        """The initial λ, and the share of directions that are on."""
        scale, ratio = STARTS[self.base]
        return (
            scale if self.init is None else self.init,
            ratio if self.rank_ratio is None else self.rank_ratio,
        )


@torch.no_grad()
def decompose(
    problem: Problem, settings: AdaRankSettings
) -> tuple[dict[str, Tensor], dict[str, Directions], dict[str, Tensor]]:
    """Return what is not learned, the directions of every parameter, and logits of matrices."""
    scale, ratio = settings.start
    parameters = dict(problem.model.named_parameters(remove_duplicate=False))
    fixed, directions, logits = {}, {}, {}
    for key, (tuned, origin) in weights_of(compare(problem.experts, problem.pretrained)):
        assert origin is not None
        matrix = key in parameters and problem.is_matrix(key, origin)
        others = settings.base == "tsv" and not matrix
        if settings.base == "cart" or others or is_statistic(key):  # statistics as in `merge`
            origin = average(tuned)
        if key not in parameters:
            moved = 0.0 if is_statistic(key) else scale * sum(tensor - origin for tensor in tuned)
            fixed[key] = origin + moved
        elif matrix:
            full = min(origin.flatten(1).shape)
            if settings.base == "tsv":
                full = max(1, full // len(tuned))
                matrices = [tensor.flatten(1) for tensor in tuned]
                left, right = task_directions(matrices, origin.flatten(1), full)
            else:
                parts = [truncated_svd((t - origin).flatten(1), full) for t in tuned]
                left = torch.cat([u * s for u, s, _ in parts], dim=1)
                right = torch.cat([vh for *_, vh in parts])
            directions[key] = Directions(origin, left, right)
            logits[key] = torch.full((len(tuned), full), -LOGIT, device=origin.device)
            logits[key][:, : rank_of((full,), ratio, "ceil")] = LOGIT
        else:
            vectors = torch.stack([tensor - origin for tensor in tuned])
            left, right = vectors.view(len(tuned), -1).T, origin.new_ones(len(tuned), 1)
            directions[key] = Directions(origin, left, right)
    origins = {key: part.origin for key, part in directions.items()}
    tell_of_kept(problem, fixed | origins, "adarank", "keeps whole")
    if not logits:
        advice = "pass is_matrix=, for convolutions is_matrix=mergelib.is_kernel"
        raise ValueError(f"adarank found no matrix to take singular directions of: {advice}")
    return fixed, directions, logits


@procedure(
    paper="lee2026adarank",
    data="unlabelled inputs of every task (the paper: test inputs)",
    settings=AdaRankSettings,
    needs=Needs(),
)
def adarank(problem: Problem, settings: AdaRankSettings) -> Adapted:
    """AdaRank: learn which singular directions of task vectors stay, and λ, by entropy.

    Adam minimises the sum of the tasks' mean entropies. As in the released code, every expert and
    tensor has its own λ, which is learned with the masks. Two things are ours. The result is that
    of the last step, because the choice of a step needs labels. `is_matrix` decides what is a
    matrix, where the released code takes the matrices of attention and MLP.

    Returns:
        The merged state; ``coefficients``, λ with one row per expert and one column per tensor;
        ``ranks``, the number of directions that stay, in the same form for matrices alone; and
        ``history``, one row per step with each task's entropy before it (nats).
    """
    import pandas as pd

    pretrained, experts = problem.pretrained, list(problem.experts)
    fixed, directions, logits = decompose(problem, settings)
    keys = list(directions)
    device = directions[keys[0]].origin.device
    scales = torch.full((len(experts), len(keys)), settings.start[0], device=device)
    optimiser = torch.optim.Adam([scales, *logits.values()], lr=settings.learning_rate)

    def merge() -> dict[str, Tensor]:
        masks = {key: (x > 0).float() for key, x in logits.items()}
        columns = zip(directions.items(), scales.T[:, :, None], strict=True)
        return fixed | {key: part.at(own * masks.get(key, 1.0)) for (key, part), own in columns}

    stream = batches(problem.data, settings.batch_size, settings.seed, device)
    history = []
    for step in progress(range(settings.steps), desc=f"adarank {settings.base}", leave=False):
        losses, gradients = loss_gradients(problem, merge(), keys, next(stream))
        history.append({"step": step, **losses})
        scales.grad = torch.empty_like(scales)
        for column, (key, part) in enumerate(directions.items()):
            pulled = part.pull(gradients[key]).view(len(experts), -1)
            if key in logits:
                x = logits[key]
                x.grad = straight_through(pulled * scales[:, column, None], x)
                pulled = pulled * (x > 0)
            scales.grad[:, column] = pulled.sum(1)
        optimiser.step()
    ranks = {key: (x > 0).sum(1).tolist() for key, x in logits.items()}
    return Adapted(
        complete(merge(), pretrained),
        pd.DataFrame(scales.cpu().numpy(), index=experts, columns=keys),
        pd.DataFrame(history, columns=["step", *problem.data]),
        ranks=pd.DataFrame(ranks, index=experts),
    )


def straight_through(gradient: Tensor, logits: Tensor) -> Tensor:
    """Return the logits' gradient from that of the masks b = [x > 0], as if b were σ(x / 10)."""
    soft = (logits / TEMPERATURE).sigmoid()
    return gradient * soft * (1 - soft) / TEMPERATURE
