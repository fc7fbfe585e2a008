"""RegMean: linear layers that come closest to every expert's outputs on its own inputs.

For weights W_t (out, in) and inputs X_t (rows) of a linear layer, the merged weight minimises Σ_t
‖X_t Wᵀ − X_t W_tᵀ‖² (Jin et al., 2023, Eq. 2). It needs no labels, only the Gram matrices G_t =
X_tᵀ X_t of each expert's layer inputs on its task. Linear layers are `torch.nn.Linear` and GPT-2's
Conv1D, whose weight is transposed. Weights tied to an embedding have two uses and are averaged.
RegMean++ (Nguyen et al., 2026) takes the inputs of the merged network.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mergelib.activations import layer_inputs, transposed_linear
from mergelib.merging import merge_checked
from mergelib.messages.kinds import NotNegative, Share, Size
from mergelib.problems.calling import (
    Transform,
    evaluating,
    tied_names,
    transform_of,
    transformed,
)
from mergelib.problems.checks import check_finite
from mergelib.problems.examples import Examples, Inputs, as_examples
from mergelib.problems.problem import Problem
from mergelib.procedures.common import Adapted, complete
from mergelib.progress import progress
from mergelib.registry import Needs, procedure
from mergelib.statedict import StateDict, check_keys, weight_key

TRANSPOSED = ".T"  # ends the name of a Gram matrix whose weight is (in, out)


@dataclass(frozen=True)
class RegMeanSettings:
    """Hyperparameters of `regmean` and `regmean_plusplus`.

    Attributes:
        off_diagonal: factor on off-diagonal Gram entries, in 0..1, which compensates for few
            inputs; 1 is least squares, 0 a mean weighted by the inputs' squares.
        ridge: added to the diagonal of Σ G_t, as a fraction of its mean, to make it invertible.
        batch_size: inputs at once.
    """

    off_diagonal: Share = 0.9
    ridge: NotNegative = 1e-6
    batch_size: Size = 100


@procedure(
    paper="jin2023dataless",
    data="unlabelled inputs of every task (a few hundred)",
    settings=RegMeanSettings,
    needs=Needs(heads=False, every_expert=True, every_task=True, accepts=("statistics",)),
)
def regmean(problem: Problem, settings: RegMeanSettings) -> Adapted:
    """RegMean: (Σ W_t G_t) (Σ G_t)⁻¹ in every linear layer, the average elsewhere.

    The Gram matrices come from each expert's inputs, or from ``problem.statistics``; see
    `layer_grams`.
    """
    merged = least_squares(problem, settings, expert_grams(problem, settings.batch_size, "regmean"))
    plain = merge_checked("average", problem.experts, problem.pretrained)
    return Adapted(complete({**plain, **merged}, problem.pretrained))


@procedure(
    paper="nguyen2026regmean",
    data="unlabelled inputs of every task (a few hundred)",
    settings=RegMeanSettings,
    needs=Needs(heads=False, every_expert=True, every_task=True),
)
def regmean_plusplus(problem: Problem, settings: RegMeanSettings) -> Adapted:
    """RegMean++: `regmean` with each layer's inputs computed by the layers merged before it.

    G_t are Gram matrices of the merged network's inputs on task t, in the order of execution
    (Nguyen et al., 2026). Other parameters are the average from the start. The authors' code goes
    from block to block of a transformer, within which inputs come from the experts' blocks.
    """
    names = [*problem.experts]
    state = merge_checked("average", problem.experts, problem.pretrained)
    size = settings.batch_size
    layers = _grams(problem, size, names[0], state)
    for key in progress(layers, desc="regmean++", leave=False):
        grams = ((name, _grams(problem, size, name, state, only=key)) for name in names)
        state |= least_squares(problem, settings, grams)
    return Adapted(complete(state, problem.pretrained))


def least_squares(
    problem: Problem, settings: RegMeanSettings, grams: Iterable[tuple[str, StateDict]]
) -> dict[str, Tensor]:
    """Return (Σ W_t G_t) (Σ G_t)⁻¹ of the layers of these Gram matrices, given by expert."""
    totals: dict[str, Tensor] = {}
    products: dict[str, Tensor] = {}
    share = settings.off_diagonal
    for name, own in grams:
        check_keys(totals or own, own, f"the Gram matrices of {name!r}", "those before")
        for key, gram in own.items():
            weight = matrix_of(name, problem.experts[name], key, gram)
            gram = share * gram + (1 - share) * torch.diag(gram.diagonal())
            totals[key] = totals.get(key, 0) + gram
            products[key] = products.get(key, 0) + weight.to(gram) @ gram
    merged = {}
    for key, total in totals.items():
        weight_key = key.removesuffix(TRANSPOSED)
        ridge = settings.ridge * total.diagonal().mean().clamp(min=1e-30)
        total += ridge * torch.eye(len(total)).to(total)
        solved = torch.linalg.solve(total, products[key].T).T  # total is symmetric
        solved = solved if weight_key == key else solved.T
        merged[weight_key] = solved.to(problem.pretrained[weight_key].dtype).contiguous()
    return merged


def expert_grams(problem: Problem, batch_size: int, method: str) -> Iterator[tuple[str, StateDict]]:
    """Yield every expert's Gram matrices: given as statistics, or of its inputs on its task."""
    for name, expert in progress(problem.experts.items(), desc=method, leave=False):
        given = problem.statistics.get(name)
        yield name, _grams(problem, batch_size, name, expert) if given is None else given


