"""Merged models under heads that are fitted to their own features, beside the frozen heads.

A frozen head is made of pretrained features, so a merged model can lose accuracy because its
features are worse, or only because they no longer fit that head. A head that is fitted again to
the merged features separates the two, and the pretrained model under such a head is the control.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.lab.comparison import choices, merge_zoo, merged_grid, points, records, widened
from mergebook.lab.grids import GRIDS, Grid
from mergebook.lab.results import Tables
from mergebook.lab.runner import study
from mergebook.suites.models import Head
from mergebook.suites.types import Zoo
from mergelib.evaluation.loops import has_bfloat16
from mergelib.evaluation.tasks import Split
from mergelib.problems import calling
from mergelib.statedict import StateDict

SCALES = [0.5, 0.7, 1.0, 1.4, 2.0]
JUDGED: dict[str, Grid] = {
    "average": {},
    "task_arithmetic": {"scale": [0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0]},
    "ties": {"density": [0.1, 0.2, 0.5], "scale": [*SCALES, 2.8]},
    "consensus": GRIDS["consensus"],
    "cart": {"rank_ratio": [0.04, 0.08, 0.16, 0.32], "scale": [1.0, 1.5, 2.2, 3.2]},
    **{name: {"scale": SCALES} for name in ("tsv", "iso_c", "iso_cts")},
}
PENALTIES = tuple(10.0**power for power in range(-4, 3))
Labelled = tuple[Tensor, Tensor]  # features (N, width) and labels (N)


def ridge(features: Tensor, labels: Tensor, classes: int) -> tuple[nn.Linear, float]:
    """Fit a linear classifier to one-hot labels by ridge regression with an intercept.

    The penalty is the one of `PENALTIES`, in units of the mean squared singular value, that has the
    highest leave-one-out accuracy, and the largest of several.

    Args:
        features: ``(N, width)``.
        labels: ``(N)``, from 0 to ``classes`` - 1.
        classes: number of classes.

    Returns:
        The classifier and its leave-one-out accuracy (0..1).
    """
    targets = F.one_hot(labels, classes).double()
    centre, mean = features.double().mean(0), targets.mean(0)
    u, s, vh = torch.linalg.svd(features.double() - centre, full_matrices=False)
    projected, best = u.T @ (targets - mean), (-1.0, torch.zeros(0))
    for penalty in sorted(PENALTIES, reverse=True):
        inverse = s / (s.square() + penalty * s.square().mean())
        fitted = mean + u @ ((inverse * s)[:, None] * projected)
        leverage = u.square() @ (inverse * s) + 1 / len(u)
        left_out = targets - (targets - fitted) / (1 - leverage)[:, None]
        accuracy = (left_out.argmax(1) == labels).double().mean().item()
        best = max(best, (accuracy, inverse), key=lambda pair: pair[0])
    head = nn.Linear(features.shape[1], classes).to(features)
    head.requires_grad_(False)
    weight = (vh.T @ (best[1][:, None] * projected)).T
    head.weight.copy_(weight)
    head.bias.copy_(mean - weight @ centre)
    return head, best[0]


@torch.no_grad()
def _features(zoo: Zoo, state: StateDict, task: str, part: Split) -> Labelled:
    """Return the features of a task's examples, of length 1 each, and their labels."""
    transform, device = zoo.suite.tasks[task].transform, next(zoo.model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=has_bfloat16(device)):
        rows = calling.features(zoo.model, state, part.inputs.to(device), transform=transform)
    return F.normalize(rows.float(), dim=1), part.labels.to(device)


def _few(inputs: Tensor, labels: Tensor, count: int) -> Labelled:
    """Return at most this many examples of each class, the first ones."""
    rank = (labels[:, None] == labels).tril(-1).sum(1)
    return inputs[rank < count], labels[rank < count]


def _accuracy(head: nn.Module, pair: Labelled) -> float:
    return float((head(pair[0]).argmax(1) == pair[1]).double().mean())


