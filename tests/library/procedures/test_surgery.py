"""Surgery: the identity at its start, what one step does by hand, and a bias it can remove."""

from typing import Any

import pytest
import torch
from torch import nn

import mergelib as ml
from mergelib.problems.calling import features
from mergelib.procedures.surgery import Surgery


def test_it_starts_as_the_identity(case: Any) -> None:
    made = case.adapt("surgery", steps=0)
    z = torch.randn(7, 5)
    for task, head in case.heads.items():
        torch.testing.assert_close(made.heads[task](z), head(z))
    average = ml.merge("average", case.experts, pretrained=case.pretrained)
    assert all(torch.equal(made.state[key], average[key]) for key in average)


def test_module_by_hand() -> None:
    module = Surgery(2, 1)
    with torch.no_grad():
        module.down.weight.copy_(torch.tensor([[1.0, -1.0]]))
        module.up.weight.copy_(torch.tensor([[2.0], [0.5]]))
    z = torch.tensor([[3.0, 1.0], [1.0, 3.0]])  # Down f = 2 and -2, of which ReLU keeps the first
    torch.testing.assert_close(module(z), torch.tensor([[-1.0, 0.0], [1.0, 3.0]]))


def test_first_distance_is_the_l1_of_both_models(case: Any) -> None:
    """And features are the model's own in evaluation mode, whatever the batch size."""
    made = case.adapt("surgery", steps=1, batch_size=20, start=case.pretrained)
    for task, (x, _) in case.data.items():
        outputs = []
        for state in (case.pretrained, case.experts[task]):
            case.model.load_state_dict(state)
            with torch.no_grad():
                outputs.append(case.model.eval()(x))
            torch.testing.assert_close(
                features(case.model, state, x, batch_size=7), outputs[-1], rtol=1e-5, atol=1e-6
            )
        assert made.history[task].iloc[0] == pytest.approx(
            (outputs[0] - outputs[1]).abs().mean().item(), rel=1e-5
        )
    assert all(torch.equal(made.state[k], case.pretrained[k]) for k in case.pretrained)


def test_first_step_moves_up_against_the_gradient(case: Any) -> None:
    """∂L/∂Up = -sign(f - z)ᵀ h / (N width), and Adam's first step is the rate times its sign."""
    made = case.adapt("surgery", steps=1, batch_size=20, rank=2, learning_rate=0.01)
    x = case.data["a"][0]
    f, z = (features(case.model, state, x) for state in (made.state, case.experts["a"]))
    torch.manual_seed(0)  # the default seed, from which Down starts
    down = nn.Linear(5, 2, bias=False).weight.detach()
    gradient = -(f - z).sign().T @ (f @ down.T).relu()
    expected = torch.where(gradient.abs() > 0, -0.01 * gradient.sign(), 0.0)
    module = made.heads["a"][0]
    torch.testing.assert_close(module.up.weight, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(module.down.weight, down, msg="its gradient is zero while Up is")


def test_distance_falls_and_runs_repeat(case: Any) -> None:
    made, again = (case.adapt("surgery", steps=300, learning_rate=0.01) for _ in range(2))
    assert made.history.columns.tolist() == ["step", "a", "b"]
    for task in case.heads:
        assert made.history[task].iloc[-20:].mean() < 0.7 * made.history[task].iloc[:20].mean()
        assert made.history[task].equals(again.history[task])
        assert not any(p.requires_grad for p in made.heads[task][0].parameters())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"data": None}, "surgery needs data"),
        ({"model": None}, "surgery needs model"),
        ({"data": {}}, "no data"),
        ({"data": {"c": torch.zeros(1, 6)}}, "task 'c' has no head"),
        ({"heads": {"c": nn.Identity()}, "data": {"c": torch.zeros(1, 6)}}, "'c' has no expert"),
        ({"data": {"a": torch.zeros(0, 6)}}, "task 'a' has no inputs"),
        ({"data": {"b": torch.full((4, 6), torch.nan)}}, "inputs of task 'b' holds NaN"),
        ({"start": {}}, "start lacks key 'first.weight'"),
        ({"rank": 0}, "rank is 0"),
        ({"steps": -1}, "steps is -1"),
    ],
)
def test_bad_input(case: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        case.adapt("surgery", **{"steps": 1, **options})
