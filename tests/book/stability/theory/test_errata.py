"""What the page of errata says of the stability framework, each by a case worked out."""

from itertools import combinations

import numpy as np
import pytest
import torch

from mergebook.lab.results import load_table
from mergebook.stability.claims.bound import CONSTANTS
from mergebook.stability.claims.scaling import RESULT
from mergebook.stability.read import guides
from mergebook.stability.theory.steps import chi_square


def test_batch_means_given_that_an_example_is_in_the_batch() -> None:
    """Examples 0, 0, 0, 4 of a mean: 0 without the last, 2 with it, 1 together."""
    values = np.array([0.0, 0.0, 0.0, 4.0])
    batches = list(combinations(range(4), 2))
    means = {
        inside: np.mean([values[list(b)].mean() for b in batches if (3 in b) == inside])
        for inside in (False, True)
    }
    assert means == {False: 0.0, True: 2.0}
    assert np.mean([values[list(batch)].mean() for batch in batches]) == values.mean() == 1


@pytest.mark.parametrize("distance", [1.0, 100.0])
def test_assumptions_1_and_2_say_nothing_of_heterogeneity(distance: float) -> None:
    """½(θ ∓ c)²: L = 1 and no noise for every c, and ζ = c."""
    theta = torch.tensor(0.3, requires_grad=True)
    losses = [(theta - sign * distance) ** 2 / 2 for sign in (1, -1)]
    slopes = [torch.autograd.grad(loss, theta, create_graph=True)[0] for loss in losses]
    assert [torch.autograd.grad(slope, theta)[0].item() for slope in slopes] == [1, 1]
    mean = (slopes[0] + slopes[1]) / 2
    assert all(abs((slope - mean).item()) == pytest.approx(distance) for slope in slopes)


def test_what_theorem_3_predicts_against_the_steps_depends_on_its_constants() -> None:
    """It rises for the measured L, and has a valley for L = 1, at the usual rate and batch."""
    record = {name: load_table(CONSTANTS, name) for name in ("curvature", "gradients", "points")}
    merged, experts = (load_table(RESULT, name) for name in ("merged", "experts"))
    shapes: dict[guides.Curvature, list[float]] = {}
    for curvature in ("example", 1.0):
        table = guides.settings(merged, experts, record, curvature)
        usual = table[(table["learning_rate"] == 4e-4) & (table["batch_size"] == 32)]
        curve = usual[usual["share"] == 1].groupby("steps")["theorem_3"].mean()
        assert len(curve) == 6
        shapes[curvature] = np.sign(np.diff(curve)).tolist()
    assert set(shapes["example"]) == {1}
    assert shapes[1.0][0] == -1
    assert shapes[1.0][-1] == 1


def test_eq_7_with_two_in_place_of_two_times_chi_square_plus_one() -> None:
    """‖∇f‖² ≤ 2‖∇f̃‖² + 2χ²κ², where κ² is the mean of ‖∇f_i − ∇f‖² in the surrogate's weights."""
    random = np.random.default_rng(0)
    for _ in range(500):
        slopes = random.normal(size=(5, 3)) + 3 * random.normal(size=3)
        weights = random.dirichlet(np.ones(5))
        mean, surrogate = slopes.mean(0), weights @ slopes
        apart = float(weights @ ((slopes - mean) ** 2).sum(1))
        divergence = chi_square(torch.from_numpy(weights))
        assert (mean**2).sum() <= 2 * (surrogate**2).sum() + 2 * divergence * apart + 1e-12
