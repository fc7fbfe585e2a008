"""What chapter 11 reads from results, against counts and means taken another way."""

import numpy as np
import pandas as pd
import pytest

from mergebook.cart import read as cart
from mergebook.cart.paper import EXPERTS, TABLE

RATIOS, SCALES = (0.04, 0.08, 0.16), (1.0, 2.0, 3.0)


def made_up(name: str, part: str = "test") -> pd.DataFrame:
    """Accuracy has its highest point elsewhere for each task."""
    rows = []
    for seed in range(3):
        for task, centre in (("x", 0.08), ("y", 0.04), ("z", 0.16)):
            for ratio in RATIOS:
                for scale in SCALES:
                    error = np.log(ratio / centre) ** 2 + (scale - 2) ** 2 / 10
                    row = {"seed": seed, "task": task, "method": "cart", "count": 8}
                    row |= {"rank_ratio": ratio, "scale": scale, "accuracy": np.exp(-error)}
                    rows.append(row)
    return pd.DataFrame(rows)


def test_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cart, "load_table", made_up)
    wide = cart.plane("any")
    assert wide.shape == (3, 3)
    assert wide.max().idxmax() == 2.0
    assert wide[2.0].idxmax() == 0.08


def test_the_papers_share_of_the_experts() -> None:
    assert TABLE["vision8"][-1] / EXPERTS == pytest.approx(0.936, abs=5e-4)


def test_interference_is_higher_in_every_layer_with_the_norm_over_the_kept_values() -> None:
    assert (cart.centred_excess("interference") > 0).all(axis=None)
    everything = cart.centred_excess("interference_all")
    assert (everything[0.01] < 0).any()
    assert (everything[0.01] > 0).any()


def test_names_of_results_with_and_without_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({"method": ["emr", "cart_indexing"], "setting": ["", "rank_ratio=0.08"]})
    monkeypatch.setattr(cart, "load_table", lambda *_: table.copy())
    assert cart.compressed("vision8")["method"].tolist() == [
        "EMR",
        "CART-Indexing, rest averaged, 8%",
    ]
    table["rest"] = ["", "own"]
    assert cart.compressed("vision8")["method"].tolist() == ["EMR", "CART-Indexing, 8%"]


def test_results_from_before_granularities_are_by_layer() -> None:
    rows = pd.DataFrame({"method": ["cart", "a", "b"], "granularity": ["", "task", "layer"]})
    parts = cart.by_granularity(rows)
    assert {kind: part["method"].tolist() for kind, part in parts.items()} == {
        "layer": ["cart", "b"],
        "task": ["cart", "a"],
    }
    assert list(cart.by_granularity(rows[["method"]])) == ["layer"]
