"""Estimated constants against models whose constants are known."""

import math
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mergebook.stability.theory import estimators
from mergebook.stability.theory.steps import adam_residual, adam_weights, outside
from mergebook.stability.theory.task_loss import TaskLoss, task_losses
from mergebook.suites.models import MLP, VisionTransformer
from mergelib.problems.examples import Examples
from mergelib.problems.problem import Problem
from mergelib.statedict import flatten, unflatten
from tests.book.stability.theory.quadratics import many

State = dict[str, Tensor]


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def quadratic(
    hessian: Tensor, point: Tensor, examples: Tensor, factors: Tensor | None = None
) -> TaskLoss:
    """½ a (θ − z)ᵀ H (θ − z) of examples z and factors a; θ in two tensors."""
    cut = len(point) // 2

    def loss(parameters: State, z: Any, a: Tensor) -> Tensor:
        offset: Tensor = torch.cat([parameters["a"], parameters["b"]]) - z
        return a * (offset @ hessian @ offset) / 2

    ones = torch.ones(len(examples), dtype=torch.float64)
    data = Examples(examples, ones if factors is None else factors)
    return TaskLoss({"a": point[:cut], "b": point[cut:]}, loss, data, batch_size=3)


def indefinite(*values: float, seed: int = 0) -> Tensor:
    axes: Tensor = torch.linalg.qr(gaussian(len(values), len(values), seed=seed))[0]
    return axes * many(*values) @ axes.T


def networks(kind: type[nn.Module] = VisionTransformer) -> tuple[Problem, State]:
    torch.manual_seed(0)
    model = MLP(width=4, depth=1) if kind is MLP else VisionTransformer(width=8, depth=1, heads=2)
    pictures, labels = torch.randn(5, 3, 32, 32), torch.tensor([0, 2, 1, 1, 0])
    state = {key: value.clone() for key, value in model.state_dict().items()}
    head = nn.Linear(4 if kind is MLP else 8, 3)
    data = {"task": Examples(pictures / 8, labels)}
    problem = Problem({}, state, model, data, {"task": head}, transform=lambda x: 2 * x)
    return problem, state


# Derivatives


def test_derivatives_of_a_quadratic() -> None:
    hessian, point = indefinite(3, 1, 0.5, -2), gaussian(4, seed=1)
    centres, factors = gaussian(7, 4, seed=2), gaussian(7, seed=3).exp()
    task = quadratic(hessian, point, centres, factors)
    slopes = factors[:, None] * (point - centres) @ hessian
    torch.testing.assert_close(torch.cat([*task.example_gradients()]), slopes)
    torch.testing.assert_close(task.gradient(), slopes.mean(0))
    torch.testing.assert_close(task[2:5].gradient(), slopes[2:5].mean(0))
    values = factors * torch.einsum("nd,de,ne->n", point - centres, hessian, point - centres) / 2
    torch.testing.assert_close(task.values(), values)
    direction = gaussian(4, seed=4)
    torch.testing.assert_close(task.hessian()(direction), factors.mean() * hessian @ direction)


def test_derivatives_of_a_transformer() -> None:
    """Against the module's own loss: one backward pass, and differences of its gradient."""
    problem, state = networks()
    task = task_losses(problem, state, batch_size=2)["task"]
    names = list(task.point)

    def slope(vector: Tensor) -> Tensor:
        problem.model.load_state_dict(unflatten(vector, state))
        pictures, labels = problem.data["task"].pair
        assert isinstance(pictures, Tensor)
        outputs = problem.heads["task"](problem.model(2 * pictures))
        parameters = dict(problem.model.named_parameters())
        loss = F.cross_entropy(outputs, labels)
        gradients = torch.autograd.grad(loss, [parameters[name] for name in names])
        return torch.cat([g.flatten() for g in gradients])

    point = flatten(task.point)
    torch.testing.assert_close(task.gradient(), slope(point), atol=1e-6, rtol=1e-4)
    each = torch.cat([*task.example_gradients()])
    torch.testing.assert_close(each.mean(0), slope(point), atol=1e-6, rtol=1e-4)
    direction = gaussian(len(point)).float()
    direction /= direction.norm()
    step = 1e-2
    ahead, behind = slope(point + step * direction), slope(point - step * direction)
    by_differences = (ahead - behind) / (2 * step)
    found = task.hessian()(direction)
    assert float((found - by_differences).norm() / found.norm()) < 0.01


