"""The joint head: labels are shifted, and one head holds the classes of all tasks."""

import pytest
import torch

from mergebook.chapters.joint_head import accuracies, one_question
from mergebook.suites.zoo import Zoo
from mergelib.evaluation.loops import evaluate


def test_one_question_has_the_classes_of_all_tasks(tiny_zoo: Zoo) -> None:
    ten = one_question(tiny_zoo)
    low, high = ten.suite.tasks.values()
    assert low.class_names == high.class_names == tuple("0123456789")
    assert set(low.test.labels.tolist()) == set(range(5))
    assert set(high.test.labels.tolist()) == set(range(5, 10))
    (head,) = set(ten.heads.values())
    weight = head.get_parameter("weight")
    for number, own in enumerate(tiny_zoo.heads.values()):
        assert torch.allclose(weight[5 * number : 5 * number + 5], own.get_parameter("weight"))


def test_accuracies_are_those_of_evaluation(tiny_zoo: Zoo) -> None:
    ten = one_question(tiny_zoo)
    table = accuracies(ten, tiny_zoo.experts)
    for name in ten.suite.tasks:
        for expert, state in tiny_zoo.experts.items():
            own = evaluate(ten.model, state, ten.heads, ten.suite, tasks=[name])
            assert table.loc[expert, name] == pytest.approx(100 * own["accuracy"].mean())
    assert table["mean"].tolist() == ((table.iloc[:, 0] + table.iloc[:, 1]) / 2).tolist()
