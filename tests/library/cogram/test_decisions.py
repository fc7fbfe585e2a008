"""Weights, cases and thresholds of CoGraM's decisions, by hand."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mergelib.cogram.decisions import CogramSettings, Log, bar, mixing_weights

LEVELS = ("layer", "neuron", "weight")
losses = st.floats(0, 50)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(losses, losses, st.floats(0, 20))
def test_two_experts_have_the_sigmoid_of_eq_4(a: float, b: float, steepness: float) -> None:
    exponent = steepness * (a - b)
    alpha = 1 / (1 + math.exp(exponent)) if exponent < 700 else 0.0
    found = mixing_weights(double(a, b), steepness)
    assert found.tolist() == pytest.approx([alpha, 1 - alpha], abs=1e-12)


@given(st.lists(losses, min_size=2, max_size=5), st.floats(0, 20), st.floats(0, 1), st.randoms())
def test_weights_are_a_mixture(
    values: list[float], steepness: float, shrinkage: float, random: Any
) -> None:
    """They sum to 1, follow their experts, fall with the loss, and shift with no loss."""
    found = mixing_weights(double(*values), steepness, shrinkage)
    assert found.sum().item() == pytest.approx(1)
    assert (found >= shrinkage / len(values) - 1e-15).all()
    order = random.sample(range(len(values)), len(values))
    again = mixing_weights(double(*values)[order], steepness, shrinkage)
    torch.testing.assert_close(again, found[order], rtol=1e-12, atol=1e-15)
    ranked = found[double(*values).argsort()]
    assert (ranked.diff() <= 1e-15).all()
    raised = mixing_weights(double(*values) + 3, steepness, shrinkage)
    torch.testing.assert_close(raised, found, rtol=1e-9, atol=1e-12)


def test_weights_by_hand() -> None:
    values = double(1, 1 + math.log(2), 1 + math.log(4))
    assert mixing_weights(values, 1.0).tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert mixing_weights(values, 0.0).tolist() == pytest.approx([1 / 3] * 3)
    assert mixing_weights(values, 9.0, shrinkage=1.0).tolist() == pytest.approx([1 / 3] * 3)
    halves = mixing_weights(values, 1.0, shrinkage=0.5).tolist()
    assert halves == pytest.approx([(4 / 7 + 1 / 3) / 2, (2 / 7 + 1 / 3) / 2, (1 / 7 + 1 / 3) / 2])
    assert mixing_weights(values, 1e6).tolist() == [1, 0, 0]
    rows = mixing_weights(torch.stack([values, values.flip(0)]), 1.0)
    assert torch.equal(rows[0], rows[1].flip(0)), "each row by itself"


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        (0.0, "uncertain"),
        (math.nextafter(0.1, 0), "uncertain"),
        (0.1, "merge"),
        (0.2, "merge"),
        (0.3, "merge"),
        (math.nextafter(0.3, 1), "coarse"),
    ],
)
def test_cases_1_to_3(spread: float, expected: str) -> None:
    settings = CogramSettings(LEVELS, thresholds={"neuron": (0.1, 0.3)})
    assert settings.case("neuron", spread) == expected
    assert settings.case("layer", spread) == "merge", "no thresholds"


def test_a_change_must_lower_the_loss() -> None:
    """Eq. 7 is strict; what rounding alone changes does not count."""
    assert bar(2.0) < 2.0
    assert bar(2.0) > 2.0 - 1e-11
    assert bar(0.0) < 0.0
    assert CogramSettings().ceiling("neuron", 2.0) == bar(2.0)
    assert CogramSettings().ceiling("layer", 2.0) == math.inf
    assert CogramSettings(rollback=LEVELS).ceiling("layer", 2.0) == bar(2.0)


def test_deciding_by_hand() -> None:
    """Spreads of 0, 0.25 and 1 against 0.25 to 0.5; what is proposed is its own loss."""
    steepness = math.log(3) / 0.25
    log = Log(["a", "b"], CogramSettings(LEVELS, {"neuron": (0.25, 0.5)}, steepness))
    given = [double(1, 1), double(0.75, 1), double(2, 1)]

    def decide(values: Tensor, *, last: bool = False) -> tuple[float, Any]:
        return log.decide(("neuron", 0, -1), lambda x: x[:, 0], values[:, None], 1.0, last=last)

    uncertain, (after, made), coarse = map(decide, given)
    assert math.isnan(uncertain[0])
    assert math.isnan(coarse[0])
    assert uncertain[1] is None
    assert coarse[1] is None
    assert made[0].tolist() == pytest.approx([3 / 4, 1 / 4])
    assert after == made[1].item() == pytest.approx(0.75 * 3 / 4 + 1 / 4)
    after, made = decide(given[2], last=True)
    assert after == pytest.approx(1 + 1 / 82), "nothing finer"
    assert made is None, "above the loss before"
    table = log.table()
    assert table["case"].tolist() == ["uncertain", "merge", "coarse", "merge"]
    assert table["accepted"].tolist() == [False, True, False, False]
    assert table["spread"].tolist() == [0, 0.25, 1, 1]


def test_the_spread_of_three_is_between_best_and_worst() -> None:
    log = Log(["a", "b", "c"], CogramSettings())
    log.add(("layer", -1, -1), [3, 1, 2], 1.0, 0.5, True)
    assert log.table()["spread"].tolist() == [2]


def test_the_log_is_a_table() -> None:
    log = Log(["a", "b"], CogramSettings(), (0, "fc"))
    log.add(("neuron", 0, -1), [1, 2], 1.0, 0.5, True)
    log.add(("neuron", 1, -1), [2, 2], 1.0, 0.75, False)
    log.place = (1, "stem")
    log.add(("weight", 7, 3), [1, 3], 0.5, 0.25, True)
    table = log.table()
    assert list(table) == [
        *("iteration", "layer", "level", "unit", "weight", "case", "spread"),
        *("loss a", "loss b", "alpha a", "alpha b", "before", "after", "accepted"),
    ]
    assert table["layer"].tolist() == ["fc", "fc", "stem"]
    assert table["unit"].tolist() == [0, 1, 7]
    assert table["weight"].tolist() == [-1, -1, 3]
    assert table["loss b"].tolist() == [2, 2, 3]
    assert table["alpha a"].iloc[1] == 0.5
    assert table["before"].tolist() == [1, 1, 0.5]
    assert table["after"].tolist()[:2] == [0.5, 0.75]
    assert table["accepted"].tolist() == [True, False, True]
    assert table["accepted"].dtype.kind == "b"
