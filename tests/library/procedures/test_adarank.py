"""AdaRank's starts against rules, its gradients by hand and by autograd, and what it drops."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import mergelib as ml
from mergelib.problems.problem import Problem
from mergelib.procedures.adarank import AdaRankSettings, Directions, decompose, straight_through
from mergelib.procedures.objectives import entropy
from mergelib.statedict import is_kernel


def close(made: Any, expected: Any) -> None:
    assert list(made) == list(expected)
    for key, value in expected.items():
        torch.testing.assert_close(made[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("rule", "ratio", "options"),
    [
        ("task_arithmetic", None, {}),
        ("task_arithmetic", 1.0, {}),
        ("low_rank_task_arithmetic", 0.5, {"rank_ratio": 0.5}),
        ("low_rank_task_arithmetic", 0.3, {"rank_ratio": 0.3}),
        ("low_rank_task_arithmetic", 0.0, {"rank_ratio": 0.0}),
        ("cart", 1.0, {"rank_ratio": 1.0}),
        ("cart", 0.5, {"rank_ratio": 0.5}),
        ("cart", None, {"rank_ratio": 0.16}),
    ],
)
def test_no_step_is_the_rule_with_the_directions_that_are_on(
    case: Any, rule: str, ratio: float | None, options: dict[str, Any]
) -> None:
    """Full rank is task arithmetic, and with CART the average; other ranks are `low_rank`'s."""
    base, scale = ("cart", 2.3) if rule == "cart" else ("task_arithmetic", 0.3)
    made = case.adapt("adarank", base=base, rank_ratio=ratio, steps=0)
    close(made.state, ml.merge(rule, case.experts, pretrained=case.pretrained, scale=scale,
                               **options))  # fmt: skip
    rank = {"first.weight": 6, "second.weight": 5}
    share = options.get("rank_ratio", 1.0)
    for key, full in rank.items():
        assert made.ranks[key].tolist() == [math.ceil(share * full)] * 2
    assert made.coefficients.to_numpy() == pytest.approx(scale)
    assert list(made.coefficients) == [k for k, _ in case.model.named_parameters()]


def test_straight_through_by_hand() -> None:
    """A diagonal task vector of singular values 3 and 1, of which the second is off; λ = 0.5.

    With G = [[2, 7], [7, -4]] the masks' gradients are λ s uᵀ G v = (0.5 · 3 · 2, 0.5 · 1 · -4),
    λ's is that of the direction that is on, 3 · 2, and σ'(±0.01) = 0.249994.
    """
    part = Directions(torch.zeros(2, 2), torch.diag(torch.tensor([3.0, 1.0])), torch.eye(2))
    scale, logits = 0.5, torch.tensor([0.1, -0.1])
    assert part.at(scale * (logits > 0).float()[None]).tolist() == [[1.5, 0.0], [0.0, 0.0]]
    pulled = part.pull(torch.tensor([[2.0, 7.0], [7.0, -4.0]]))
    assert pulled.tolist() == [6.0, -4.0]
    slope = math.exp(0.01) / (1 + math.exp(0.01)) ** 2 / 10
    found = straight_through(scale * pulled, logits)
    assert found.tolist() == pytest.approx([3.0 * slope, -2.0 * slope], rel=1e-5)
    assert straight_through(torch.ones(1), torch.tensor([20.0])).item() == pytest.approx(
        0.0104994, rel=1e-4
    ), "σ'(2) / 10: far from the step the gradient is smaller"


@pytest.mark.parametrize("init", [None, 0.7])
def test_with_tsv_all_of_its_directions_are_on(case: Any, init: float | None) -> None:
    """Other tensors are averaged, whatever λ is; half of 6 and of 5 directions are 3 and 2."""
    made = case.adapt("adarank", base="tsv", init=init, steps=0)
    scale = 1.0 if init is None else init
    close(made.state, ml.merge("tsv", case.experts, pretrained=case.pretrained, scale=scale))
    assert {key: made.ranks[key].tolist() for key in made.ranks} == {
        "first.weight": [3, 3],
        "second.weight": [2, 2],
    }


