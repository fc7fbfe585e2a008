"""Frank-Wolfe on quadratics whose minimum over the hull is known, and on small classifiers."""

import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import mergelib as ml
from mergelib.io import Checkpoint, save_state_dict
from mergelib.procedures.walk import START, minimise

State = dict[str, Tensor]


class Quadratic:
    """½ Σ h (θ − target)², separable, so convex and of known smoothness max h."""

    def __init__(self, target: State, curvature: float = 1.0) -> None:
        self.target, self.curvature = target, curvature

    def value(self, parameters: State) -> float:
        return sum(
            0.5 * self.curvature * float((each - self.target[key]).square().sum())
            for key, each in parameters.items()
        )

    def gradient(self, parameters: State) -> tuple[float, State]:
        slope = {k: self.curvature * (each - self.target[k]) for k, each in parameters.items()}
        return self.value(parameters), slope


def points(count: int, seed: int = 0, names: tuple[str, ...] = ("a", "b")) -> dict[str, State]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"v{i}": {name: torch.randn(3, generator=generator).double() for name in names}
        for i in range(count)
    }


def best_over_hull(vertices: dict[str, State], objective: Quadratic) -> float:
    """The minimum by an independent solver, over the weights of the vertices."""
    names = list(objective.target)
    corners = np.stack([torch.cat([v[n] for n in names]).numpy() for v in vertices.values()])
    goal = torch.cat([objective.target[n] for n in names]).numpy()

    def value(weights: np.ndarray) -> float:
        return 0.5 * objective.curvature * float(np.square(weights @ corners - goal).sum())

    found = pytest.importorskip("scipy.optimize").minimize(
        value,
        np.full(len(corners), 1 / len(corners)),
        method="SLSQP",
        bounds=[(0, 1)] * len(corners),
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    return float(found.fun)


@pytest.fixture
def quadratic() -> tuple[Quadratic, dict[str, State]]:
    vertices = points(6)
    return Quadratic({"a": torch.zeros(3).double(), "b": 0.2 * torch.ones(3).double()}), vertices


@pytest.mark.parametrize("score", ["inner", "cosine"])
@pytest.mark.parametrize("granularity", ["task", "layer"])
def test_oracle_is_brute_force(quadratic: Any, score: Any, granularity: Any) -> None:
    objective, vertices = quadratic
    begin = vertices["v3"]
    _, slope = objective.gradient(begin)
    _, table, history = minimise(
        objective, begin, vertices, variant="hard", score=score, granularity=granularity,
        steps=1, step=1.0,
    )  # fmt: skip

    def liking(name: str, keys: list[str]) -> float:
        products = [float((slope[k] * vertices[name][k]).sum()) for k in keys]
        lengths = [float(slope[k].norm() * vertices[name][k].norm()) for k in keys]
        if score == "cosine":
            products = [p / size for p, size in zip(products, lengths, strict=True)]
        return sum(products)

    for keys in [["a", "b"]] if granularity == "task" else [["a"], ["b"]]:
        chosen = min(vertices, key=partial(liking, keys=keys))
        for key in keys:
            assert table[key].idxmax() == chosen
            assert table[key].max() == 1
    if granularity == "task":
        gaps = [
            sum(float((slope[k] * (begin[k] - v[k])).sum()) for k in begin)
            for v in vertices.values()
        ]
        assert history["gap"].item() == pytest.approx(max(gaps))


@pytest.mark.parametrize("step", ["quadratic", "diminishing", "armijo"])
def test_hard_variant_converges_at_the_classical_rate(quadratic: Any, step: Any) -> None:
    """f(θ_T) − f* ≤ 2 L diam² / (T + 2), and the gap bounds f − f* from above (Jaggi, 2013)."""
    objective, vertices = quadratic
    best = best_over_hull(vertices, objective)
    theta, _, history = minimise(
        objective, vertices["v0"], vertices, variant="hard", steps=200, step=step
    )
    corners = torch.stack([torch.cat(list(v.values())) for v in vertices.values()])
    diameter = float(torch.cdist(corners, corners).max())
    excess = history["loss"] - best
    assert (excess >= -1e-9).all()
    assert (history["gap"] >= excess - 1e-9).all()
    if step == "diminishing":
        t = history["step"].to_numpy()[1:]
        assert (excess.to_numpy()[1:] <= 2 * diameter**2 / (t + 2)).all()
    assert objective.value(theta) - best < 0.05 * (history["loss"][0] - best)


def test_exact_line_search_finds_the_minimum_of_a_segment() -> None:
    vertices = {"left": {"a": torch.tensor([0.0])}, "right": {"a": torch.tensor([4.0])}}
    objective = Quadratic({"a": torch.tensor([1.0])}, curvature=3.0)
    theta, table, history = minimise(
        objective, vertices["right"], vertices, variant="hard", steps=1
    )
    torch.testing.assert_close(theta["a"], torch.tensor([1.0]))
    assert table["a"].to_dict() == pytest.approx({"left": 0.75, "right": 0.0, START: 0.25})
    assert history["gap"].item() == pytest.approx(3 * 3 * 4)


def test_soft_variant_reaches_the_minimum(quadratic: Any) -> None:
    objective, vertices = quadratic
    best = best_over_hull(vertices, objective)
    theta, _, history = minimise(
        objective, vertices["v0"], vertices, steps=60, top_k=6, inner_steps=20
    )
    assert objective.value(theta) - best < 1e-3 * (history["loss"][0] - best)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 1000),
    st.sampled_from(["hard", "soft"]),
    st.sampled_from(["task", "layer"]),
    st.integers(1, 4),
)
def test_coefficients_prove_feasibility(seed: int, variant: Any, granularity: Any, k: int) -> None:
    vertices = points(4, seed)
    begin = points(1, seed + 1)["v0"]
    objective = Quadratic(points(1, seed + 2)["v0"])
    theta, table, history = minimise(
        objective, begin, vertices, variant=variant, granularity=granularity, steps=5, top_k=k
    )
    assert (table >= 0).all(axis=None)
    assert table.sum().tolist() == pytest.approx([1, 1])
    for key in begin:
        column = table[key]
        part = sum(column[name] * vertices[name][key] for name in vertices)
        torch.testing.assert_close(part + column[START] * begin[key], theta[key])
    if granularity == "task":
        assert (table["a"] == table["b"]).all()
    losses = [*history["loss"], objective.value(theta)]
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(losses))


