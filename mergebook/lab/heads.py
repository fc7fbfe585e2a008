"""Heads that are fitted to a model's own features, by ridge regression on labelled examples."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.suites.models import Head
from mergebook.suites.types import Zoo
from mergelib.evaluation.loops import has_bfloat16
from mergelib.evaluation.tasks import Split
from mergelib.problems import calling
from mergelib.statedict import StateDict

PENALTIES = tuple(10.0**power for power in range(-4, 3))
Labelled = tuple[Tensor, Tensor]  # features (N, width) and labels (N)


def ridge(features: Tensor, labels: Tensor, classes: int) -> tuple[nn.Linear, float]:
    """Fit ridge regression to one-hot labels; return it and its best leave-one-out accuracy."""
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
def features_of(zoo: Zoo, state: StateDict, task: str, part: Split) -> Labelled:
    """Return the features of a task's examples, of length 1 each, and their labels."""
    transform, device = zoo.suite.tasks[task].transform, next(zoo.model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=has_bfloat16(device)):
        rows = calling.features(zoo.model, state, part.inputs.to(device), transform=transform)
    return F.normalize(rows.float(), dim=1), part.labels.to(device)


def _few(inputs: Tensor, labels: Tensor, count: int) -> Labelled:
    """Return at most this many examples of each class, the first ones."""
    seen = F.one_hot(labels).cumsum(0).gather(1, labels[:, None])[:, 0]
    return inputs[seen <= count], labels[seen <= count]


def accuracy_of(head: nn.Module, pair: Labelled) -> float:
    """Return a head's accuracy (0..1)."""
    return float((head(pair[0]).argmax(1) == pair[1]).double().mean())


def judged_under_heads(
    zoo: Zoo,
    state: StateDict,
    tasks: Sequence[str] = (),  # all by default
    shots: Sequence[int] = (),
    everything: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the test accuracy of every task under every head, with the labels that it was given."""
    for name in tasks or zoo.suite.tasks:
        task = zoo.suite.tasks[name]
        classes, of = len(task.class_names), partial(features_of, zoo, state, name)
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
            accuracy = accuracy_of(head, test)
            yield {"task": name, "head": words, "labels": labels, "accuracy": accuracy}


def labelled(zoo: Zoo, count: int | None) -> Zoo:
    """The zoo whose validation data are the first training examples of each task, or all."""
    tasks = {
        name: replace(task, validation=task.train if count is None else task.train.first(count))
        for name, task in zoo.suite.tasks.items()
    }
    return replace(zoo, suite=replace(zoo.suite, tasks=tasks))
