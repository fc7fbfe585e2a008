"""Fisher merging: a mean of the experts weighted by each parameter's importance.

The weights are the diagonal Fisher information of every expert on its own task (Matena and Raffel,
2022, Eq. 4): F = E_x E_{y ~ p(y|x)} [(∂ log p(y|x) / ∂θ)²]. The gradient of each example is
squared; squaring a batch's gradient would give a different, much noisier quantity.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from mergelib.merging import merge_checked
from mergelib.messages.kinds import Positive, Size
from mergelib.problems.calling import Transform, evaluating, transform_of, transformed
from mergelib.problems.checks import check_finite
from mergelib.problems.examples import IGNORED, MASK, Examples, Inputs, as_examples
from mergelib.problems.gradients import ExampleGradients, example_loss
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted, complete
from mergelib.progress import progress
from mergelib.registry import Needs, procedure
from mergelib.statedict import StateDict, check_keys


@dataclass(frozen=True)
class FisherSettings:
    """Hyperparameters of `fisher`.

    Attributes:
        labels: ``"model"`` draws labels from the expert's predictions, which is the Fisher
            information; ``"true"`` uses the given labels (the *empirical* Fisher).
        floor: the smallest weight of a parameter in each expert, above 0.
        batch_size: examples at once; each needs the memory of one gradient.
        seed: of the drawn labels.
    """

    labels: Literal["model", "true"] = "model"
    floor: Positive = 1e-6
    batch_size: Size = 32
    seed: int = 0


@procedure(
    paper="matena2022merging",
    data="inputs of every task (a few hundred)",
    settings=FisherSettings,
    needs=Needs(
        labels="classes", unless=("labels", "model"), every_expert=True, accepts=("statistics",)
    ),
)
def fisher(problem: Problem, settings: FisherSettings) -> Adapted:
    """Fisher merging: Σ F_t θ_t / Σ F_t in every parameter, with diagonal Fisher information F_t.

    Buffers such as running means are averaged, counters copied. The information comes from each
    expert's examples (a few hundred suffice) or from ``problem.statistics``; see `diagonal_fisher`.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    sums: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}
    information: StateDict
    gradients = ExampleGradients()
    for name, expert in progress(problem.experts.items(), desc="fisher", leave=False):
        if name in problem.statistics:
            information = problem.statistics[name]
        else:
            data = problem.data[name]
            information = diagonal_fisher(
                problem.model,
                expert,
                problem.heads[name],
                data.inputs,
                data.labels,
                batch_size=settings.batch_size,
                generator=generator,
                transform=transform_of(problem.transform, name),
                gradients=gradients,
            )
        what = f"the Fisher information of {name!r}"
        check_keys(sums or information, information, what, "those before")
        for key, values in information.items():
            if key not in expert or values.shape != expert[key].shape:
                raise ValueError(f"the Fisher information of {key!r} does not fit expert {name!r}")
            check_finite(f"the Fisher information of {key!r} in expert {name!r}", values)
            weight = values.clamp(min=settings.floor)
            sums[key] = sums.get(key, 0) + weight * expert[key].float()
            weights[key] = weights.get(key, 0) + weight
    pretrained = problem.pretrained
    merged = {key: total / weights[key] for key, total in sums.items()}
    plain = merge_checked("average", problem.experts, pretrained)
    return Adapted(complete({**plain, **merged}, pretrained))


def diagonal_fisher(
    model: nn.Module,
    state: StateDict,
    head: nn.Module | None,
    inputs: Inputs | Examples,
    targets: Tensor | None = None,
    *,
    batch_size: int = 32,
    generator: torch.Generator | None = None,
    transform: Transform | None = None,
    gradients: ExampleGradients | None = None,
) -> dict[str, Tensor]:
    """Return the mean squared gradient of the log-likelihood over examples, for every parameter.

    Save it with `mergelib.save_state_dict` to use `fisher` where the data are not available.

    Args:
        model: the architecture.
        state: its weights.
        head: maps outputs to logits, ``(B, C)``, or ``(B, N, C)`` for texts, each of which counts
            as one example; None if the model returns logits.
        inputs: the first dimension counts the examples.
        targets: labels; drawn from the predictions if None.
        batch_size: examples at once.
        generator: draws labels, on the CPU.
        transform: maps a batch of inputs to the model's.
        gradients: computes them; shared by several calls, it warns once.

    Warns:
        UserWarning: if PyTorch cannot vectorise the model, so that examples run one by one.
    """
    examples = Examples(as_examples(inputs).inputs, targets)
    head = nn.Identity() if head is None else head
    gradients = ExampleGradients() if gradients is None else gradients
    summed = partial(F.cross_entropy, reduction="sum")
    parameters, loss = example_loss(model, state, head, summed)
    device = next(model.parameters()).device
    squares = {name: torch.zeros_like(value) for name, value in parameters.items()}
    # vmap has no rule for fused attention, and would fall back to a loop
    with evaluating(model, head), sdpa_kernel(SDPBackend.MATH):
        for batch in examples.batches(batch_size):
            moved = batch.to(device)
            x, y = transformed(moved.inputs, transform), moved.labels
            if y is None:
                y = _judged(_draw(loss.logits(parameters, x), generator), x)
            for name, gradient in gradients(loss, parameters, x, y).items():
                squares[name] += gradient.square().sum(0)
    return {name: total / len(examples) for name, total in squares.items()}


@torch.no_grad()
def _draw(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw a label for each example from the predictions."""
    flat = logits.detach().float().flatten(0, -2).softmax(1).cpu()
    if not torch.isfinite(flat).all():
        raise ValueError("the predictions hold NaN or Inf: look at the inputs")
    labels = torch.multinomial(flat, 1, generator=generator)[:, 0]
    return labels.view(logits.shape[:-1]).to(logits.device)


def _judged(labels: Tensor, inputs: Inputs) -> Tensor:
    """Return labels of positions, `IGNORED` on padding."""
    mask = None if isinstance(inputs, Tensor) else inputs.get(MASK)
    if mask is None or mask.shape != labels.shape:
        return labels
    return labels.masked_fill(mask == 0, IGNORED)
