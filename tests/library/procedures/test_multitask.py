"""Multi-task training on tasks that one model can solve, and one step by hand."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mergelib as ml


def accuracy(model: nn.Module, state: dict[str, Tensor], head: nn.Module, pair: Any) -> float:
    logits = head(torch.func.functional_call(model, state, (pair[0],)))
    return float((logits.argmax(1) == pair[1]).float().mean())


def test_it_solves_two_tasks_that_share_a_model() -> None:
    """Points in the plane; one task asks for the sign of x, the other for that of y."""
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    x += 0.2 * x.sign()  # a margin
    data = {"x": (x, (x[:, 0] > 0).long()), "y": (x, (x[:, 1] > 0).long())}
    model, heads = nn.Linear(2, 4), {task: nn.Linear(4, 2) for task in data}
    start = {k: v.clone() for k, v in model.state_dict().items()}
    before = {task: head.weight.clone() for task, head in heads.items()}
    made = ml.adapt(
        "multitask",
        {"any": start},
        pretrained=start,
        model=model,
        heads=heads,
        data=data,
        learning_rate=0.05,
        steps=200,
    )
    for task, pair in data.items():
        assert accuracy(model, start, heads[task], pair) < 0.9
        assert accuracy(model, made.state, heads[task], pair) > 0.98
        assert torch.equal(heads[task].weight, before[task]), "heads are frozen"
    assert torch.equal(model.weight, start["weight"]), "the given model stays as it is"
    totals = made.history[["x", "y"]].sum(axis=1)
    assert totals.iloc[-1] < 0.2 * totals.iloc[0]


def test_one_step_by_hand(case: Any) -> None:
    """AdamW's first step: the rate against the gradient's sign, and decay of matrices alone."""
    made = case.adapt("multitask", steps=1, batch_size=20, learning_rate=0.01, weight_decay=0.1)
    model = case.model.train()
    model.load_state_dict(case.pretrained)
    outputs = model(torch.cat([x for x, _ in case.data.values()])).split(20)
    losses = [
        F.cross_entropy(case.heads[task](z), y)
        for z, (task, (_, y)) in zip(outputs, case.data.items(), strict=True)
    ]
    (torch.stack(losses).sum() / 2).backward()
    assert made.history.loc[0, ["a", "b"]].tolist() == pytest.approx(
        [loss.item() for loss in losses], rel=1e-5
    )
    for key in ("second.weight", "second.bias"):
        parameter = dict(model.named_parameters())[key]
        kept = 1 - 0.01 * 0.1 if parameter.dim() > 1 else 1.0
        expected = kept * case.pretrained[key] - 0.01 * parameter.grad.sign()
        clear = parameter.grad.abs() > 1e-4  # where Adam's 1e-8 is nothing
        torch.testing.assert_close(
            made.state[key][clear], expected.detach()[clear], rtol=0, atol=1e-6
        )
    assert made.state["norm.num_batches_tracked"] == 1, "it trains in training mode"


def test_experts_are_not_used_and_runs_repeat(case: Any) -> None:
    made = case.adapt("multitask", steps=3)
    other = case.adapt("multitask", steps=3, experts={"only": case.pretrained})
    assert all(torch.equal(made.state[k], other.state[k]) for k in made.state)
    third = case.adapt("multitask", steps=3, seed=1)
    assert not torch.equal(made.state["first.weight"], third.state["first.weight"])
    none = case.adapt("multitask", steps=0)
    assert all(torch.equal(none.state[k], case.pretrained[k]) for k in none.state)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"data": None}, "multitask needs data"),
        ({"data": {}}, "no data"),
        ({"data": {"a": torch.randn(4, 6)}}, r"multitask needs labels: .* task 'a'"),
        ({"data": {"c": (torch.zeros(1, 6), torch.zeros(1))}}, "task 'c' has no head"),
        (
            {"data": {"b": (torch.full((4, 6), torch.nan), torch.zeros(4, dtype=torch.long))}},
            "inputs of task 'b' holds NaN or Inf",
        ),
        ({"data": {"b": (torch.zeros(4, 6), torch.zeros(4))}}, "task 'b' has floating labels"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"experts": [{}]}, "expert 0 lacks key 'first.weight'"),
    ],
)
def test_bad_input(case: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        case.adapt("multitask", **{"steps": 1, **options})