class Waves(Quadratic):
    """A quadratic with waves on it, so that there are hills between vertices."""

    def value(self, parameters: State) -> float:
        return super().value(parameters) + sum(float(p.cos().sum()) for p in parameters.values())

    def gradient(self, parameters: State) -> tuple[float, State]:
        slope = super().gradient(parameters)[1]
        return self.value(parameters), {k: slope[k] - p.sin() for k, p in parameters.items()}


STEPS = ["quadratic", "armijo", "diminishing", 0.3, 0.0, 1.0]


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from([Quadratic, Waves]),
    options=st.fixed_dictionaries(
        {
            "variant": st.sampled_from(["hard", "soft"]),
            "granularity": st.sampled_from(["task", "layer"]),
            "score": st.sampled_from(["inner", "cosine"]),
            "step": st.sampled_from(STEPS),
            "keep_current": st.booleans(),
            "top_k": st.integers(1, 3),
        }
    ),
)
def test_no_setting_leaves_the_hull(
    seed: int, kind: type[Quadratic], options: dict[str, Any]
) -> None:
    """Vertices of different lengths, as for these the cosine may choose one that lies uphill."""
    lengths = [0.2, 1.0, 5.0]
    vertices = {
        name: {key: length * value for key, value in vertex.items()}
        for length, (name, vertex) in zip(lengths, points(3, seed).items(), strict=True)
    }
    begin, objective = vertices["v1"], kind(points(1, seed + 1)["v0"], curvature=0.5)
    theta, table, _ = minimise(objective, begin, vertices, steps=6, **options)
    assert (table >= 0).all(axis=None), options
    assert table.sum().tolist() == pytest.approx([1, 1])
    for key in begin:
        part = sum(table[key][name] * vertices[name][key] for name in vertices)
        torch.testing.assert_close(part + table[key][START] * begin[key], theta[key])


@pytest.mark.parametrize("step", ["quadratic", "armijo"])
def test_a_vertex_uphill_ends_the_walk(step: Any) -> None:
    """By hand: at (−2, 0) the slope is (1, 0). The cosine takes (−1, 0), where the loss is higher.

    Its inner product is −1, above the current point's −2; that of (−3, 9) is −3, so there is a gap.
    """
    start, corners = {"w": torch.tensor([-2.0, 0.0])}, {"down": [-3.0, 9.0], "up": [-1.0, 0.0]}
    vertices = {name: {"w": torch.tensor(corner)} for name, corner in corners.items()}
    objective = Quadratic({"w": torch.tensor([-3.0, 0.0])})
    theta, table, history = minimise(
        objective, start, vertices, variant="hard", score="cosine", step=step
    )
    assert history[["gap", "vertex", "moved"]].values.tolist() == [[1.0, "up", 0.0]]
    assert table["w"].to_dict() == {"down": 0.0, "up": 0.0, START: 1.0}
    assert torch.equal(theta["w"], start["w"])


