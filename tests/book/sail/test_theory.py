import math

import numpy as np
import pytest
import torch
from scipy import stats

from mergebook.sail.distances import gaussian_variation, mahalanobis
from mergebook.sail.theory import (
    convergence_bound,
    empirical_rademacher,
    lda_parameters,
    lemma_two_constant,
    proximity_bound,
    risk_bound,
    start_bound,
    steps_saved,
)

D = torch.float64


# Theorem 1


def test_the_printed_bound_holds_for_independent_sources_from_two_dimensions_on() -> None:
    """P(Y ≤ c) ≤ c/E[Y], as Y's survival function is log-concave; at d = 1 it fails."""
    grid = np.geomspace(1e-4, 1, 80)
    for dimension in (2, 3, 10, 50):
        for far in (0.0, 1.0, 20.0, 200.0):
            mean = dimension + far
            law = stats.ncx2(dimension, far) if far else stats.chi2(dimension)
            closer = law.cdf(grid * mean)
            assert (closer <= grid + 1e-9).all()
    known = proximity_bound(0.01, 1, 0.0, alpha=0.5)
    assert known == pytest.approx(0.98)
    assert 1 - stats.chi2(1).cdf(0.01 / 0.5) == pytest.approx(0.8875, abs=1e-3)


def test_the_repaired_form_is_a_bound_and_the_weaker_one() -> None:
    for dimension in (3, 10, 50):
        for far in (0.1, 20.0):
            inverse = 1 / stats.ncx2(dimension, far).rvs(100_000, random_state=0)
            assert inverse.mean() <= 1 / (dimension - 2)
            printed, repaired = (
                proximity_bound(0.3, dimension, far, alpha=0.5, form=form)
                for form in ("printed", "repaired")
            )
            assert repaired <= printed
    with pytest.raises(ValueError, match="at least 3"):
        proximity_bound(0.3, 2, 1.0, form="repaired")


def test_a_source_that_depends_on_the_random_start_breaks_it() -> None:
    """X = αY below the median of Y, else 0: the event has the probability one half."""
    law = stats.chi2(3)
    mean = law.expect(lambda y: y, ub=law.median())
    below = float(stats.chi2(5).cdf(law.median()))  # y times χ²_3's density is 3 times χ²_5's
    assert proximity_bound(mean, 3, 0.0) == pytest.approx(1 - below)
    assert proximity_bound(mean, 3, 0.0) > 0.79 > 0.5


# Theorem 2


def test_the_rate_holds_at_every_step_of_random_quadratics() -> None:
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        axes = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=D)).Q
        values = 10 ** (2 * torch.rand(4, generator=generator, dtype=D) - 1)
        matrix = axes * values @ axes.T
        smooth, strong = float(values.max()), float(values.min())
        rate = float(torch.rand(1, generator=generator, dtype=D)) / smooth if seed else 1 / smooth
        point = torch.randn(4, generator=generator, dtype=D)
        start = float(point @ matrix @ point) / 2
        assert start <= start_bound(smooth, float(point @ point)) * (1 + 1e-12)
        for step in range(1, 60):
            point = point - rate * matrix @ point
            excess = float(point @ matrix @ point) / 2
            assert excess <= convergence_bound(start, rate, strong, step) * (1 + 1e-9) + 1e-300
            # and what holds on quadratics, which forget twice as fast
            assert excess <= convergence_bound(start, rate, strong, 2 * step) * (1 + 1e-9) + 1e-300


def test_half_the_excess_saves_a_number_of_steps_for_every_goal() -> None:
    saved = steps_saved(0.5, 0.01, 1.0)
    assert convergence_bound(1.0, 0.01, 1.0, 1000) / convergence_bound(
        0.5, 0.01, 1.0, 1000
    ) == pytest.approx(2)
    assert 0.99**saved == pytest.approx(0.5)
    assert saved <= 100 * math.log(2)  # κ ln 2 at η = 1/L


# Lemma 2


def worlds(covariance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(20, 2, 2, generator=generator, dtype=D)
    means[:, 0] = -means[:, 1]
    return means, lda_parameters(means, covariance)[0]


def test_lda_is_what_scikit_learn_fits() -> None:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    rows = np.random.default_rng(0).normal(size=(60, 3)) + np.repeat([[0.0], [0.7]], 30, 0)
    labels = np.repeat([0, 1], 30)
    model = LinearDiscriminantAnalysis(solver="lsqr").fit(rows, labels)
    means = torch.from_numpy(model.means_)
    theta, offset = lda_parameters(means, torch.from_numpy(model.covariance_))
    assert theta.numpy() == pytest.approx(model.coef_[0])
    assert float(offset) == pytest.approx(float(model.intercept_[0]))


def test_the_distance_of_parameters_is_mahalanobis_for_a_round_covariance() -> None:
    """With means ±m, so that the differences of class means tell all."""
    for scale in (1.0, 4.0):
        covariance = scale * torch.eye(2, dtype=D)
        means, theta = worlds(covariance)
        data = mahalanobis(means[1:], means[0], covariance)[:, 1]
        ratio = (theta[1:] - theta[0]).norm(dim=1) / data
        assert ratio.numpy() == pytest.approx(2 / math.sqrt(scale))


def test_other_covariances_have_a_constant_for_each_direction() -> None:
    covariance = torch.diag(torch.tensor([1.0, 0.01], dtype=D))
    ends = [lemma_two_constant(way, covariance) for way in torch.eye(2, dtype=D)]
    assert ends == pytest.approx([2, 20])
    means, theta = worlds(covariance)
    data = mahalanobis(means[1:], means[0], covariance)[:, 1]
    ratios = (theta[1:] - theta[0]).norm(dim=1) / data
    assert ratios.max() > 3 * ratios.min()


def test_moving_both_classes_leaves_lda_and_not_the_data() -> None:
    means = torch.tensor([[[-1.0, 0], [1, 0]], [[-1, 3], [1, 3]]], dtype=D)
    covariance = torch.eye(2, dtype=D)
    theta, offset = lda_parameters(means, covariance)
    assert torch.equal(theta[0], theta[1])
    assert torch.equal(offset, torch.zeros(2, dtype=D))
    moved = gaussian_variation(mahalanobis(means[0], means[1], covariance)).mean()
    assert float(moved) == pytest.approx(0.8664, abs=1e-4)


# Lemma 1 and Theorem 4


def test_rademacher_is_the_supremum_over_directions() -> None:
    rows = torch.randn(8, 2, generator=torch.Generator().manual_seed(0), dtype=D)
    angles = torch.linspace(0, 2 * math.pi, 721, dtype=D)
    ways = 1.5 * torch.stack([angles.cos(), angles.sin()])
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=D)] * 8)
    exact = float((signs @ rows @ ways / 8).max(1).values.mean())
    assert empirical_rademacher(rows, 1.5, draws=4000) == pytest.approx(exact, rel=0.03)


def test_the_terms_of_theorem_4() -> None:
    printed = risk_bound(0.3, 1.0, 0.05, 50, form="printed")
    assert printed == pytest.approx(0.3 + 2 + 0.1 + 3 * math.sqrt(math.log(80) / 100))
    repaired = risk_bound(0.3, 0.2, 0.05, 50)
    assert repaired == pytest.approx(0.3 + 0.2 + 0.1 + 3 * math.sqrt(math.log(40) / 100))


def test_two_atoms_reach_the_repaired_distance_term() -> None:
    """Loss 1 on one atom and 0 on the other, the laws each on one: |ΔJ| = C · TV = 1."""
    assert risk_bound(0.0, 1.0, 0.0, 10**12) == pytest.approx(1.0, abs=1e-4)
