"""Singular value calibration: by hand, by loops, and as part of every way to merge."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mergelib as ml
from mergelib import recipes
from mergelib.registry import get_method, method_names
from mergelib.rules.calibration import subspace_boosting, svc
from mergelib.statedict import is_kernel

State = dict[str, Tensor]


def matrices(*shape: int, count: int = 3, shared: float = 1.0) -> list[Tensor]:
    """θ_0 and experts that have changed it in common directions, and each in its own."""
    generator = torch.Generator().manual_seed(0)
    base, common, *own = (torch.randn(shape, generator=generator) for _ in range(count + 2))
    return [base, *(base + 0.1 * (shared * common + each) for each in own)]


def states(*shape: int, **options: Any) -> tuple[State, list[State]]:
    base, *experts = [{"layer.weight": each.double()} for each in matrices(*shape, **options)]
    return base, experts


def by_loops(merged: Tensor, experts: list[Tensor], base: Tensor, alpha: float) -> Tensor:
    """Algorithm 1, one direction and one expert after the other, from an eigendecomposition."""
    task_matrix = merged - base
    result = base.clone()
    for u in torch.linalg.eigh(task_matrix @ task_matrix.T).eigenvectors.T:
        response = u @ task_matrix
        total = 0.0
        for expert in experts:
            own = u @ (expert - base)
            total += max(alpha, float(response @ own) / float(own @ own))
        result += len(experts) / total * torch.outer(u, response)
    return result


def test_a_case_by_hand() -> None:
    """Both experts have (2, 0), which the sum counts twice; the first alone has (0, 1)."""
    base = {"w": torch.zeros(2, 2)}
    experts = [{"w": torch.tensor([[2.0, 0.0], [0.0, 1.0]])}, {"w": torch.eye(2) * 2}]
    experts[1]["w"][1, 1] = 0
    summed = ml.merge("task_arithmetic", experts, pretrained=base, scale=1.0)
    assert summed["w"].tolist() == [[4, 0], [0, 1]]
    # At scale 1 coefficients are 2 and 2, 1 and none, which counts as α: γ = 1 / 2 and 2 / (1 + α).
    # At scale 0.25 they are 0.5 and 0.5, 0.25 and none: γ = 1 / 0.5 and 2 / (0.25 + α).
    cases: list[tuple[dict[str, Any], float]] = [
        ({"scale": 1.0}, 2 / (1 + 0.5)),
        ({"scale": 1.0, "svc_alpha": 1.0}, 2 / (1 + 1)),
        ({"scale": 0.25, "svc_alpha": 0.2}, 0.25 * 2 / (0.25 + 0.2)),
    ]
    for options, second in cases:
        calibrated = ml.merge("task_arithmetic+svc", experts, pretrained=base, **options)
        expected = torch.tensor([[2.0, 0.0], [0.0, second]])
        torch.testing.assert_close(calibrated["w"], expected)


@pytest.mark.parametrize("method", ["task_arithmetic", "ties", "cart", "wudi", "dare", "karcher"])
@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6)])
@pytest.mark.parametrize("alpha", [1.0, 0.4])
def test_it_is_algorithm_1(method: str, shape: tuple[int, int], alpha: float) -> None:
    base, experts = states(*shape)
    (merged,) = ml.merge(method, experts, pretrained=base).values()
    tensors = [e["layer.weight"] for e in experts]
    expected = by_loops(merged, tensors, base["layer.weight"], alpha)
    (found,) = ml.merge(f"{method}+svc", experts, pretrained=base, svc_alpha=alpha).values()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    assert not torch.allclose(found, merged, atol=1e-3) or alpha == 1


@pytest.mark.filterwarnings("ignore:expert 0 and expert 1")
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_sum_of_equal_experts_is_the_expert(count: int) -> None:
    base, (expert, *_) = states(6, 4)
    found = ml.merge("task_arithmetic+svc", [expert] * count, pretrained=base, scale=1.0)
    torch.testing.assert_close(found, expert)


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_orthogonal_experts_are_left_alone(scale: float) -> None:
    base = torch.randn(6, 8)
    u, s, vh = torch.linalg.svd(torch.randn(6, 8), full_matrices=False)
    parts = [slice(0, 2), slice(2, 3), slice(3, 6)]
    experts = [{"w": base + (u[:, part] * s[part]) @ vh[part]} for part in parts]
    how: dict[str, Any] = {"pretrained": {"w": base}, "scale": scale}
    plain = ml.merge("task_arithmetic", experts, **how)
    found = ml.merge("task_arithmetic+svc", experts, svc_alpha=1.0, **how)
    torch.testing.assert_close(found, plain)


@pytest.mark.filterwarnings("ignore:expert 0 is the pretrained model")
def test_experts_without_a_change() -> None:
    base, experts = states(4, 6)
    theta = base["layer.weight"]
    assert torch.equal(svc([theta] * 3, theta), theta)
    found = ml.merge("task_arithmetic+svc", [base, experts[0]], pretrained=base, scale=2.0)
    # Coefficients are 2, and α = 1 / 2 for the expert that is the base: γ = 2 / 2.5.
    expected = theta.lerp(experts[0]["layer.weight"], 1.6)
    torch.testing.assert_close(found["layer.weight"], expected)


@pytest.mark.parametrize("shape", [(40, 90), (90, 40)])
@pytest.mark.parametrize("method", ["iso_c", "tsv"])
def test_equal_and_zero_singular_values(method: str, shape: tuple[int, int]) -> None:
    """Whatever the directions, no value grows by more than 1/α, and zeros stay zero."""
    base, *experts = ({"layer.weight": each} for each in matrices(*shape))
    theta = base["layer.weight"]

    def sizes(name: str, **options: Any) -> Tensor:
        merged = ml.merge(name, experts, pretrained=base, **options)
        values: Tensor = torch.linalg.svdvals(merged["layer.weight"] - theta)
        return values

    plain = sizes(method)
    for alpha in (None, 1.0):
        found = sizes(f"{method}+svc", svc_alpha=alpha)
        least = alpha or 1 / len(experts)
        assert (found <= plain / least * (1 + 1e-4) + 1e-5).all()
        assert found.norm() > 0.3 * plain.norm()
        assert found.norm() < 0.999 * plain.norm() or least < 1


def test_boosting_by_hand() -> None:
    """Of singular values 5, 3, 1, 1 one has half of their sum, two 0.8, and three 0.9."""
    u, vh = (torch.linalg.qr(torch.randn(n, 4).double()).Q for n in (6, 5))
    base = torch.randn(6, 5).double()
    merged = base + (u * torch.tensor([5.0, 3.0, 1.0, 1.0])) @ vh.T
    for beta, sizes in {0.0: (5, 5, 5, 5), 0.5: (5, 5, 5, 5), 0.79: (5, 3, 3, 3)}.items():
        found = subspace_boosting([merged], base, boosting_beta=beta)
        torch.testing.assert_close(found, base + (u * torch.tensor(sizes)) @ vh.T)
    for beta in (0.81, 1.0):
        torch.testing.assert_close(subspace_boosting([merged], base, boosting_beta=beta), merged)
    assert torch.equal(subspace_boosting([base], base), base)


@pytest.mark.parametrize("method", ["task_arithmetic", "ties", "wudi"])
@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6)])
@pytest.mark.parametrize("beta", [0.01, 0.5, 0.7, 0.95])
def test_boosting_is_a_full_svd_with_small_values_raised(
    method: str, shape: tuple[int, int], beta: float
) -> None:
    base, experts = states(*shape)
    theta = base["layer.weight"]
    (merged,) = ml.merge(method, experts, pretrained=base).values()
    u, s, vh = torch.linalg.svd(merged - theta, full_matrices=False)
    count = next(c for c in range(1, len(s) + 1) if s[:c].sum() >= beta * s.sum())
    there = s > 1e-9 * s[0]  # of the others, directions are arbitrary
    raised = s.clamp(min=s[count - 1]) * there
    name = f"{method}+subspace_boosting"
    (found,) = ml.merge(name, experts, pretrained=base, boosting_beta=beta).values()
    torch.testing.assert_close(found, theta + (u * raised) @ vh, rtol=1e-6, atol=1e-9)


def test_boosting_to_the_largest_value_is_iso_c_at_another_scale() -> None:
    base, experts = states(6, 9)
    theta = base["layer.weight"]
    (merged,) = ml.merge("task_arithmetic", experts, pretrained=base, scale=1.0).values()
    s = torch.linalg.svdvals(merged - theta)
    how: dict[str, Any] = {"pretrained": base, "scale": float(s[0] / s.mean())}
    (expected,) = ml.merge("iso_c", experts, **how).values()
    name = "task_arithmetic+subspace_boosting"
    (found,) = ml.merge(name, experts, pretrained=base, scale=1.0).values()
    torch.testing.assert_close(found, expected)


def test_what_is_a_matrix() -> None:
    """Convolutions are folded on request, stacks taken apart; the rest is what the rule makes."""
    shapes = {"conv.weight": (4, 3, 2, 2), "mlp.experts.up_proj": (2, 5, 6), "bias": (4,)}
    shapes |= {"embed.weight": (7, 5), "norm.running_mean": (4,), "layer.weight": (4, 6)}
    base, *experts = [
        {key: matrices(*shape)[i].double() for key, shape in shapes.items()} for i in range(4)
    ]
    how: dict[str, Any] = {"pretrained": base, "scale": 0.9}
    plain = ml.merge("task_arithmetic", experts, **how)
    with pytest.warns(UserWarning, match=r"leaves to task_arithmetic convolutions \('conv.weight'"):
        found = ml.merge("task_arithmetic+svc", experts, **how)
    folded = ml.merge("task_arithmetic+svc", experts, **how, is_matrix=is_kernel)
    for key in ("bias", "embed.weight", "norm.running_mean", "conv.weight"):
        assert torch.equal(found[key], plain[key])

    def calibrated(key: str, *at: int) -> Tensor:
        all_of = [state[key].flatten(-3) if key[0] == "c" else state[key] for state in all_states]
        theta, *rest = (each[at].flatten(1) for each in all_of)
        return svc(rest, theta)

    all_states = [base, plain, *experts]
    torch.testing.assert_close(found["layer.weight"], calibrated("layer.weight"))
    for i in range(2):
        part = found["mlp.experts.up_proj"][i]
        torch.testing.assert_close(part, calibrated("mlp.experts.up_proj", i))
        assert not torch.allclose(part, plain["mlp.experts.up_proj"][i])
    rows = [state["conv.weight"].flatten(1) for state in all_states]
    torch.testing.assert_close(folded["conv.weight"].flatten(1), svc(rows[1:], rows[0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_result_is_rounded_once(dtype: torch.dtype) -> None:
    base, *experts = ({"w": each.to(dtype)} for each in matrices(20, 30))
    wide, *others = ({"w": state["w"].float()} for state in (base, *experts))
    found = ml.merge("ties+svc", experts, pretrained=base)["w"]
    expected = ml.merge("ties+svc", others, pretrained=wide)["w"]
    assert found.dtype == dtype
    assert torch.equal(found, expected.to(dtype))


@pytest.mark.parametrize("method", method_names())
def test_files_equal_memory_and_their_recipe_runs_again(method: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="recipes need PyYAML, which a bare installation lacks")
    paths, models = [], []
    for i, each in enumerate(matrices(8, 6, count=2 if "slerp" in method else 3)):
        models.append({"layer.weight": each, "layer.bias": each[:, 0].clone()})
        (tmp_path / str(i)).mkdir()
        ml.save_state_dict(models[-1], tmp_path / str(i) / "model.safetensors")
        paths.append(tmp_path / str(i))
    name = f"{method}+svc"
    how: dict[str, Any] = {"svc_alpha": {"*.weight": 0.8, "*": 1.0}}
    expected = ml.merge(name, models[1:], pretrained=models[0], **how)
    plain = ml.merge(method, models[1:], pretrained=models[0])
    assert torch.equal(expected["layer.bias"], plain["layer.bias"])
    assert not torch.equal(expected["layer.weight"], plain["layer.weight"])
    out = ml.merge_files(name, paths[1:], tmp_path / "out", pretrained=paths[0], **how)
    recipes.run_recipe(out / "README.md", tmp_path / "again")
    for folder in (out, tmp_path / "again"):
        found = ml.load_state_dict(folder)
        assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_a_search_does_not_interpolate() -> None:
    base, experts = states(6, 8)
    target = ml.merge("task_arithmetic+svc", experts, pretrained=base, scale=0.7)["layer.weight"]

    def score(state: State) -> float:
        return -float((state["layer.weight"] - target).norm())

    grid = {"scale": [0.3, 0.5, 0.7, 0.9]}
    found = ml.search("task_arithmetic+svc", experts, score=score, grid=grid, pretrained=base)
    assert found.best == {"scale": 0.7}
    assert found.score == 0


def test_what_is_refused() -> None:
    base, experts = states(4, 4)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("svc", {}, "it calibrates a merge: add it to a method's name, as in 'ties\\+svc'"),
        ("ties+swc", {}, "unknown method 'swc'; did you mean 'svc'"),
        ("tise+svc", {}, "unknown method 'tise'; did you mean 'ties'"),
        ("ties+cart", {}, "unknown method 'cart'; it is a rule; known: svc"),
        ("ties+svc+svc", {}, "unknown method 'svc\\+svc'; did you mean 'svc'"),
        ("ties+", {}, "unknown method ''; known: svc"),
        ("base+adapter", {}, "unknown method 'base\\+adapter'; the method comes before the models"),
        ("cart+svc", {"pretrained": None}, "cart\\+svc needs the pretrained model"),
        ("ties+svc", {"svc_alpha": 0}, "svc_alpha is 0, expected a positive number"),
        ("ties+svc", {"svc_alpha": [1, 1, 1]}, "svc_alpha is .*, the same for all experts"),
        ("ties+svc", {"svc_alpha": {"no*": 1}}, "matches none of the merged keys"),
    ]
    for name, options, message in cases:
        with pytest.raises(ValueError, match=message):
            ml.merge(name, experts, **{"pretrained": base, **options})
    with pytest.raises(TypeError, match=r"'alpha'; it has: .*, svc_alpha"):
        ml.merge("ties+svc", experts, pretrained=base, alpha=1.0)
    with pytest.raises(TypeError, match=r"ties has no hyperparameter 'svc_alpha'"):
        ml.merge("ties", experts, pretrained=base, svc_alpha=1.0)
    with pytest.raises(ValueError, match="unknown method 'regmean\\+svc'; did you mean 'regmean'"):
        ml.adapt("regmean+svc", experts, pretrained=base, model=nn.Linear(4, 4), data={})


def test_a_recipe_with_an_unknown_calibration_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="recipes need PyYAML, which a bare installation lacks")
    (tmp_path / "r.yml").write_text("merge_method: ties+swc\nmodels:\n  - model: a\n")
    with pytest.raises(ValueError, match=r"line 1: no method 'ties\+swc' here"):
        recipes.run_recipe(tmp_path / "r.yml", tmp_path / "out")


def test_a_calibrated_method_is_registered_with_both_parts() -> None:
    chosen = get_method("cart+svc")
    assert chosen.needs_pretrained
    assert list(chosen.hyperparameters)[-1] == "svc_alpha"
    assert ml.methods().loc["svc", "family"] == "calibration"
    assert ml.methods().loc["svc", "needs"] == "experts, pretrained"
