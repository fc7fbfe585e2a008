"""One question for all tasks: labels move up, the joint head holds every class."""

import pytest
import torch

from mergebook.chapters.tour import accuracies, answers, hard_pictures, one_question
from mergebook.suites.zoo import Zoo


def test_one_question_has_the_classes_of_all_tasks(tiny_zoo: Zoo) -> None:
    ten = one_question(tiny_zoo)
    low, high = ten.suite.tasks.values()
    assert low.class_names == high.class_names == tuple("0123456789")
    assert set(low.test.labels.tolist()) == set(range(5))
    assert set(high.test.labels.tolist()) == set(range(5, 10))
    (head,) = set(ten.heads.values())
    weight = head.get_buffer("weight")
    for number, own in enumerate(tiny_zoo.heads.values()):
        assert torch.allclose(weight[5 * number : 5 * number + 5], own.get_buffer("weight"))


def test_accuracies_are_those_of_the_answers(tiny_zoo: Zoo) -> None:
    ten = one_question(tiny_zoo)
    table = accuracies(ten, tiny_zoo.experts)
    for name, task in ten.suite.tasks.items():
        called = answers(ten, tiny_zoo.experts, task.test.inputs)
        for expert, labels in called.items():
            right = 100 * (labels == task.test.labels).float().mean().item()
            assert table.loc[expert, name] == pytest.approx(right)
    assert table["mean"].tolist() == ((table.iloc[:, 0] + table.iloc[:, 1]) / 2).tolist()


def test_hard_pictures_are_misread_by_the_other_expert() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    called = {"first": torch.tensor([0, 0, 0, 1]), "second": torch.tensor([0, 1, 1, 1])}
    assert hard_pictures(called, labels, ("first", "second")) == [1, 2]