def test_with_tsv_a_mask_takes_away_one_direction_by_hand() -> None:
    """Experts that change other inputs and outputs are orthogonal: each keeps its own direction."""
    base = {"weight": torch.zeros(2, 2)}
    experts = {
        "one": {"weight": torch.tensor([[2.0, 0.0], [0.0, 0.0]])},
        "two": {"weight": torch.tensor([[0.0, 0.0], [0.0, 3.0]])},
    }
    problem = Problem(experts, base, nn.Linear(2, 2, bias=False))
    _, directions, logits = decompose(problem, AdaRankSettings("tsv"))
    assert logits["weight"].shape == (2, 1)
    weights = torch.tensor([[0.0], [0.5]])
    close(
        {"weight": directions["weight"].at(weights)}, {"weight": torch.diag(torch.tensor([0, 1.5]))}
    )


@pytest.mark.parametrize("base", ["task_arithmetic", "cart"])
def test_gradients_are_those_of_relaxed_masks_at_the_binary_ones(case: Any, base: Any) -> None:
    """Autograd through b + σ(x / 10) - stop(σ(x / 10)), written anew with `torch.linalg.svd`."""
    problem = Problem(case.experts, case.pretrained, case.model)
    _, directions, logits = decompose(problem, AdaRankSettings(base, rank_ratio=0.5))
    origin = case.pretrained
    if base == "cart":
        origin = {k: (case.experts["a"][k] + case.experts["b"][k]) / 2 for k in directions}
    x = {k: v.clone().requires_grad_() for k, v in logits.items()}
    scales = torch.rand(2, len(directions), requires_grad=True)
    merged = dict(case.pretrained)
    for column, key in enumerate(directions):
        merged[key] = origin[key]
        for t, expert in enumerate(case.experts.values()):
            vector = expert[key] - origin[key]
            if key in x:
                u, s, vh = torch.linalg.svd(vector, full_matrices=False)
                soft = torch.sigmoid(x[key][t] / 10)
                mask = (x[key][t] > 0).float() + soft - soft.detach()
                vector = u @ torch.diag(mask * s) @ vh
            merged[key] = merged[key] + scales[t, column] * vector
    case.model.eval()
    outputs = functional_call(case.model, merged, (case.data["a"][0],))
    loss = entropy(case.heads["a"](outputs))
    leaves = [merged[k] for k in directions]
    found = dict(zip(directions, torch.autograd.grad(loss, leaves, retain_graph=True), strict=True))
    for column, (key, part) in enumerate(directions.items()):
        own = scales[:, column, None].detach()
        mask = (logits[key] > 0).float() if key in logits else torch.ones(2, 1)
        torch.testing.assert_close(part.at(own * mask), merged[key].detach(), rtol=1e-4, atol=1e-6)
        pulled = part.pull(found[key]).view(2, -1)
        (expected,) = torch.autograd.grad(loss, scales, retain_graph=True)
        torch.testing.assert_close(
            (pulled * mask).sum(1), expected[:, column], rtol=1e-3, atol=1e-6
        )
        if key in logits:
            (expected,) = torch.autograd.grad(loss, x[key], retain_graph=True)
            by_hand = straight_through(own * pulled, logits[key])
            torch.testing.assert_close(by_hand, expected, rtol=1e-3, atol=1e-8)


