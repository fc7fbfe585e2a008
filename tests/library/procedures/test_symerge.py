"""SyMerge by hand, against autograd through the mixture, and what it leaves alone."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

import mergelib as ml
from mergelib.problems.examples import Examples
from mergelib.problems.problem import Problem
from mergelib.procedures.symerge import predicted
from tests.library.procedures.conftest import Scalar


def scalar_head(weight: float = 1.0) -> nn.Linear:
    """Logits (weight · z, 0) of a feature z."""
    head = nn.Linear(1, 2, bias=False)
    head.weight.data = torch.tensor([[weight], [0.0]])
    return head


def test_a_step_by_hand() -> None:
    """The loss is log(1 + exp(-z)): λ grows, as do the first class and the distance to it."""
    made = ml.adapt(
        "symerge",
        {"0": {"w": torch.tensor([3.0])}},
        pretrained={"w": torch.tensor([1.0])},
        model=Scalar(),
        heads={"0": scalar_head()},
        data={"0": torch.tensor([[0.8]])},
        init=0.25,
        learning_rate=0.1,
        steps=1,
    )
    z = torch.tensor((1 + 0.25 * 2) * 0.8)
    assert made.history["0"].iloc[0] == pytest.approx((-z).exp().log1p().item())
    assert made.coefficients.iloc[0, 0] == pytest.approx(0.35)
    assert made.state["w"].item() == pytest.approx(1 + 0.35 * 2)
    (found,) = made.heads["0"].parameters()
    assert found.flatten().tolist() == pytest.approx([1.1, -0.1], abs=1e-5)


def test_labels_are_what_the_expert_predicts() -> None:
    """Though the base predicts the other class, and the data may have labels."""
    data = {"0": Examples(torch.tensor([[0.5], [-2.0]]), torch.tensor([1, 1]))}
    heads = {"0": scalar_head(-1.0)}
    problem = Problem({"0": {"w": torch.tensor([-3.0])}}, model=Scalar(), data=data, heads=heads)
    found = predicted(problem, "0", 1)
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1]
    assert found.inputs is data["0"].inputs


def test_by_autograd_through_the_mixture(case: Any) -> None:
    steps, rate = 3, 0.05
    made = case.adapt("symerge", steps=steps, learning_rate=rate, batch_size=20)
    case.model.eval()

    def run(state: dict[str, Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = functional_call(case.model, state, (x,))
        return outputs

    labels = {
        task: case.heads[task](run(case.experts[task], x)).argmax(1)
        for task, (x, _) in case.data.items()
    }
    assert any((labels[task] != y).any() for task, (_, y) in case.data.items())
    heads = copy.deepcopy(case.heads)
    keys = [key for key, _ in case.model.named_parameters()]
    weights = torch.full((2, len(keys)), 0.3, requires_grad=True)
    trained = [p for head in heads.values() for p in head.parameters()]
    optimiser = torch.optim.Adam([weights, *trained], lr=rate)
    start = ml.merge("task_arithmetic", case.experts, pretrained=case.pretrained, scale=0.3)
    for step in range(steps + 1):
        state = dict(start)
        for i, key in enumerate(keys):
            base = case.pretrained[key]
            changes = [weights[t, i] * (case.experts[n][key] - base) for t, n in enumerate("ab")]
            state[key] = base + sum(changes)
        if step == steps:
            break
        optimiser.zero_grad()
        losses = {
            task: functional.cross_entropy(heads[task](run(state, x)), labels[task])
            for task, (x, _) in case.data.items()
        }
        found = made.history.iloc[step][["a", "b"]].tolist()
        assert found == pytest.approx([loss.item() for loss in losses.values()], rel=1e-4)
        torch.autograd.backward([*losses.values()])
        optimiser.step()
    for key in keys:
        torch.testing.assert_close(made.state[key], state[key].detach(), rtol=1e-3, atol=1e-4)
    for task in "ab":
        torch.testing.assert_close(
            made.heads[task].weight, heads[task].weight.detach(), rtol=1e-3, atol=1e-4
        )


def test_without_steps_it_is_task_arithmetic_with_the_experts_heads(case: Any) -> None:
    made = case.adapt("symerge", steps=0)
    expected = ml.merge("task_arithmetic", case.experts, pretrained=case.pretrained, scale=0.3)
    for key, value in expected.items():
        torch.testing.assert_close(made.state[key], value)
    for task, head in case.heads.items():
        assert torch.equal(made.heads[task].weight, head.weight)
        assert not made.heads[task].weight.requires_grad


def test_coefficients_stay_in_0_and_1_and_given_heads_as_they_are(case: Any) -> None:
    before = copy.deepcopy(case.heads)
    for init, end in ((0.02, 0.0), (0.98, 1.0)):
        made = case.adapt("symerge", init=init, steps=1, learning_rate=0.05)
        moved = made.coefficients.to_numpy().flatten()
        assert (moved == end).any(), "where Adam would have gone beyond"
        assert ((moved >= 0) & (moved <= 1)).all()
    for task, head in case.heads.items():
        assert torch.equal(head.weight, before[task].weight)
        assert head.weight.requires_grad
        assert head.weight.grad is None
        assert not torch.equal(made.heads[task].weight, head.weight)


@pytest.mark.parametrize("heads", [None, {"a": nn.Linear(5, 3), "b": nn.Softmax(1)}])
def test_a_head_without_parameters_is_an_error(case: Any, heads: Any) -> None:
    with pytest.raises(ValueError, match=r"symerge trains the head .* has no parameters: pass hea"):
        case.adapt("symerge", heads=heads, steps=1)
