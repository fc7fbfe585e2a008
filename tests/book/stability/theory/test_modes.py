"""Losses of tasks leave the modes of models and heads alone, as the library's calls do."""

import torch

from mergebook.stability.theory.task_loss import task_losses
from tests.library.procedures.test_modes import Case, modes


def test_task_losses_repeat_and_leave_modes_alone() -> None:
    case = Case()
    before = modes(case.model, *case.heads.values())
    first, second = (task_losses(case.problem, case.base)["a"].values() for _ in range(2))
    assert torch.equal(first, second)
    assert modes(case.model, *case.heads.values()) == before
