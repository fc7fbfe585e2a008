"""DOGE by hand, against automatic differentiation, and the limits that are known."""

from typing import Any

import pytest
import torch
from torch import Tensor

import mergelib as ml
from mergelib.numerics.selection import count_to_keep

State = dict[str, Tensor]


def states(count: int, *shapes: tuple[int, int]) -> tuple[State, list[State]]:
    torch.manual_seed(0)
    base = {f"{i}.weight": torch.randn(shape).double() for i, shape in enumerate(shapes)}
    experts = [
        {key: value + 0.02 * torch.randn(value.shape).double() for key, value in base.items()}
        for _ in range(count)
    ]
    return base, experts


def test_without_steps_every_task_gets_the_same_norm() -> None:
    base = {"w": torch.zeros(2, 2)}
    tasks = [[[3.0, 0.0], [0.0, 4.0]], [[0.0, 6.0], [8.0, 0.0]]]
    experts = [{"w": torch.tensor(task)} for task in tasks]
    how: dict[str, Any] = {"pretrained": base, "steps": 0, "norm": 2.0}
    merged = ml.merge("doge", experts, density=1.0, **how)["w"]
    torch.testing.assert_close(merged, torch.tensor([[1.2, 1.2], [1.6, 1.6]]))
    merged = ml.merge("doge", experts, density=0.25, **how)["w"]
    torch.testing.assert_close(merged, torch.tensor([[0.0, 0.0], [1.6, 1.6]]))


def test_a_step_by_hand() -> None:
    """Adam's first step is the rate in every entry, against the sign of the gradient.

    λ = 0.1 / 5 = 0.02. Rows leave 9 − 0.02 · 9 and 16 − 0.02 · 16, above zero, so Δ grows with
    the task where it is not zero. The one shared direction is the second row's, which stays.
    """
    base = {"w": torch.zeros(2, 2)}
    experts = [{"w": torch.tensor([[3.0, 0.0], [0.0, 4.0]])}]
    how: dict[str, Any] = {"pretrained": base, "norm": 0.1, "density": 1.0, "steps": 1}
    how |= {"learning_rate": 0.5}
    merged = ml.merge("doge", experts, subspace=3, **how)["w"]  # no shared direction
    torch.testing.assert_close(merged, 0.02 * torch.tensor([[3.5, 0.0], [0.0, 4.5]]))


@pytest.mark.parametrize("shape", [(7, 5), (5, 9)])
@pytest.mark.parametrize(("count", "subspace"), [(2, 2), (3, 6), (3, 2), (7, 2)])
def test_by_automatic_differentiation(shape: tuple[int, int], count: int, subspace: int) -> None:
    base, experts = states(count, shape)
    options: dict[str, Any] = {"norm": 0.2, "density": 0.4, "subspace": subspace, "steps": 30}
    merged = ml.merge("doge", experts, pretrained=base, **options)["0.weight"]
    tasks = [expert["0.weight"] - base["0.weight"] for expert in experts]
    factors = [0.2 / task.norm() for task in tasks]
    rank = max(1, min(shape) // count)
    tops = [torch.linalg.svd(task, full_matrices=False).U[:, :rank] for task in tasks]
    basis = torch.linalg.svd(torch.cat(tops, dim=1), full_matrices=False).U
    basis = basis[:, : min(shape) // subspace]
    delta = torch.zeros(shape).double().requires_grad_()
    optimiser = torch.optim.Adam([delta], lr=1e-4)
    for _ in range(30):
        optimiser.zero_grad()
        total = sum(factor * (task + delta) for factor, task in zip(factors, tasks, strict=True))
        losses = [((task * (task - total)).sum(1) ** 2).sum() for task in tasks]
        torch.autograd.backward(losses)
        assert delta.grad is not None
        delta.grad -= basis @ basis.T @ delta.grad
        optimiser.step()
    expected, kept = base["0.weight"].clone(), count_to_keep(0.4, base["0.weight"].numel())
    for factor, task in zip(factors, tasks, strict=True):
        least = task.abs().flatten().sort(descending=True).values[kept - 1]
        expected += factor * (task.abs() >= least) * (task + delta.detach())
    torch.testing.assert_close(merged, expected, rtol=1e-6, atol=1e-9)
    still = ml.merge("doge", experts, pretrained=base, **{**options, "steps": 0})["0.weight"]
    assert (merged - still).abs().max() > 1e-5, "the steps count"


def test_the_largest_entries_are_those_of_the_whole_model_or_of_each_tensor() -> None:
    base, experts = states(2, (4, 5), (6, 3))
    for expert in experts:  # all large entries are in the second matrix
        expert["1.weight"] += 9
    how: dict[str, Any] = {"pretrained": base, "density": 18 / 38, "steps": 2}
    whole, each = (ml.merge("doge", experts, trim=trim, **how) for trim in ("model", "tensor"))
    assert torch.equal(whole["0.weight"], base["0.weight"])
    assert not torch.equal(each["0.weight"], base["0.weight"])


@pytest.mark.filterwarnings("ignore:expert . (is|and)")
def test_an_expert_without_a_change_has_no_say() -> None:
    base, (expert, _) = states(2, (6, 4))
    how: dict[str, Any] = {"pretrained": base, "steps": 0, "density": 1.0}
    merged = ml.merge("doge", [expert, base], **how)
    alone = ml.merge("doge", [expert], **how)
    torch.testing.assert_close(merged["0.weight"], alone["0.weight"])
    found = ml.merge("doge", [base, base], **{**how, "steps": 3})
    assert torch.equal(found["0.weight"], base["0.weight"])
