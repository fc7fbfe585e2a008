"""A perfect model is judged perfect, whatever a task's inputs, labels and metric are."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import matthews_corrcoef
from torch import Tensor, nn

import mergelib as ml
from mergebook.suites.models import scale_pixels, to_tokens
from mergelib.evaluation.tasks import LOSS, Metric, Split, Suite, Task, as_stored

N, CLASSES = 60, 3
LABELS = torch.arange(N) % CLASSES


def squared_error(outputs: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    return F.mse_loss(outputs.flatten(), labels, reduction=reduction)


def correlation(outputs: Tensor, labels: Tensor) -> float:
    pair = outputs.flatten(), labels
    return float(pearsonr(*pair)[0] + spearmanr(*pair)[0]) / 2


CORRELATION = Metric("correlation", correlation, of_classes=False)
MATTHEWS = Metric("matthews", lambda outputs, labels: matthews_corrcoef(labels, outputs.argmax(1)))


class Scaled(nn.Module):
    """Passes on what it is given, times its one weight, in floats."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight * inputs


class Reading(nn.Module):
    """Reads the label off an example's first entry, which is ``start + spacing * label``."""

    def __init__(self, spacing: float, start: float = 0.0) -> None:
        super().__init__()
        self.spacing, self.start = spacing, start

    def forward(self, features: Tensor) -> Tensor:
        label = (features.flatten(1)[:, 0] - self.start) / self.spacing
        return 50 * F.one_hot(label.round().long().clamp(0, CLASSES - 1), CLASSES).float()


class First(nn.Module):
    """The first entry itself, one output for each example."""

    def forward(self, features: Tensor) -> Tensor:
        return features[:, :1]


def make_task(inputs: Tensor, labels: Tensor = LABELS, **own: object) -> Task:
    split = Split(inputs, labels)
    return Task("one", ("a", "b", "c"), split, split, split, **own)  # type: ignore[arg-type]


def judge(task: Task, head: nn.Module, weight: float = 1.0) -> "pd.Series[Any]":
    suite = Suite("mine", 0, {"one": task}, {})
    state = {"weight": torch.tensor([weight])}
    return ml.evaluate(Scaled(), state, {"one": head}, suite, batch_size=7).iloc[0]