def test_by_layer_it_takes_the_best_tensor_of_each() -> None:
    vertices = points(4)
    objective = Quadratic({"a": vertices["v1"]["a"], "b": vertices["v2"]["b"]})
    theta, table, _ = minimise(
        objective, vertices["v0"], vertices, granularity="layer", steps=30, top_k=4, inner_steps=20
    )
    assert objective.value(theta) < 1e-3
    assert table["a"].idxmax() == "v1"
    assert table["b"].idxmax() == "v2"


def test_it_stops_at_the_tolerance(quadratic: Any) -> None:
    objective, vertices = quadratic
    _, _, history = minimise(objective, vertices["v0"], vertices, steps=100, tolerance=0.5)
    assert history["gap"].iloc[-1] <= 0.5 < history["gap"].iloc[:-1].min()
    assert len(history) < 100


def test_without_the_current_point_it_is_forgotten(quadratic: Any) -> None:
    """Proposition 1 with Σ λ = 1: nothing of θ_t is left in θ_{t+1}."""
    objective, vertices = quadratic
    begin = {key: tensor + 100 for key, tensor in vertices["v0"].items()}
    _, table, _ = minimise(objective, begin, vertices, steps=1, keep_current=False)
    assert list(table.loc[START]) == [0, 0]


def test_unconstrained_coefficients_reach_the_affine_minimum(quadratic: Any) -> None:
    """Against least squares over all affine combinations, of which the hull is a part."""
    objective, vertices = quadratic
    few = {name: vertices[name] for name in ("v0", "v1", "v2")}
    corners = torch.stack([torch.cat(list(vertex.values())) for vertex in few.values()])
    goal = torch.cat(list(objective.target.values()))
    plane = (corners[1:] - corners[0]).T
    rest = goal - corners[0]
    rest = rest - plane @ torch.linalg.lstsq(plane, rest[:, None]).solution[:, 0]
    theta, table, _ = minimise(
        objective, few["v0"], few, constraint="none", top_k=3, steps=20, inner_steps=20
    )
    assert objective.value(theta) == pytest.approx(float(rest.square().sum()) / 2, rel=1e-6)
    assert table.sum().tolist() == pytest.approx([1, 1])
    assert (table < 0).any(axis=None)
    assert objective.value(theta) < best_over_hull(few, objective)


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize("variant", ["hard", "soft"])
def test_memory_does_not_grow_with_the_experts(tmp_path: Path, variant: str) -> None:
    """Sixty experts of 8 MB, of which a walk holds nine (hard) to twelve (soft) at its peak."""
    memory = pytest.importorskip("benchmarks.memory")
    memory.write_experts(tmp_path, 2, rows=512)
    first, second = sorted(tmp_path.iterdir())
    for i in range(2, 60):
        (tmp_path / f"expert{i}.safetensors").hardlink_to(second if i % 2 else first)
    assert memory.peak_bytes(tmp_path, 60, variant) < 30 * first.stat().st_size


