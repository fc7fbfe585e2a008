"""CoGraM on trained networks against plain loops of whole forward passes."""

from typing import Any

import pytest
import torch

from mergebook.cogram.synthetic import synthetic_pair, train_pair
from mergelib.cogram import prototypes
from tests.library.cogram.cases import ALL_LEVELS, Case, agree, between, both_orders


@pytest.fixture(scope="module")
def trained() -> tuple[Case, dict[str, bool]]:
    """Two networks trained on data of their own, and prototypes of both."""
    pair = synthetic_pair(0, heterogeneous=True, classes=8, dimensions=8, train_size=400)
    model, a, b = train_pair(pair, seed=0, hidden=12)
    inputs = torch.cat([pair.a.inputs, pair.b.inputs])
    chosen, labels = prototypes(
        inputs, torch.cat([pair.a.labels, pair.b.labels]), kind="arithmetic"
    )
    case = Case(model, chosen.double(), 8)
    case.experts = {
        name: {key: value.double() for key, value in each.items()}
        for name, each in (("a", a), ("b", b))
    }
    case.data = {"t": (chosen, labels)}
    case.start = {
        key: (value + case.experts["b"][key]) / 2 for key, value in case.experts["a"].items()
    }
    return case, {"0": True, "2": True}


@both_orders
@pytest.mark.parametrize("levels", ALL_LEVELS)
def test_trained_networks(trained: tuple[Case, dict[str, bool]], order: str, levels: Any) -> None:
    case, layers = trained
    log = agree(case, layers, order=order, levels=levels, thresholds=between(case, order=order))
    assert log["accepted"].any()
    assert set(log["level"]) == set(levels)
    if levels == ("neuron", "weight"):
        assert set(log["case"][log["level"] == "neuron"]) == {"uncertain", "merge", "coarse"}