def spread(labels: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Examples of a shape, all of whose entries are the label."""
    return labels.view(-1, *[1] * len(shape)).expand(-1, *shape).contiguous()


@pytest.mark.parametrize(
    ("inputs", "transform", "head"),
    [
        (spread(0.1 * LABELS, (3, 8, 8)), as_stored, Reading(0.1)),
        (spread(0.3 * LABELS - 0.3, (5,)), as_stored, Reading(0.3, -0.3)),
        (spread(100 * LABELS, (3, 8, 8)).to(torch.uint8), scale_pixels, Reading(200 / 255, -1)),
        (spread(10 * LABELS, (6,)), as_stored, Reading(10)),
        (spread(10 * LABELS, (6,)).to(torch.uint8), to_tokens, Reading(10)),
    ],
    ids=["float images", "float tables", "uint8 images", "tokens of rank 2", "uint8 tokens"],
)
def test_classification(inputs: Tensor, transform: object, head: nn.Module) -> None:
    task = make_task(inputs, transform=transform)
    row = judge(task, head)
    assert list(row.index) == ["task", "accuracy", "loss", "correct", "n"]
    assert (row["accuracy"], row["correct"], row["n"]) == (1.0, N, N)
    assert row["loss"] < 1e-6
    half = replace(task, test=Split(inputs, torch.where(torch.arange(N) < N // 2, LABELS, 0)))
    right = int((half.test.labels == LABELS).sum())
    assert judge(half, head)["correct"] == right < N


def test_regression() -> None:
    torch.manual_seed(0)
    targets = 5 * torch.rand(N)
    inputs = torch.stack([targets, torch.rand(N)], 1)
    task = make_task(inputs, targets, loss=squared_error, metric=CORRELATION)
    row = judge(task, First())
    assert row["metric"] == "correlation"
    assert row["score"] == pytest.approx(1.0)
    assert row["loss"] == 0
    assert row["n"] == N
    assert pd.isna(row["accuracy"])
    assert pd.isna(row["correct"])
    assert judge(task, First(), weight=2.0)["loss"] == pytest.approx(float((targets**2).mean()))
    assert judge(task, First(), weight=-1.0)["score"] == pytest.approx(-1.0)
    noisy = replace(task, test=Split(inputs.flip(1), targets))
    score = (pearsonr(inputs[:, 1], targets)[0] + spearmanr(inputs[:, 1], targets)[0]) / 2
    assert judge(noisy, First())["score"] == pytest.approx(score, abs=1e-6)


def test_matthews() -> None:
    task = make_task(spread(10 * LABELS, (6,)), metric=MATTHEWS)
    row = judge(task, Reading(10))
    assert (row["metric"], row["score"], row["accuracy"]) == ("matthews", 1.0, 1.0)
    labels = LABELS.roll(1).where(torch.arange(N) % 4 == 0, LABELS)
    some_wrong = replace(task, test=Split(task.test.inputs, labels))
    row = judge(some_wrong, Reading(10))
    assert row["score"] == pytest.approx(matthews_corrcoef(labels, LABELS))
    assert row["accuracy"] == 0.75


def test_a_language_task_counts_characters() -> None:
    codes = torch.randint(CLASSES, (N, 9), generator=torch.Generator().manual_seed(0))
    task = make_task(codes.to(torch.uint8), codes, transform=to_tokens, metric=LOSS)

    class Every(nn.Module):
        def forward(self, features: Tensor) -> Tensor:
            return 50 * F.one_hot(features.round().long(), CLASSES).float()

    row = judge(task, Every())
    assert list(row.index) == ["task", "accuracy", "loss", "correct", "n"]
    assert (row["accuracy"], row["n"]) == (1.0, 9 * N)


def test_what_judges_a_suite() -> None:
    inputs = spread(10 * LABELS, (6,))
    plain, matthews = make_task(inputs), make_task(inputs, metric=MATTHEWS)
    language = make_task(inputs, metric=LOSS)

    def metric_of(**tasks: Task) -> tuple[str, bool]:
        metric = Suite("mine", 0, tasks, {}).metric
        return metric.column, metric.higher_is_better

    assert metric_of(a=plain, b=plain) == ("accuracy", True)
    assert metric_of(a=language) == ("loss", False)
    assert metric_of(a=matthews) == metric_of(a=plain, b=matthews) == ("score", True)
    with pytest.raises(ValueError, match=r"suite .mine. has no common metric.*a: accuracy, b"):
        metric_of(a=plain, b=language)


def test_scores_of_a_suite_are_told_of_each_of_its_tasks() -> None:
    inputs = spread(10 * LABELS, (6,))
    tasks = {"a": make_task(inputs), "b": make_task(inputs, metric=MATTHEWS)}
    suite = Suite("mine", 0, tasks, {})
    heads = dict.fromkeys(tasks, Reading(10))
    state = Scaled().state_dict()
    table = ml.evaluate(Scaled(), state, heads, suite)
    assert table["metric"].tolist() == ["accuracy", "matthews"]
    assert table["score"].tolist() == [1.0, 1.0]
    alone = ml.evaluate(Scaled(), state, heads, suite, tasks=["a"])
    pd.testing.assert_frame_equal(alone, table.iloc[:1])
    with pytest.raises(ValueError, match="task 'c' has no place in mine; there are: a, b"):
        ml.evaluate(Scaled(), state, heads, suite, tasks=["c"])


def test_transforms_and_data_of_tasks() -> None:
    first = make_task(spread(10 * LABELS, (6,)), transform=to_tokens)
    second = replace(first, name="two", transform=as_stored)
    suite = Suite("mine", 0, {"one": first, "two": second}, {})
    assert suite.transforms == {"one": to_tokens, "two": as_stored}
    assert first.sha256() == second.sha256()
    other = replace(first, test=Split(first.test.inputs + 1, LABELS))
    assert other.sha256() != first.sha256()