def _grams(
    problem: Problem, batch_size: int, name: str, state: StateDict, only: str = ""
) -> dict[str, Tensor]:
    """Return the `layer_grams` of a network on the inputs of a task."""
    how: Any = {"transform": transform_of(problem.transform, name), "only": only}
    return layer_grams(problem.model, state, problem.data[name], batch_size=batch_size, **how)


def matrix_of(name: str, expert: StateDict, key: str, gram: Tensor) -> Tensor:
    """Return the weight ``(out, in)`` of a Gram matrix ``(in, in)``, which is checked."""
    weight_key = key.removesuffix(TRANSPOSED)
    if weight_key not in expert:
        raise ValueError(f"there is a Gram matrix of {weight_key!r}, which expert {name!r} lacks")
    weight = expert[weight_key] if weight_key == key else expert[weight_key].T
    if gram.shape != (weight.shape[-1], weight.shape[-1]):
        raise ValueError(
            f"the Gram matrix of {weight_key!r} has shape {tuple(gram.shape)}, "
            f"expected {(weight.shape[-1], weight.shape[-1])} for expert {name!r}"
        )
    check_finite(f"the input of {weight_key!r} in expert {name!r}", gram)
    return weight


def layer_grams(
    model: nn.Module,
    state: StateDict,
    inputs: Inputs | Examples,
    *,
    batch_size: int = 100,
    transform: Transform | None = None,
    only: str = "",
) -> dict[str, Tensor]:
    """Return G = XᵀX / rows of every linear layer, in float64: key of the weight to ``(in, in)``.

    The division gives tasks with more or longer inputs no more weight. A key ends in ``.T`` if the
    layer stores its weight transposed; layers with tied weights are left out, and with ``only`` all
    but the one of this name. Save the matrices with `mergelib.save_state_dict` to use `regmean`
    where the data are not available.
    """
    device = next(model.parameters()).device
    weights = {key: value.to(device) for key, value in state.items()}
    ties = tied_names(model)
    shared = {*ties, *ties.values()}
    turned = {
        weight_key(name)
        for name, module in model.named_modules()
        if isinstance(module, transposed_linear())
    }
    grams: dict[str, Tensor] = {}
    rows: dict[str, int] = {}
    with evaluating(model):
        for batch in as_examples(inputs).batches(batch_size):
            x = transformed(batch.to(device).inputs, transform)
            for key, values in layer_inputs(model, x, weights).items():
                name = key + TRANSPOSED if key in turned else key
                if key not in shared and only in ("", name):
                    values = values.double()  # so that few inputs have few directions
                    grams[name] = grams.get(name, 0) + values.T @ values
                    rows[name] = rows.get(name, 0) + len(values)
    return {name: gram / rows[name] for name, gram in grams.items()}