# Curvature


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power iteration goes on until it stands still."""
    monkeypatch.setattr(estimators, "TOLERANCE", 1e-12)


@pytest.mark.usefixtures("exact")
def test_smoothness_is_the_largest_eigenvalue_whatever_its_sign() -> None:
    for values in ((3, 1, 0.5, -2), (1, 0.5, -4, 0.1), (2, -2, 1, 0), (0, 0, 0, 0)):
        task = quadratic(indefinite(*values), gaussian(4, seed=1), gaussian(5, 4))
        found = estimators.smoothness([task], steps=200)
        assert found == pytest.approx(max(map(abs, values)), rel=1e-6)


@pytest.mark.usefixtures("exact")
def test_smoothness_is_never_too_large_and_of_the_mean_of_tasks() -> None:
    first, second = indefinite(3, 1, 0.5, 0.2), indefinite(2, 2, 1, 0.1, seed=5)
    tasks = [quadratic(h, gaussian(4, seed=1), gaussian(5, 4)) for h in (first, second)]
    truth = float(torch.linalg.eigvalsh((first + second) / 2).abs().max())
    for steps in (1, 2, 5, 100):
        assert estimators.smoothness(tasks, steps=steps) <= truth * (1 + 1e-12)
    assert estimators.smoothness(tasks, steps=100) == pytest.approx(truth)


def test_smoothness_of_single_examples() -> None:
    factors = many(1, 2, 0.5, 0, 7)
    task = quadratic(indefinite(1, -3, 2, 0.5), gaussian(4, seed=1), gaussian(5, 4), factors)
    found = estimators.example_smoothness(task, steps=100)
    torch.testing.assert_close(found, 3 * factors, rtol=1e-4, atol=1e-9)


@pytest.mark.usefixtures("exact")
def test_smoothness_of_a_network_is_that_of_its_whole_hessian() -> None:
    """With respect to one layer's biases, so that the Hessian is small."""
    problem, state = networks(MLP)
    head = problem.heads["task"].requires_grad_(False)
    task = task_losses(problem, state)["task"]
    first = task.point["layers.0.weight"]

    def total(vector: Tensor) -> Tensor:
        pictures, labels = problem.data["task"].pair
        assert isinstance(pictures, Tensor)
        hidden = F.gelu(2 * pictures.flatten(1) @ first.T + vector)
        return F.cross_entropy(head(hidden), labels)

    def loss(parameters: State, x: Any, y: Tensor) -> Tensor:
        return task.loss({**parameters, "layers.0.weight": first}, x, y)

    bias = {"layers.0.bias": task.point["layers.0.bias"]}
    part = TaskLoss(bias, loss, task.examples)
    hessian = torch.autograd.functional.hessian(total, bias["layers.0.bias"])
    truth = float(torch.linalg.eigvalsh(hessian).abs().max())
    assert estimators.smoothness([part], steps=200) == pytest.approx(truth, rel=1e-3)


# Noise


def test_noise_gives_that_of_every_batch_size() -> None:
    task = quadratic(indefinite(3, 1, 0.5, -2), gaussian(4, seed=1), gaussian(7, 4, seed=2))
    noise = estimators.gradient_noise(task)
    slopes = torch.cat([*task.example_gradients()])
    away = slopes - slopes.mean(0)
    for b in (1, 2, 3, 6):
        batches = [away[list(rows)].mean(0).square().sum() for rows in combinations(range(7), b)]
        assert noise.square * (7 - b) / (b * 7) == pytest.approx(float(sum(batches)) / len(batches))
    assert noise.largest == pytest.approx(float(away.norm(dim=1).max()))


def test_noise_of_a_regression_with_known_noise() -> None:
    """½ (xᵀθ − y)² at the truth, where a gradient is −ε x: σ² = E ε² E ‖x‖² = 0.09 · 4."""
    inputs, errors, truth = gaussian(4000, 4), 0.3 * gaussian(4000, seed=1), gaussian(4, seed=2)

    def loss(parameters: State, x: Any, y: Tensor) -> Tensor:
        gap: Tensor = x @ parameters["w"] - y
        return gap.square() / 2

    task = TaskLoss({"w": truth}, loss, Examples(inputs, inputs @ truth + errors), 1000)
    assert estimators.gradient_noise(task).square == pytest.approx(0.36, rel=0.1)


# Distances


def products_of(gradients: Tensor) -> Tensor:
    """What `gradient_products` makes of gradients on the parts, ``(T, m, d)``."""
    return torch.einsum("tad,sbd->tasb", gradients, gradients)


def test_distances_without_noise_are_closed_forms() -> None:
    hessian, centres = indefinite(3, 1, 0.5, -2), gaussian(3, 4, seed=1)
    tasks = [quadratic(hessian, gaussian(4), c.expand(6, -1)) for c in centres]
    table = estimators.gradient_products(tasks, parts=3)
    pulls = (gaussian(4) - centres) @ hessian
    apart = ((centres - centres.mean(0)) @ hessian).square().sum(1)
    found = estimators.heterogeneity(table)
    assert [each.value for each in found] == pytest.approx(apart.tolist())
    weights = many(0.5, 0.2, 0.3)
    around = pulls - weights @ pulls
    kappa = estimators.dissimilarity(table, weights)
    assert kappa.value == pytest.approx(float(weights @ around.square().sum(1)))
    combination = many(1, -2, 0.5)
    length = estimators.squared_length(table, combination)
    assert length.value == pytest.approx(float((combination @ pulls).square().sum()))


