"""The mask's gradient against autograd, and what no step, one step and many steps do."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import mergelib as ml
from mergelib.problems.examples import Examples
from mergelib.problems.problem import Problem
from mergelib.procedures.concrete import pull
from mergelib.procedures.objectives import entropy, loss_gradients


def test_gradient_is_autograds_through_mask_model_and_entropy(case: Any) -> None:
    """Written anew, with `RelaxedBernoulli` and one graph from the logits to the loss."""
    case.model.eval()
    names = [name for name, _ in case.model.named_parameters()]
    added = {k: 0.3 * sum(e[k] - case.pretrained[k] for e in case.experts.values()) for k in names}
    logits = {k: torch.randn(added[k].shape, requires_grad=True) for k in names}
    relaxed = {
        k: torch.distributions.RelaxedBernoulli(torch.tensor(0.5), logits=v).rsample()
        for k, v in logits.items()
    }
    merged = {k: case.pretrained[k] + relaxed[k] / relaxed[k].mean() * added[k] for k in names}
    inputs = {task: Examples(x) for task, (x, _) in case.data.items()}
    losses = [
        entropy(case.heads[task](functional_call(case.model, merged, (x.inputs,))))
        for task, x in inputs.items()
    ]
    loss = torch.stack(losses).sum()
    expected = dict(zip(names, torch.autograd.grad(loss, list(logits.values())), strict=True))
    problem = Problem(case.experts, case.pretrained, case.model, heads=case.heads)
    found, gradients = loss_gradients(
        problem, {k: v.detach() for k, v in merged.items()}, names, inputs
    )
    assert sum(found.values()) == pytest.approx(loss.item(), rel=1e-5)
    for key in names:
        by_hand = pull(gradients[key] * added[key], relaxed[key].detach(), 0.5)
        torch.testing.assert_close(by_hand, expected[key], rtol=1e-4, atol=1e-7)


def test_no_step_is_task_arithmetic(case: Any) -> None:
    made = case.adapt("concrete", steps=0, scale=0.4)
    expected = ml.merge("task_arithmetic", case.experts, pretrained=case.pretrained, scale=0.4)
    assert list(made.state) == list(expected)
    for key, value in expected.items():
        torch.testing.assert_close(made.state[key], value)


class Scalars(nn.Module):
    """Two weights, for two inputs that the head compares with nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return (self.w * x).sum(1, keepdim=True)


class AgainstZero(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z, torch.zeros_like(z)], dim=1)


def test_the_mask_keeps_what_makes_predictions_certain() -> None:
    """The second weight works against the first, so the mask keeps the first alone.

    The logit is z = w₁ - w₂, and both experts add up to (2, 1); what is kept is doubled, as the
    mean of the mask is one.
    """
    experts = [{"w": torch.tensor([1.0, 0.5])}, {"w": torch.tensor([1.0, 0.5])}]
    made = ml.adapt(
        "concrete",
        experts,
        pretrained={"w": torch.zeros(2)},
        model=Scalars(),
        heads={"a": AgainstZero()},
        data={"a": torch.tensor([[1.0, -1.0]])},
        scale=1.0,
        learning_rate=0.3,
        steps=100,
    )
    torch.testing.assert_close(made.state["w"], torch.tensor([4.0, 0.0]), atol=1e-2, rtol=0)


def test_runs_repeat_and_inputs_stay(case: Any) -> None:
    options = {"steps": 5, "learning_rate": 0.1}
    before = {k: v.clone() for k, v in case.experts["a"].items()}
    made, again = (case.adapt("concrete", **options) for _ in range(2))
    assert all(torch.equal(made.state[k], again.state[k]) for k in made.state)
    other = case.adapt("concrete", seed=1, **options)
    assert not torch.equal(made.state["first.weight"], other.state["first.weight"])
    assert all(torch.equal(before[k], case.experts["a"][k]) for k in before)
    assert made.history.columns.tolist() == ["step", "a", "b"]
    assert len(made.history) == 5
    assert case.model.training, "as it was"


def test_buffers_counters_dtypes_and_ties(case: Any) -> None:
    case.model.register_parameter("again", nn.Parameter(torch.zeros(8, 6)))
    for state in (case.pretrained, *case.experts.values()):
        state["again"] = state["first.weight"]
    made = case.adapt("concrete", steps=2, learning_rate=0.5).state
    dense = ml.merge("task_arithmetic", case.experts, pretrained=case.pretrained, scale=0.3)
    for key in ("norm.running_mean", "norm.num_batches_tracked"):
        torch.testing.assert_close(made[key], dense[key])
    assert made["again"] is made["first.weight"]
    assert not torch.allclose(made["first.weight"], dense["first.weight"])
    assert made["first.weight"].dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"data": None}, "concrete needs data: pass data="),
        ({"model": None}, "concrete needs model: pass model="),
        ({"data": {}}, "no data"),
        ({"data": {"c": torch.zeros(1, 6)}}, "task 'c' has no head"),
        ({"data": {"a": torch.zeros(0, 6)}}, "task 'a' has no inputs"),
        ({"data": {"a": torch.randn(4, 6), "b": torch.full((4, 6), torch.nan)}}, "of task 'b'"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"steps": -1}, "steps is -1"),
        ({"experts": []}, "nothing to merge"),
    ],
)
def test_bad_input(case: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        case.adapt("concrete", **{"steps": 1, **options})
