import math

import numpy as np
import pytest
import torch
from scipy import stats

from mergebook.sail.theory import empirical_rademacher, proximity_bound, risk_bound

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