def _validated(zoo: Zoo, method: str, grid: Grid) -> pd.DataFrame:
    """Return mean accuracy on validation data under frozen heads and, left out, under new ones."""
    rows = points(grid)
    for i, state in merged_grid(zoo, method, grid):
        frozen, fresh = [], []
        for name, task in zoo.suite.tasks.items():
            pair = _features(zoo, state, name, task.validation)
            frozen.append(_accuracy(zoo.heads[name], pair))
            fresh.append(ridge(*pair, len(task.class_names))[1])
        rows[i] |= {"frozen": sum(frozen) / len(frozen), "fresh": sum(fresh) / len(fresh)}
    return pd.DataFrame(rows)


def _bests(table: pd.DataFrame) -> list[int]:
    return [int(table[column].argmax()) for column in ("frozen", "fresh")]


def _judged(
    zoo: Zoo, state: StateDict, tasks: Sequence[str], shots: Sequence[int], everything: bool
) -> Iterator[dict[str, Any]]:
    """Yield the test accuracy of every task under every head, with the labels that it was given."""
    for name in tasks:
        task = zoo.suite.tasks[name]
        classes, of = len(task.class_names), partial(_features, zoo, state, name)
        given = {"validation": of(task.validation)}
        if shots or everything:
            known = (task.train.inputs, task.train.labels)
            train = of(Split(*(known if everything else _few(*known, max(shots)))))
            given |= {"all": train} if everything else {}
            given |= {f"{count} per class": _few(*train, count) for count in shots}
        validation, test = given["validation"], of(task.test)
        heads: dict[str, tuple[nn.Module, int]] = {
            words: (ridge(*pair, classes)[0], len(pair[1])) for words, pair in given.items()
        }
        sums = torch.zeros(classes, test[0].shape[1]).to(test[0])
        means = Head(sums.index_add_(0, validation[1], validation[0]))
        heads |= {"class means": (means, len(validation[1])), "frozen": (zoo.heads[name], 0)}
        for words, (head, labels) in heads.items():
            accuracy = _accuracy(head, test)
            yield {"task": name, "head": words, "labels": labels, "accuracy": accuracy}


@study()
def fresh_heads(
    zoo: Zoo,
    *,
    grids: Mapping[str, Grid] = JUDGED,
    shots: Sequence[int] = (5, 20, 100),
    everything: bool = True,
) -> Tables:
    """Merges, the pretrained model and the experts under frozen heads and under fitted ones.

    Each rule's hyperparameters are chosen twice on validation data: by accuracy under the frozen
    heads, and by the leave-one-out accuracy of ridge heads (`ridge`) fitted there. Grids that end
    at a best point go on (`widened`).

    Returns:
        ``chosen`` (rows of ``method``, ``settings`` and ``by``: "frozen" or "fresh"),
        ``validation`` (rows of ``method``, the grid's columns, ``frozen`` and ``fresh``) and
        ``test``: rows of ``method``, ``by``, ``head``, ``task``, ``labels`` that the head was
        fitted to, and ``accuracy``. Heads are "frozen", "class means" and ridge heads: on the
        "validation" labels, on "5 per class" and so on (``shots``) of the training labels, and with
        ``everything`` on "all" of these.
    """
    searched, chosen, test = [], [], []
    candidates: list[tuple[str, str, StateDict]] = [("pretrained", "", zoo.pretrained)]
    for method, grid in grids.items():
        table = widened(grid, partial(_validated, zoo, method), _bests)
        searched += records(table.assign(method=method))
        for place, by in zip(_bests(table), ("frozen", "fresh"), strict=True):
            best = {name: table[name].tolist()[place] for name in grid}
            chosen += choices({method: best}, by=by)
            candidates.append((method, by, merge_zoo(method, zoo, **best)))
    for method, by, state in candidates:
        rows = _judged(zoo, state, list(zoo.suite.tasks), shots, everything)
        test += [{"method": method, "by": by, **row} for row in rows]
    for name, state in zoo.experts.items():
        rows = _judged(zoo, state, [name], shots, everything)
        test += [{"method": "individual", "by": "", **row} for row in rows]
    return {"chosen": chosen, "validation": searched, "test": test}
