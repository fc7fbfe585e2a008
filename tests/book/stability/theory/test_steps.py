"""Optimisers' vectors against real optimisers, weights and divergences against sums by hand."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mergebook.stability.theory.steps import (
    Training,
    chi_square,
    chi_square_printed,
    effective,
    momentum,
    proximal,
    sgd,
)

RATE = 0.3


def response(steps: int, pull: float = 0.0, **options: Any) -> Tensor:
    """−θ/η after gradients e_0, e_1, … by torch's own SGD from 0: one coefficient per gradient."""
    theta = nn.Parameter(torch.zeros(steps, dtype=torch.float64))
    optimiser = torch.optim.SGD([theta], lr=RATE, **options)
    for k in range(steps):
        optimiser.zero_grad()
        (theta[k] + pull / RATE / 2 * theta.square().sum()).backward()
        optimiser.step()
    return -theta.detach() / RATE


@pytest.mark.parametrize(
    ("vector", "real"),
    [
        (lambda k: sgd(k), response),
        (lambda k: momentum(k, 0.9), lambda k: response(k, momentum=0.9)),
        (lambda k: proximal(k, 0.1), lambda k: response(k, pull=0.1)),
    ],
    ids=["sgd", "momentum", "proximal"],
)
def test_vectors_are_the_optimisers_linear_response(
    vector: Callable[[int], Tensor], real: Callable[[int], Tensor]
) -> None:
    for steps in (1, 2, 9):
        torch.testing.assert_close(vector(steps), real(steps))


def test_lengths_are_those_of_fednova() -> None:
    """‖a‖₁ of momentum and proximal training in closed form (Wang et al., 2020)."""
    for steps, share in product((1, 2, 7, 300), (0.1, 0.5, 0.9)):
        heavy = (steps - share * (1 - share**steps) / (1 - share)) / (1 - share)
        assert float(momentum(steps, share).sum()) == pytest.approx(heavy)
        assert float(proximal(steps, share).sum()) == pytest.approx(
            (1 - (1 - share) ** steps) / share
        )


def test_a_merge_of_networks_is_one_step_on_the_surrogate() -> None:
    torch.manual_seed(0)
    shape = [nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)]
    network = nn.Sequential(*shape).double()
    start = nn.utils.parameters_to_vector(network.parameters()).detach().clone()
    experts, directions, vectors = [], [], [momentum(5, 0.5), momentum(11, 0.5)]
    for vector in vectors:
        nn.utils.vector_to_parameters(start.clone(), network.parameters())
        optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.5)
        seen, inputs = [], torch.randn(20, 3, dtype=torch.float64)
        for _ in vector:
            optimiser.zero_grad()
            (network(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
            seen.append(
                torch.cat([w.grad.flatten() for w in network.parameters() if w.grad is not None])
            )
            optimiser.step()
        experts.append(nn.utils.parameters_to_vector(network.parameters()).detach().clone())
        directions.append(torch.stack(seen, 1) @ vector / vector.sum())
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    total, surrogate = effective(weights, vectors)
    merged = weights @ torch.stack(experts)
    rebuilt = start - 0.05 * total * surrogate @ torch.stack(directions)
    torch.testing.assert_close(rebuilt, merged, atol=1e-12, rtol=0)


def test_weights_of_proximal_training_by_hand() -> None:
    counts, pull = (5, 10), 0.1
    total, surrogate = effective(
        torch.tensor([0.5, 0.5], dtype=torch.float64), [proximal(k, pull) for k in counts]
    )
    sums = [(1 - (1 - pull) ** k) for k in counts]
    assert total == pytest.approx(sum(sums) / (2 * pull))
    assert surrogate.tolist() == pytest.approx([each / sum(sums) for each in sums])
    printed = 1 - (1 - pull) ** 10 / 2  # the bracket that the paper lacks, two tasks, K = 10
    assert 2 * printed / (2 * (1 - (1 - pull) ** 10)) == pytest.approx(1.268, abs=1e-3)


def test_divergences_by_hand() -> None:
    weights = torch.tensor([0.9, 0.1], dtype=torch.float64)
    assert chi_square(weights) == pytest.approx(0.16 / 0.9 + 0.16 / 0.1)
    assert chi_square_printed(weights) == pytest.approx(0.16 / 0.81 + 0.16 / 0.01)
    assert chi_square(torch.full((5,), 0.2).double()) == pytest.approx(0, abs=1e-15)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6))
def test_the_printed_divergence_is_never_smaller(parts: list[float]) -> None:
    weights = torch.tensor(parts, dtype=torch.float64) / sum(parts)
    assert chi_square_printed(weights) >= chi_square(weights) - 1e-12
    other = float((1 / weights).sum()) / len(parts) ** 2 - 1  # (1/T²) Σ 1/ω − 1
    assert chi_square(weights) == pytest.approx(other, abs=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: effective(torch.tensor([0.5, 0.6]), [sgd(1), sgd(1)]), "sum to 1"),
        (lambda: Training.alike(2, 3, 0.1, batch=9, examples=8), "batch"),
        (lambda: Training.alike(2, 3, 0.0, batch=1, examples=8), "learning_rate"),
        (
            lambda: Training(0.1, [sgd(1)], torch.ones(2), torch.ones(1), torch.ones(1)),
            "one length",
        ),
    ],
)
def test_what_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