class Doubled(nn.Module):
    """Logits ±z, whose entropy falls as |z| grows."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.stack([z.sum(1), -z.sum(1)], dim=1)


def toy(**options: Any) -> Any:
    """Expert one adds 2 and 1 on the diagonal, expert two takes 1.5 away from the first of them.

    With all directions the logits of the two inputs are ±(2 λ₁ - 1.5 λ₂) and ±(0.2 + λ₁ + 0.1 λ₂).
    """
    base, one, two = (torch.diag(torch.tensor(d)) for d in ([0, 0.2], [2.0, 1.0], [-1.5, 0.1]))
    given: dict[str, Any] = {"init": 1.0, "steps": 30, "learning_rate": 0.02, **options}
    return ml.adapt(
        "adarank",
        {"one": {"weight": base + one}, "two": {"weight": base + two}},
        pretrained={"weight": base},
        model=nn.Linear(2, 2, bias=False),
        heads={"a": Doubled()},
        data={"a": torch.eye(2)},
        **given,
    )


def test_a_direction_that_raises_the_entropy_is_switched_off() -> None:
    made = toy()
    assert made.ranks["weight"].to_dict() == {"one": 2, "two": 1}
    expected = torch.diag(torch.tensor([2.0, 1.0])) * made.coefficients["weight"]["one"]
    expected[1, 1] += 0.2 + 0.1 * made.coefficients["weight"]["two"]
    torch.testing.assert_close(made.state["weight"], expected.float(), atol=1e-5, rtol=0)
    assert made.history["a"].iloc[-1] < made.history["a"].iloc[0]
    few = toy(steps=4)  # 0.1 / 0.02 steps are needed
    assert few.ranks["weight"].to_dict() == {"one": 2, "two": 2}


def test_a_direction_that_lowers_the_entropy_is_switched_on() -> None:
    """At the start both experts have one direction, and the second of expert one is missing."""
    made = toy(rank_ratio=0.5)
    assert toy(rank_ratio=0.5, steps=0).ranks["weight"].to_dict() == {"one": 1, "two": 1}
    assert made.ranks["weight"]["one"] == 2
    assert made.state["weight"][1, 1] >= made.coefficients["weight"]["one"] > 1


def test_kernels_are_folded_where_asked_and_something_must_be_a_matrix() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.Flatten())
    states = [{k: torch.randn_like(v) for k, v in model.state_dict().items()} for _ in range(3)]
    options: dict[str, Any] = {"model": model, "data": {"t": torch.randn(4, 2, 3, 3)}, "steps": 1}
    made = ml.adapt("adarank", states[1:], pretrained=states[0], is_matrix=is_kernel, **options)
    assert list(made.ranks) == ["0.weight"]
    assert list(made.coefficients) == ["0.weight", "0.bias"]
    assert made.state["0.weight"].shape == (6, 2, 3, 3)
    with (
        pytest.warns(UserWarning, match=r"adarank works on matrices, and it keeps whole conv"),
        pytest.raises(ValueError, match=r"adarank found no matrix .* pass is_matrix=, for conv"),
    ):
        ml.adapt("adarank", states[1:], pretrained=states[0], **options)


def test_runs_repeat_and_inputs_stay(case: Any) -> None:
    options = {"steps": 8, "learning_rate": 0.05, "base": "cart"}
    before = {k: v.clone() for k, v in case.experts["a"].items()}
    made, again = (case.adapt("adarank", **options) for _ in range(2))
    assert all(torch.equal(made.state[k], again.state[k]) for k in made.state)
    other = case.adapt("adarank", seed=1, **options)
    assert not torch.equal(made.state["first.weight"], other.state["first.weight"])
    assert all(torch.equal(before[k], case.experts["a"][k]) for k in before)
    assert made.history.columns.tolist() == ["step", "a", "b"]
    assert case.model.training, "as it was"


def test_float64_buffers_and_ties(case: Any) -> None:
    case.model.register_parameter("again", nn.Parameter(torch.zeros(8, 6)))
    case.model.double()
    for state in (case.pretrained, *case.experts.values()):
        state.update({k: v.double() for k, v in state.items() if v.is_floating_point()})
        state["again"] = state["first.weight"]
    case.heads = {task: head.double() for task, head in case.heads.items()}
    case.data = {task: (x.double(), y) for task, (x, y) in case.data.items()}
    made = case.adapt("adarank", steps=2).state
    dense = ml.merge("task_arithmetic", case.experts, pretrained=case.pretrained, scale=0.3)
    for key in ("norm.running_mean", "norm.num_batches_tracked"):
        torch.testing.assert_close(made[key], dense[key])
    assert made["again"] is made["first.weight"]
    assert made["first.weight"].dtype == torch.float64
    assert not torch.allclose(made["first.weight"], dense["first.weight"])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"base": "ties"}, "base is 'ties'"),
        ({"rank_ratio": 1.5}, "rank_ratio is 1.5"),
        ({"init": float("nan")}, "init is nan"),
        ({"data": None}, "adarank needs data: pass data="),
        ({"data": {"c": torch.zeros(1, 6)}}, "task 'c' has no head"),
        ({"data": {"a": torch.randn(4, 6), "b": torch.full((4, 6), torch.nan)}}, "of task 'b'"),
        ({"steps": -1}, "steps is -1"),
    ],
)
def test_bad_input(case: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        case.adapt("adarank", **{"steps": 1, **options})
