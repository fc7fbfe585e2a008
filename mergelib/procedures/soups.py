"""Soups: averages of models, of one task or several (Wortsman et al., 2022).

The uniform soup takes all of them. The greedy soup (Recipe 1) tries them in the order of their
accuracy; each joins the average if that loses nothing by it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mergelib.merging import merge
from mergelib.procedures.common import (
    Adapted,
    Labelled,
    Transform,
    check_labels,
    check_tasks,
    features,
    labelled,
)
from mergelib.progress import progress
from mergelib.registry import procedure
from mergelib.statedict import Experts, StateDict, check_compatible, name_experts

if TYPE_CHECKING:
    import pandas as pd


@procedure(paper="wortsman2022model", data="no data")
def uniform_soup(experts: Experts, pretrained: StateDict) -> Adapted:
    """Uniform soup: the average of all models, as the rule ``average`` gives it.

    Args:
        experts: mapping of name to state dict, or a list of them.
        pretrained: gives the order of keys, and the counters.

    Returns:
        The soup, and ``coefficients`` with every model's ``weight``.

    Raises:
        ValueError: what `merge` refuses.
    """
    named = name_experts(experts)
    return Adapted(merge("average", named, pretrained=pretrained), _weights(named, list(named)))


@procedure(
    paper="wortsman2022model",
    data="model, heads, labelled inputs (a validation set)",
)
def greedy_soup(
    experts: Experts,
    pretrained: StateDict,
    *,
    model: nn.Module,
    heads: Mapping[str, nn.Module],
    data: Mapping[str, Any],
    batch_size: int = 500,
    transform: Transform | None = None,
) -> Adapted:
    """Greedy soup: add models in the order of their accuracy, as long as accuracy does not fall.

    It asks for one forward pass of all data for each model, and one for each but the first soup.

    Args:
        experts: mapping of name to state dict, or a list of them; names need not be those of tasks.
        pretrained: gives the order of keys, and the counters.
        model: the architecture, run in evaluation mode.
        heads: task to what turns the model's output into logits; for every task of ``data``.
        data: task to a pair of inputs and labels, held out from training.
        batch_size: inputs at once.
        transform: from a batch of inputs to the model's, e.g. the testbed's `normalise`.

    Returns:
        The soup; ``coefficients`` with every model's ``weight``; ``history``, a row a model in the
        order of trial: ``expert``, its own ``accuracy`` (mean over tasks, 0..1), the accuracy of
        the ``soup`` with it, and whether it was ``added``.

    Raises:
        ValueError: data without labels, a label that is no class, or a task without a head.
    """
    import pandas as pd

    named = name_experts(experts)
    check_compatible(pretrained, named, "pretrained")
    check_tasks(data, heads, "head")
    pairs = labelled(data, "greedy_soup")
    check_labels(pairs, model, pretrained, heads, transform)

    def accuracy(state: StateDict) -> float:
        return _accuracy(model, state, heads, pairs, batch_size, transform)

    scores = {name: accuracy(state) for name, state in named.items()}
    chosen: list[str] = []
    best, rows = -1.0, []
    for name in progress(sorted(named, key=lambda each: -scores[each]), desc="soup", leave=False):
        tried = {each: named[each] for each in [*chosen, name]}
        soup = accuracy(merge("average", tried)) if chosen else scores[name]
        added = soup >= best
        rows.append({"expert": name, "accuracy": scores[name], "soup": soup, "added": added})
        if added:
            chosen, best = list(tried), soup
    merged = merge("average", {name: named[name] for name in chosen}, pretrained=pretrained)
    return Adapted(merged, _weights(named, chosen), pd.DataFrame(rows))


def _weights(named: Mapping[str, StateDict], chosen: Sequence[str]) -> "pd.DataFrame":
    """Every model's weight in the average of the chosen ones."""
    import pandas as pd

    weights = [(name in chosen) / len(chosen) for name in named]
    return pd.DataFrame({"weight": weights}, index=list(named))


@torch.no_grad()
def _accuracy(
    model: nn.Module,
    state: StateDict,
    heads: Mapping[str, nn.Module],
    pairs: Mapping[str, Labelled],
    batch_size: int,
    transform: Transform | None,
) -> float:
    """Mean over the tasks of the share of right answers."""
    shares = []
    for task, (inputs, labels) in pairs.items():
        found = features(model, state, inputs, batch_size=batch_size, transform=transform)
        right = heads[task](found).argmax(-1) == labels.to(found.device)
        shares.append(int(right.sum()) / labels.numel())
    return sum(shares) / len(shares)