class Case:
    """Three experts on three tasks, trained a little."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 8)
        )
        self.pretrained = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.heads = {name: nn.Linear(8, 3).requires_grad_(False) for name in "abc"}
        self.data: dict[str, Any] = {}
        self.experts = {}
        for name, head in self.heads.items():
            x = torch.randn(60, 6)
            y = (x @ torch.randn(6, 3)).argmax(1)
            self.data[name] = (x, y)
            self.model.load_state_dict(self.pretrained)
            optimiser = torch.optim.Adam(self.model.parameters(), lr=0.02)
            for _ in range(40):
                loss = nn.functional.cross_entropy(head(self.model(x)), y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            self.experts[name] = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.model.load_state_dict(self.pretrained)

    def merge(self, **options: Any) -> Any:
        return ml.adapt(
            "frank_wolfe",
            options.pop("experts", self.experts),
            pretrained=self.pretrained,
            model=self.model,
            heads=self.heads,
            data=options.pop("data", self.data),
            **{"steps": 4, **options},
        )


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


@pytest.mark.parametrize("variant", ["hard", "soft"])
@pytest.mark.parametrize("granularity", ["task", "layer"])
def test_loss_of_a_classifier_falls(case: Case, variant: str, granularity: str) -> None:
    made = case.merge(variant=variant, granularity=granularity)
    assert made.history["loss"].is_monotonic_decreasing
    assert made.history["loss"].iloc[-1] < made.history["loss"].iloc[0]
    for key in made.coefficients:
        column = made.coefficients[key]
        parts = [column[name] * case.experts[name][key] for name in case.experts]
        whole = sum(parts) + column[START] * case.pretrained[key]
        torch.testing.assert_close(whole.float(), made.state[key], rtol=1e-4, atol=1e-5)
    mean = made.coefficients.mean(axis=1)
    running = sum(mean[name] * case.experts[name]["1.running_var"] for name in case.experts)
    running = running + mean[START] * case.pretrained["1.running_var"]
    torch.testing.assert_close(made.state["1.running_var"], running.float(), rtol=1e-4, atol=1e-5)


def test_first_loss_and_gap_are_the_definitions(case: Case) -> None:
    made = case.merge(steps=1, batch_size=7)
    case.model.eval()
    losses = [
        nn.functional.cross_entropy(case.heads[t](case.model(x)), y)
        for t, (x, y) in case.data.items()
    ]
    loss = torch.stack(losses).mean()
    assert made.history["loss"][0] == pytest.approx(loss.item(), rel=1e-5)
    slope = torch.autograd.grad(loss, list(case.model.parameters()))
    names = [name for name, _ in case.model.named_parameters()]
    gaps = [
        sum(
            float((g * (case.pretrained[n] - e[n])).sum())
            for n, g in zip(names, slope, strict=True)
        )
        for e in case.experts.values()
    ]
    assert made.history["gap"][0] == pytest.approx(max(gaps), rel=1e-4)


def test_entropy_needs_no_labels(case: Case) -> None:
    inputs = {task: x for task, (x, _) in case.data.items()}
    first, second = (case.merge(loss="entropy", data=data) for data in (inputs, case.data))
    torch.testing.assert_close(first.state, second.state)
    assert first.history["loss"].is_monotonic_decreasing


def test_it_starts_where_it_is_told(case: Case) -> None:
    begin = ml.merge("average", case.experts)
    made = case.merge(start=begin, steps=0)
    for key, value in made.state.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, begin[key])
    assert made.coefficients.loc[START].eq(1).all()


def test_experts_may_be_files(case: Case, tmp_path: Path) -> None:
    files = {}
    for name, state in case.experts.items():
        save_state_dict(state, tmp_path / f"{name}.safetensors")
        files[name] = Checkpoint(tmp_path / f"{name}.safetensors")
    streamed, memory = case.merge(experts=files), case.merge()
    assert all(torch.equal(streamed.state[key], memory.state[key]) for key in memory.state)


def test_bad_input(case: Case) -> None:
    x, y = case.data["a"]
    broken = {**case.experts["b"], "0.weight": torch.full((12, 6), torch.nan)}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"variant": "firm"}, "variant is 'firm', expected 'soft' or 'hard'"),
        ({"granularity": "model"}, "granularity is 'model'"),
        ({"score": "dot"}, "score is 'dot'"),
        ({"constraint": "ball"}, "constraint is 'ball', expected 'simplex' or 'none'"),
        (
            {"experts": {**case.experts, "b": broken}},
            r"b\['0.weight'\] holds NaN in 72 of 72 entries",
        ),
        ({"loss": "mse"}, "loss is 'mse'"),
        ({"step": "long"}, "step is 'long'"),
        ({"step": 1.5}, r"step is 1\.5, expected .* or 0\.\.1"),
        ({"top_k": 0}, "top_k is 0"),
        ({"data": {}}, "no data"),
        ({"data": {"a": x}}, r"needs labels: pass \(inputs, labels\) for task 'a'"),
        ({"data": {"z": (x, y)}}, "task 'z' has no head"),
        ({"data": {"a": x[:0]}, "loss": "entropy"}, "task 'a' has no inputs"),
        ({"data": {"a": (x * torch.nan, y)}}, "inputs of task 'a' holds NaN"),
    ]
    for options, message in bad:
        with pytest.raises(ValueError, match=message):
            case.merge(**options)