def test_split_parts_are_unbiased_where_the_plug_in_is_not() -> None:
    """Tasks that agree: ζ² = 0; of m parts with variance 1 the plug-in makes (1 − 1/T) d/m."""
    tables = [products_of(gaussian(3, 4, 5, seed=seed)) for seed in range(1000)]
    estimates = [estimators.heterogeneity(table)[0] for table in tables]
    values = many(*[each.value for each in estimates])
    plugged = many(*[each.plug_in for each in estimates])
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean())) < 3 * error
    biased = (1 - 1 / 3) * 5 / 4
    assert float(plugged.mean()) == pytest.approx(biased, rel=0.1)
    assert biased > 10 * error


def test_two_parts_are_the_split_halves() -> None:
    gradients = gaussian(3, 2, 5)
    apart = gradients - gradients.mean(0)
    found = [each.value for each in estimators.heterogeneity(products_of(gradients))]
    assert found == pytest.approx((apart[:, 0] * apart[:, 1]).sum(1).tolist())


def test_s21_the_second_moment_is_least_around_the_mean() -> None:
    """Lemma 4 takes Assumption 3's ζ around f for κ around f̃: an inequality, not an identity."""
    gaps = []
    for seed in range(1000):
        table = products_of(gaussian(3, 1, 4, seed=seed).expand(-1, 2, -1))
        weights = torch.softmax(gaussian(3, seed=seed + 1000), 0)
        around = many(*[each.value for each in estimators.heterogeneity(table)])
        gaps.append(float(weights @ around) - estimators.dissimilarity(table, weights).value)
        even = estimators.dissimilarity(table, many(1, 1, 1) / 3).value
        assert even == pytest.approx(float(around.mean()))
    assert min(gaps) > 0


def test_products_refuse_parts_that_cannot_be() -> None:
    tasks = [quadratic(torch.eye(4).double(), gaussian(4), gaussian(3, 4))] * 2
    for parts in (1, 4):
        with pytest.raises(ValueError, match=f"parts is {parts}, expected 2 up to"):
            estimators.gradient_products(tasks, parts)


# From gradients to losses


def test_pl_constant_of_a_quadratic() -> None:
    """Along an axis with eigenvalue h the ratio is 1/(2h): at most 1/(2μ), at least 1/(2L)."""
    values = many(3, 1, 0.25)
    points = gaussian(20, 3)
    losses, squares = (points.square() @ values) / 2, points.square() @ values.square()
    inside = estimators.pl_constant(losses, squares, 3.0)
    assert 1 / 6 < inside < 2
    ends = estimators.pl_constant(values / 2, values.square(), 3.0)
    assert ends == pytest.approx(2)
    sharpest = estimators.pl_constant(values[:1] / 2 - 0.1, values[:1].square(), 3.0)
    assert sharpest == pytest.approx(1 / 6), "which smoothness forces on every ratio"


# Adam


def test_weights_of_adam_are_those_of_pytorch() -> None:
    gradients, start = gaussian(12, 5), gaussian(5, seed=1)
    parameter = nn.Parameter(start.clone())
    optimiser = torch.optim.Adam([parameter], lr=0.1)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimiser.step()
    weights = adam_weights(gradients)
    torch.testing.assert_close(start - 0.1 * (weights * gradients).sum(0), parameter.detach())


def test_s14_adams_step_is_no_combination_of_its_gradients() -> None:
    """(1, 0.01) becomes (1, 1), whose part across it is 0.99/(√2 · ‖(1, 0.01)‖)."""
    residual = adam_residual(many(1, 0.01)[None])
    assert residual == pytest.approx(0.99 / math.sqrt(2 * 1.0001))


def test_where_adam_has_a_vector() -> None:
    """Coordinates with gradients of one size: one weight for all, and a step in their span."""
    signs = torch.sign(gaussian(6))
    assert adam_residual(gaussian(4, 1, seed=1).abs() * signs) < 1e-9


def test_what_lies_outside() -> None:
    directions = many(1, 0, 0, 1, 0, 0, 0, 2, 0).view(3, 3)  # the first twice
    assert outside(many(0, 3, 4), directions) == pytest.approx(0.8)
    assert outside(directions.sum(0), directions) < 1e-12


class Choosy(nn.Linear):
    """A layer that looks at its inputs' values, which cannot be vectorised."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if bool(x.abs().max() < 1e6) else 0 * x)


def test_models_that_cannot_be_vectorised_go_one_by_one() -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])
    found = {}
    for layer in (nn.Linear(4, 3), Choosy(4, 3)):
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(0.3)
        data, heads = {"all": Examples(inputs, labels)}, {"all": nn.Identity()}
        problem = Problem({}, model=layer, data=data, heads=heads)
        loss = task_losses(problem, layer.state_dict())["all"]
        direction = torch.ones(len(flatten(loss.point)))
        rows = loss.example_hessians(slice(1, 4))(torch.ones(3, len(direction)))
        found[type(layer)] = [loss.values(), loss.gradient(), loss.hessian()(direction), rows]
    for ours, theirs in zip(*found.values(), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert float(ours.abs().max()) > 0
