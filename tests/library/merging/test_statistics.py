"""Running statistics of BatchNorm under every method and weight: averages, by hand and by torch."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import mergelib as ml
from mergelib.merging import merge
from mergelib.registry import get_method, method_names, rule
from mergelib.statedict import proportions
from tests.library.merging.cases import NAMES

State = dict[str, Tensor]


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 3))


def measured(count: int = 3) -> tuple[list[State], list[Tensor]]:
    """Networks, each with the statistics of its own batch as torch measures them, and batches."""
    generator = torch.Generator().manual_seed(1)
    states, batches = [], []
    for i in range(count):
        model, batch = network(0), (1 + i) * torch.randn(64, 4, generator=generator) + i
        model.train()(batch)
        states.append({key: value.clone() for key, value in model.state_dict().items()})
        batches.append(batch)
    return states, batches


WEIGHTS: dict[str, tuple[list[float], list[float]]] = {
    "negative": ([1, 1, -1], [0.5, 0.5, 0]),
    "too large": ([1, 1, 1], [1 / 3] * 3),
    "too small": ([0.1, 0.2, 0.1], [0.25, 0.5, 0.25]),
    "plain": ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
    "zeros": ([0, 2, 0], [0, 1, 0]),
    "forgetting": ([2, -0.5, -0.5], [1, 0, 0]),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_they_follow_weights_that_are_no_shares(case: str, tmp_path: Path) -> None:
    weights, shares = WEIGHTS[case]
    states, _ = measured()
    files = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for state, file in zip(states, files, strict=True):
        ml.save_state_dict(state, file)
    out = ml.merge_files("average", files, tmp_path / "out.safetensors", weights=weights)
    for merged in (merge("average", states, weights=weights), ml.load_state_dict(out)):
        for key in ("1.running_mean", "1.running_var"):
            expected = sum(share * s[key] for share, s in zip(shares, states, strict=True))
            torch.testing.assert_close(merged[key], expected)
        plain = sum(w * s["0.bias"] for w, s in zip(weights, states, strict=True))
        torch.testing.assert_close(merged["0.bias"], plain)
        model = network(0)
        model.load_state_dict(merged)
        assert model.eval()(torch.randn(5, 4)).isfinite().all()


def test_torchs_own_average_is_ours() -> None:
    """With momentum None a BatchNorm averages what its batches give, which is what we average."""
    states, batches = measured()
    model = network(0).train()
    for batch in batches:
        model(batch)
    merged = merge("average", states)
    for key in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(merged[key], model.state_dict()[key])


def test_weights_of_which_none_is_positive() -> None:
    states, _ = measured()
    with pytest.raises(ValueError, match=r"weights is \[-1, 0, 0\], expected at least one pos"):
        merge("average", states, weights=[-1, 0, 0])
    bare = [{"w": state["0.weight"]} for state in states]
    torch.testing.assert_close(merge("average", bare, weights=[-1, 0, 0])["w"], -bare[0]["w"])


@pytest.mark.parametrize("weights", [[1.0, 1.0], [1.0, 1.0, math.nan], [1.0, math.inf, 1.0]])
def test_weights_that_do_not_fit_are_named_as_ever(weights: list[float]) -> None:
    states = [{"bn.running_var": torch.ones(2)} for _ in range(3)]
    with pytest.raises(ValueError, match=r"weights has 2 entries|expected a finite number"):
        merge("average", states, weights=weights)


@pytest.mark.usefixtures("spare_registry")
def test_a_rule_of_a_user_with_weights() -> None:
    """Its statistics follow them as those of `average` do."""

    @rule(paper="none", elementwise=True)
    def heaviest(experts: Sequence[Tensor], *, weights: Sequence[float] | None = None) -> Tensor:
        shares = weights or [1.0] * len(experts)
        return experts[max(range(len(shares)), key=lambda i: shares[i])] + 0

    states, _ = measured()
    merged = merge("heaviest", states, weights=[1, 4, -1])
    assert torch.equal(merged["0.bias"], states[1]["0.bias"])
    expected = 0.2 * states[0]["1.running_var"] + 0.8 * states[1]["1.running_var"]
    torch.testing.assert_close(merged["1.running_var"], expected)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6).filter(lambda w: max(w) > 1e-3))
def test_proportions(weights: list[float]) -> None:
    shares = proportions(weights)
    assert min(shares) >= 0
    assert math.fsum(shares) == pytest.approx(1)
    assert proportions(shares) == pytest.approx(shares)


@pytest.mark.parametrize("name", NAMES)
def test_no_method_spoils_a_variance(name: str) -> None:
    """Also at a scale that takes weights far away."""
    states, _ = measured(4)
    options: dict[str, Any] = {"scale": 3.0} if "scale" in get_method(name).hyperparameters else {}
    experts = states[1:3] if "slerp" in name else states[1:]
    merged = merge(name, experts, pretrained=states[0], **options)
    for key in ("1.running_mean", "1.running_var"):
        expected = torch.stack([state[key] for state in experts]).mean(0)
        torch.testing.assert_close(merged[key], expected)


@pytest.mark.parametrize("method", method_names("compression"))
def test_no_compression_spoils_a_variance(method: str, tmp_path: Path) -> None:
    """EMR rescales what it elects: one task's variance fell below zero by another's."""
    base = {"1.running_var": torch.ones(6), "w": torch.zeros(6)}
    tasks = {
        "small": {"1.running_var": torch.full((6,), 0.05), "w": torch.ones(6)},
        "smaller": {"1.running_var": torch.full((6,), 0.5), "w": torch.full((6,), 2.0)},
    }
    pretrained = base if get_method(method, "compression").needs_pretrained else None
    parts = ml.compress(method, tasks, pretrained=pretrained)
    parts.save(tmp_path / "parts.safetensors")
    for kept in (parts, ml.load_compressed(tmp_path / "parts.safetensors")):
        for task, expert in tasks.items():
            restored = kept.expert(task)["1.running_var"]
            assert (restored >= 0).all()
            if method != "tall_masks":
                torch.testing.assert_close(restored, expert["1.running_var"])


def test_a_walk_without_a_constraint_leaves_no_negative_variance() -> None:
    """Frank-Wolfe mixes buffers as it mixes parameters, of which some may weigh below zero."""
    states, batches = measured(4)
    for seed, state in enumerate(states):
        state["2.weight"] = state["2.weight"] + 0.5 * torch.randn(
            3, 6, generator=torch.Generator().manual_seed(seed)
        )
    result = ml.adapt(
        "frank_wolfe",
        states[1:],
        pretrained=states[0],
        model=network(0),
        data={"a": (batches[0], torch.zeros(64, dtype=torch.int64))},
        constraint="none",
        steps=6,
    )
    assert (result.coefficients.to_numpy() < 0).any(), "a case worth testing"
    assert (result.state["1.running_var"] >= 0).all()
    shares = proportions(result.coefficients.mean(axis=1).tolist())
    vertices = [*states[1:], states[0]]
    expected = sum(w * s["1.running_var"] for w, s in zip(shares, vertices, strict=True))
    torch.testing.assert_close(result.state["1.running_var"], expected)
