"""AdaMerging against autograd through the mixture, closed forms, and the methods it starts from."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import mergelib as ml
from mergelib.problems.problem import Problem
from mergelib.procedures.adamerging import AdaMergingSettings, span
from mergelib.procedures.objectives import entropy
from tests.library.procedures.conftest import Scalar

TASKS = ("a", "b")


@pytest.mark.parametrize(
    ("base", "rule", "options"),
    [
        ("task_arithmetic", "task_arithmetic", {"scale": 0.3}),
        ("ties", "ties", {"scale": 0.3, "reduce": "sum", "density": 0.2}),
        ("cart", "cart", {"scale": 1.0, "rank_ratio": 0.3}),
    ],
)
def test_no_step_is_the_base_itself(case: Any, base: str, rule: str, options: Any) -> None:
    made = case.adapt("adamerging", base=base, steps=0, rank_ratio=0.3)
    expected = ml.merge(rule, case.experts, pretrained=case.pretrained, **options)
    assert list(made.state) == list(expected)
    for key, value in expected.items():
        torch.testing.assert_close(made.state[key], value)
    assert (made.coefficients == (1.0 if base == "cart" else 0.3)).all(axis=None)


@pytest.mark.parametrize("base", ["task_arithmetic", "ties", "cart"])
def test_gradients_are_those_through_the_mixture(case: Any, base: Any) -> None:
    problem = Problem(case.experts, case.pretrained, case.model)
    basis = span(problem, AdaMergingSettings(base, rank_ratio=0.3))
    weights = torch.rand(2, len(basis.vectors), requires_grad=True)

    def loss(state: Mapping[str, Tensor]) -> Tensor:
        case.model.eval()
        outputs = functional_call(case.model, dict(state), (case.data["a"][0],))
        return entropy(case.heads["a"](outputs))

    mixed = {
        key: basis.origin[key] + sum(weights[t, i] * v[t] for t in range(2))
        for i, (key, v) in enumerate(basis.vectors.items())
    }
    (expected,) = torch.autograd.grad(loss({**case.pretrained, **basis.origin, **mixed}), weights)
    merged = basis.at(weights.detach())
    leaves = [merged[key].requires_grad_() for key in basis.vectors]
    gradients = torch.autograd.grad(loss({**case.pretrained, **merged}), leaves)
    torch.testing.assert_close(basis.pull(gradients), expected, rtol=1e-5, atol=1e-6)


def test_entropy_in_closed_form() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 1000.0, 0.0, 0.0]])
    assert entropy(logits[:1]).item() == pytest.approx(torch.log(torch.tensor(4.0)).item())
    assert entropy(logits).item() == pytest.approx(torch.log(torch.tensor(4.0)).item() / 2)


def test_one_step_by_hand() -> None:
    """One weight, one expert: dH/dλ = -z σ(z) σ(-z) dz/dλ for two classes of logits (z, 0)."""

    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0]))

        def forward(self, x: Tensor) -> Tensor:
            return self.w * x

    class Head(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return torch.cat([z, torch.zeros_like(z)], dim=1)

    pretrained, expert = {"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}
    options: dict[str, Any] = {"model": Scalar(), "heads": {"a": Head()}, "init": 0.25}
    data = {"a": torch.tensor([[0.8]])}
    made = ml.adapt(
        "adamerging",
        [expert],
        pretrained=pretrained,
        data=data,
        steps=1,
        learning_rate=0.1,
        **options,
    )
    z = torch.tensor((1 + 0.25 * 2) * 0.8)
    assert (-z * z.sigmoid() * (-z).sigmoid() * 2 * 0.8).item() < 0
    # Adam's first step is the learning rate against the sign of the gradient.
    assert made.coefficients.iloc[0, 0] == pytest.approx(0.35, abs=1e-6)
    assert made.state["w"].item() == pytest.approx(1 + 0.35 * 2, abs=1e-6)
    first = made.history["a"].iloc[0]
    p = z.sigmoid()
    assert first == pytest.approx((-p * p.log() - (1 - p) * (1 - p).log()).item())


class AgainstZero(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z, torch.zeros_like(z)], dim=1)


def _scalar(**options: Any) -> Any:
    """One weight from 1 to 3, logits (z, 0) at z = 0.8 (1 + 2 λ): layer and task are one."""
    return ml.adapt(
        "adamerging",
        [{"w": torch.tensor([3.0])}],
        pretrained={"w": torch.tensor([1.0])},
        model=Scalar(),
        heads={"a": AgainstZero()},
        **{"data": {"a": torch.tensor([[0.8]])}, "init": 0.25, "learning_rate": 0.1, **options},
    )


def test_three_steps_of_adam_with_the_gradient_in_closed_form() -> None:
    """From the second step on, Adam depends on how large gradients are, not on their signs only."""
    coefficient, first, second = 0.25, 0.0, 0.0
    for step in range(1, 4):
        z = 0.8 * (1 + 2 * coefficient)
        p = 1 / (1 + math.exp(-z))
        gradient = -z * p * (1 - p) * 2 * 0.8
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        corrected = math.sqrt(second / (1 - 0.999**step)) + 1e-8
        coefficient -= 0.1 * first / (1 - 0.9**step) / corrected
    made = _scalar(steps=3)
    assert made.coefficients.iloc[0, 0] == pytest.approx(coefficient, abs=1e-6)
    assert abs(coefficient - 0.55) > 1e-4, "signs alone would give 0.55"


def test_a_step_by_labels_by_hand() -> None:
    """With the right class first, logits (z, 0) lose -log σ(z), and its gradient raises λ."""
    data = {"a": (torch.tensor([[0.8]]), torch.tensor([0]))}
    made = _scalar(steps=2, loss="cross_entropy", data=data)
    z = [0.8 * (1 + 2 * coefficient) for coefficient in (0.25, 0.35)]
    expected = [math.log1p(math.exp(-each)) for each in z]
    assert made.history["a"].tolist() == pytest.approx(expected, abs=1e-6)
    wrong = {"a": (torch.tensor([[0.8]]), torch.tensor([1]))}
    assert _scalar(steps=1, loss="cross_entropy", data=wrong).coefficients.iloc[0, 0] < 0.25
    with pytest.raises(ValueError, match="adamerging with loss='cross_entropy' needs labels"):
        _scalar(loss="cross_entropy")
    with pytest.raises(ValueError, match="loss is 'mse'"):
        _scalar(loss="mse")


def test_batches_of_labels_are_those_of_inputs(case: Any) -> None:
    """With one example a step, the loss logged is that of this example and its label."""
    (task,) = list(case.data)[:1]
    inputs, labels = case.data[task]
    data = {task: (inputs, labels)}
    made = case.adapt("adamerging", steps=len(inputs), batch_size=1, learning_rate=0.0,
                      loss="cross_entropy", data=data)  # fmt: skip
    case.model.eval()
    outputs = functional_call(case.model, made.state, (inputs,))
    each = nn.functional.cross_entropy(case.heads[task](outputs), labels, reduction="none")
    found = sorted(made.history[task])
    assert found == pytest.approx(sorted(each.tolist()), abs=1e-5)


def test_one_layer_is_one_task() -> None:
    layer, task = (_scalar(steps=4, granularity=each) for each in ("layer", "task"))
    assert layer.coefficients.equals(task.coefficients)


def test_float64_stays(case: Any) -> None:
    case.model.double()
    for state in (case.pretrained, *case.experts.values()):
        state.update({k: v.double() for k, v in state.items() if v.is_floating_point()})
    case.heads = {task: head.double() for task, head in case.heads.items()}
    case.data = {task: (x.double(), y) for task, (x, y) in case.data.items()}
    for base in ("task_arithmetic", "ties", "cart"):
        assert (
            case.adapt("adamerging", steps=1, base=base).state["first.weight"].dtype
            == torch.float64
        )


def test_a_failure_leaves_the_mode_alone(case: Any) -> None:
    with pytest.raises(ValueError, match=r"not run on inputs of task 'a' of shape \(2, 7\)"):
        case.adapt("adamerging", steps=1, data={"a": torch.randn(4, 7)})
    assert case.model.training


def test_a_state_dict_that_is_not_the_models(case: Any) -> None:
    for state in (case.pretrained, *case.experts.values()):
        state.pop("second.weight")
    with pytest.raises(ValueError, match=r"pretrained lacks key 'second.weight'"):
        case.adapt("adamerging", steps=1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda(case: Any) -> None:
    here = case.adapt("adamerging", steps=3)
    for state in (case.pretrained, *case.experts.values()):
        state.update({key: value.cuda() for key, value in state.items()})
    case.model.cuda()
    case.heads = {task: head.cuda() for task, head in case.heads.items()}
    there = case.adapt("adamerging", steps=3)
    assert there.state["first.weight"].is_cuda
    torch.testing.assert_close(
        torch.tensor(there.coefficients.values), torch.tensor(here.coefficients.values)
    )


def test_entropy_falls_and_runs_repeat(case: Any) -> None:
    before = {k: v.clone() for k, v in case.experts["a"].items()}
    made = case.adapt("adamerging", steps=60, learning_rate=1e-2)
    totals = made.history[list(TASKS)].sum(axis=1)
    assert totals.iloc[-10:].mean() < totals.iloc[:10].mean()
    again = case.adapt("adamerging", steps=60, learning_rate=1e-2)
    assert all(torch.equal(made.state[k], again.state[k]) for k in made.state)
    other = case.adapt("adamerging", steps=60, learning_rate=1e-2, seed=1)
    assert not torch.equal(made.state["first.weight"], other.state["first.weight"])
    assert all(torch.equal(before[k], case.experts["a"][k]) for k in before)


def test_a_coefficient_an_expert(case: Any) -> None:
    made = case.adapt("adamerging", steps=5, granularity="task", learning_rate=0.1)
    assert (made.coefficients.nunique(axis=1) == 1).all()
    assert made.coefficients.iloc[:, 0].nunique() > 1
    layered = case.adapt("adamerging", steps=5, granularity="layer", learning_rate=0.1)
    assert (layered.coefficients.nunique(axis=1) > 1).all()


def test_clamp_and_counters(case: Any) -> None:
    made = case.adapt("adamerging", steps=5, learning_rate=5.0, clamp=True)
    assert made.coefficients.min(axis=None) >= 0
    assert made.coefficients.max(axis=None) <= 1
    assert torch.equal(
        made.state["norm.num_batches_tracked"], case.pretrained["norm.num_batches_tracked"]
    )
    assert case.model.training, "as it was"


def test_tied_weights_stay_tied(case: Any) -> None:
    for state in (case.pretrained, *case.experts.values()):
        state["again"] = state["first.weight"]
    case.model.register_parameter("again", nn.Parameter(torch.zeros(8, 6)))
    made = case.adapt("adamerging", steps=2)
    assert made.state["again"] is made.state["first.weight"] or torch.equal(
        made.state["again"], made.state["first.weight"]
    )
    assert "again" not in made.coefficients


def test_span_moves_only_matrices_of_cart(case: Any) -> None:
    problem = Problem(case.experts, case.pretrained, case.model)
    basis = span(problem, AdaMergingSettings("cart", rank_ratio=0.3))
    assert list(basis.vectors) == ["first.weight", "second.weight"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"base": "dare"}, "base is 'dare'"),
        ({"granularity": "row"}, "granularity is 'row'"),
        ({"data": {}}, "no data"),
        ({"data": {"c": torch.zeros(1, 6)}}, "task 'c' has no head"),
        ({"data": {"a": torch.zeros(0, 6)}}, "task 'a' has no inputs"),
        ({"data": {"a": torch.randn(4, 6), "b": torch.full((4, 6), torch.nan)}}, "of task 'b'"),
        ({"experts": []}, "nothing to merge"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"init": float("nan")}, "init is nan"),
        ({"steps": -1}, "steps is -1"),
    ],
)
def test_bad_input(case: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        case.adapt("adamerging", **{"steps": 1, **options})


def test_bad_names(case: Any) -> None:
    with pytest.raises(TypeError, match="adamerging has no hyperparameter 'rate'"):
        case.adapt("adamerging", rate=1.0)
    with pytest.raises(ValueError, match="unknown method 'adamerge'; did you mean 'adamerging'"):
        ml.adapt("adamerge", [], pretrained={}, model=case.model, heads={}, data={})
    assert ml.methods().loc["adamerging", "family"] == "procedure"
