"""Whether AdaMerging and Surgery work as Remark 4 of Li et al. (2026) explains them.

AdaMerging is said to give outliers, tasks of a large heterogeneity ζ_t, less weight; Surgery to
lower the optimisation error of a merge and to leave its generalisation error.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from mergebook.lab.comparison import (
    adapted,
    distance,
    examples_of,
    first,
    merge_zoo,
    problem_of,
    scores,
)
from mergebook.lab.results import Rows, Tables
from mergebook.lab.runner import study
from mergebook.stability.theory.estimators import gradient_products, heterogeneity
from mergebook.stability.theory.task_loss import task_losses
from mergebook.suites.types import Zoo
from mergelib.procedures.common import Adapted, unlabelled

Granularity = Literal["task", "layer"]
Part = Literal["train", "validation", "test"]


@study()
def mechanisms(
    zoo: Zoo,
    *,
    examples: int = 400,  # training examples of each task whose gradients are taken
    parts: int = 8,  # into which these are cut for estimates without bias, at least 3
    granularities: Sequence[Granularity] = get_args(Granularity),  # of AdaMerging's coefficients
    steps: int = 100,  # of AdaMerging
    learning_rate: float = 0.01,  # of AdaMerging
    mending: int = 1000,  # steps of Surgery for each task
    pictures: int = 300,  # of a split, that Surgery sees and models are judged on
) -> Tables:
    """AdaMerging's coefficients beside ζ at θ_0, and a merge's errors before and after Surgery.

    AdaMerging takes all test inputs, as its paper does. Surgery mends the average by the inputs of
    one split, the test split in its paper.

    Returns:
        ``coefficients``: rows of ``granularity``, ``task``, ``coefficient`` (λ_t, by layer the mean
        over tensors), ``heterogeneity`` ζ_t² at θ_0 with its ``half_width`` over parts, the task's
        ``loss`` there (nats) and its expert's ``distance`` ‖θ_t − θ_0‖. ``test``: rows of
        ``method`` (``average``, ``adamerging``, ``surgery``, ``individual``), ``of`` (AdaMerging's
        granularity, or the split whose inputs Surgery saw), ``task``, ``accuracy`` (0..1) and
        ``loss`` (nats) on test examples, ``train_accuracy`` and ``train_loss`` on training ones.
    """
    counts = dict.fromkeys(get_args(Part), pictures)
    short = replace(zoo, suite=first(zoo.suite, **counts))
    inputs = unlabelled(examples_of(zoo, None, "test"))
    losses = task_losses(problem_of(zoo, examples), zoo.pretrained)
    apart = heterogeneity(gradient_products([*losses.values()], parts))
    known: Rows = []
    for (name, loss), zeta in zip(losses.items(), apart, strict=True):
        row = {"task": name, "heterogeneity": zeta.value, "half_width": zeta.half_width}
        row["loss"] = float(loss.values().mean())
        known.append({**row, "distance": distance(zoo, zoo.experts[name])})
    tables = Tables(coefficients=[], test=[])
    for fine in granularities:
        options = {"steps": steps, "learning_rate": learning_rate, "granularity": fine}
        result = adapted(zoo, "adamerging", inputs, **options)
        means = result.coefficients.mean(axis=1)
        tables["coefficients"] += [
            {"granularity": fine, "coefficient": float(means[row["task"]]), **row} for row in known
        ]
        tables["test"] += _judged(short, result, method="adamerging", of=fine)
    average = merge_zoo("average", zoo)
    tables["test"] += _judged(short, Adapted(average), method="average", of="")
    for split in get_args(Part):
        seen = unlabelled(examples_of(short, None, split))
        result = adapted(zoo, "surgery", seen, start=average, steps=mending)
        tables["test"] += _judged(short, result, method="surgery", of=split)
    for name, expert in zoo.experts.items():
        tables["test"] += _judged(short, Adapted(expert), [name], method="individual", of="")
    return tables


def _judged(
    zoo: Zoo, result: Adapted, tasks: Sequence[str] | None = None, **named: str
) -> Iterator[dict[str, Any]]:
    """On test and training examples, one row per task."""
    heads, names = {**zoo.heads, **result.heads}, [*(tasks or zoo.suite.tasks)]
    for row in scores(zoo, result.state, heads, names, {"": "test", "train_": "train"}):
        yield {**named, **row}
