"""What chapter 40 computes, against written-out formulas and known ends."""

import math

import pytest
import torch

from mergebook.stability.read.quadratics import (
    bounds_over_steps,
    errors_over_steps,
    pretrained_error,
    pulled_tasks,
)
from mergebook.stability.theory.quadratics import Quadratics

SETTINGS = {"batch": 8, "examples": 50}


def test_pulled_tasks_have_the_curvatures_and_gradients_that_are_promised() -> None:
    tasks = pulled_tasks(3, 4, own=0.0, flattest=0.01, seed=2)
    values = torch.linalg.eigvalsh(tasks.hessians)
    assert values.amax(1).tolist() == pytest.approx([1.0] * 3)
    assert values.amin(1).tolist() == pytest.approx([0.01] * 3)
    pulls = (tasks.hessians @ tasks.centres[..., None])[..., 0]
    torch.testing.assert_close(pulls, pulls[:1].expand(3, 4))  # no part of their own


def test_the_pretrained_error_is_where_training_begins() -> None:
    tasks = pulled_tasks()
    table = errors_over_steps(tasks, [1], 1e-9, **SETTINGS)
    assert pretrained_error(tasks, examples=50) == pytest.approx(
        float(table["excess"].iloc[0]), rel=1e-6
    )
    curves, minima = torch.tensor([[1.0, 0.1], [0.0, 4.0]]).double()
    pair = Quadratics(
        curves[:, None, None], minima[:, None], 0 * curves[:, None, None], 0 * minima[:1]
    )
    assert pretrained_error(pair, examples=1) == pytest.approx(0.275 * (0.4 / 1.1) ** 2)


def test_bounds_over_steps_written_out() -> None:
    """Eq. 24 of Li et al. (2026) for equal steps, where χ² is zero, with the rate left free."""
    tasks, rate, count = pulled_tasks(), 0.05, 4
    row = bounds_over_steps(tasks, [count], rate, **SETTINGS).iloc[0]
    smooth, total = tasks.smoothness, 4
    noise, apart = float(tasks.noise.max()) ** 2, tasks.heterogeneity(tasks.start)
    gap = pretrained_error(tasks, examples=50)
    terms = 4 * gap / (rate * count) + 4 * rate * smooth * noise / (8 * total)
    terms += 6 * rate**2 * smooth**2 * noise * (count - 1) / 8
    terms += 12 * rate**2 * smooth**2 * float(apart.max()) ** 2 * count * (count - 1)
    local = float((tasks.noise**2 / 50 + 3 * 8 / 50 * apart**2).mean()) * rate**2 * count
    constant = tasks.pl_constant
    assert row["theorem_3"] == pytest.approx(8 * (smooth + 1) * local + (2 * constant + 1) * terms)
    best = 8 * smooth * local + 2 * constant * terms + 4 * math.sqrt(2 * local * terms)
    assert row["best_gamma"] == pytest.approx(best)
    assert row["truth"] == errors_over_steps(tasks, [count], rate, **SETTINGS)["excess"].iloc[0]


def test_bounds_over_steps_say_where_they_are_proved() -> None:
    table = bounds_over_steps(pulled_tasks(), [1, 2, 3, 5, 6], 0.05, **SETTINGS)
    assert table["papers_domain"].tolist() == [True, True, False, False, False]
    assert table["domain"].tolist() == [True, True, True, True, False]
    assert (table["truth"] <= table["repaired"])[table["domain"]].all()
