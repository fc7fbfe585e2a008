"""What chapter 41 reads out of the study: tables made by hand, and Remark 4's two cases."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from torch import Tensor

from mergebook.stability.read.corollary import (
    beside_losses,
    excess_by_weight,
    gains,
    links,
    reordered,
)
from mergebook.stability.theory.steps import chi_square, chi_square_printed

# Operator, density, raw, relative, and the loss at 1/T; with the best scale it is half of that.
MADE = [
    ("none", 1.0, 1.0, 0.8, 1.0),
    ("elect", 1.0, 0.5, 0.4, 0.9),
    ("trim", 0.2, 0.25, 0.82, 1.2),
    ("drop", 0.2, 5.0, 0.85, 1.3),
    ("elect the minority", 1.0, 0.1, 0.3, 9.0),
]


@pytest.fixture
def made() -> tuple[pd.DataFrame, pd.DataFrame]:
    names = ["operator", "density", "raw", "relative", "loss"]
    table = pd.concat([pd.DataFrame(MADE, columns=names).assign(seed=seed) for seed in range(3)])
    shifts = {"a": 0.5, "b": -0.5}
    table = table.assign(projection=2 - table["loss"])
    tasks = [table.assign(task=task, loss=table["loss"] + shifts[task]) for task in shifts]
    test = pd.concat(tasks, ignore_index=True).drop(columns=["raw", "relative"])
    halved = test.assign(loss=test["loss"] / 2, scale="chosen")
    chosen = halved[halved["operator"] != "elect the minority"]
    test = pd.concat([test.assign(scale="printed"), chosen], ignore_index=True)
    return table.drop(columns=["loss", "projection"]), test


def test_changes_by_hand(made: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    table = beside_losses(*made).set_index(["seed", "scale", "operator"]).loc[1]
    assert table.loc[("printed", "trim"), "change"] == pytest.approx(0.2)
    assert table.loc[("chosen", "elect"), "change"] == pytest.approx(-0.05)
    assert table.loc[("printed", "trim"), "raw"] == pytest.approx(np.log(0.25))
    assert table.loc[("chosen", "elect"), "relative"] == pytest.approx(np.log(0.5))
    assert len(table) == 5 + 4


def test_links_by_hand(made: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    changes = beside_losses(*made)
    table = links(changes)
    # Losses rank none 2, elect 1, trim 3, drop 4; raw 3, 2, 1, 4; the share 2, 1, 3, 4.
    assert table["printed", "raw"].tolist() == pytest.approx([1 - 6 * 6 / 60] * 3)
    assert table["chosen", "relative"].tolist() == pytest.approx([1] * 3)
    assert table["printed", "projection"].tolist() == pytest.approx([-1] * 3)


def test_gains_are_positive_where_a_mask_lowers_the_loss(
    made: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    points = {"right sign": ("elect", 1.0), "TRIM": ("trim", 0.2)}
    table = gains(made[1], points, "printed")
    assert table["mean"].to_dict() == pytest.approx({"right sign": 0.1, "TRIM": -0.2})
    assert gains(made[1], points, "chosen")["mean"].tolist() == pytest.approx([0.05, -0.1])


@pytest.mark.parametrize(("divergence", "power"), [(chi_square, 1), (chi_square_printed, 2)])
def test_the_bound_written_out_at_other_weights(
    divergence: Callable[[Tensor], float], power: int
) -> None:
    """Theorem 3 for four tasks and SGD, C = ½, L = σ = 1, ηK = 1/8."""
    steps, rate, batch, examples = 10, 1 / 80, 8, 200
    for weight in (0.25, 0.1):
        weights = np.array([weight] + [(1 - weight) / 3] * 3)
        apart = np.array([20.0, 1, 1, 1])
        far = ((0.25 - weights) ** 2 / weights**power).sum()
        share = (weights**2).sum() / steps
        epsilon = 4 / (rate * steps) + 4 * rate * steps / batch * share
        epsilon += 6 * rate**2 / batch * (steps - 1) + 12 * rate**2 * 20 * steps * (steps - 1)
        gradient = 2 * (far + 1) * epsilon + 2 * far * (weights @ apart)
        local = 16 * steps * rate**2 * (1 + 3 * batch * apart) / examples
        whole = (0.5 + 0.5) * (weights @ local) + (0.5 + 0.5) * gradient
        assert excess_by_weight(weight, 20.0, divergence) == pytest.approx(whole)


def test_a_reordered_expert_is_as_heterogeneous_and_is_matched_again() -> None:
    found = reordered(3)
    assert found["apart"] > 1
    assert found["matched"] == pytest.approx(0, abs=1e-12)
    assert found["heterogeneity"] == pytest.approx(found["heterogeneity, reordered"])
    assert found["heterogeneity"] > 0.01
