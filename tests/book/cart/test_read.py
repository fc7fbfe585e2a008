"""What chapter 11 reads from results, against counts and means taken another way."""

import numpy as np
import pandas as pd
import pytest

from mergebook.cart import read as cart
from mergebook.cart.paper import EXPERTS, TABLE
from mergebook.lab.results import load_table

RATIOS, SCALES = (0.04, 0.08, 0.16), (1.0, 2.0, 3.0)


def made_up(name: str, part: str = "test") -> pd.DataFrame:
    """Accuracy falls with the task's own error, whose best point is another one for each task."""
    generator = np.random.default_rng(0)
    rows = []
    for seed in range(3):
        for task, centre in (("x", 0.08), ("y", 0.04), ("z", 0.16)):
            for ratio in RATIOS:
                for scale in SCALES:
                    error = np.log(ratio / centre) ** 2 + (scale - 2) ** 2 / 10
                    row = {"seed": seed, "task": task, "method": "cart", "count": 8}
                    row |= {"rank_ratio": ratio, "scale": scale, "accuracy": np.exp(-error)}
                    noise = {name: generator.random() for name in cart.SIGNS}
                    rows.append(row | noise | {"error": error, "signal": -error})
    return pd.DataFrame(rows)


def test_plane_and_what_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cart, "load_table", made_up)
    wide = cart.plane("any")
    assert wide.shape == (3, 3)
    assert wide.max().idxmax() == 2.0
    assert wide[2.0].idxmax() == 0.08
    lost = cart.picked("any")["mean"]
    assert lost["error"] == pytest.approx(0, abs=3)
    assert (lost >= 0).all()
    assert lost["entropy"] > 0


def test_shares_are_of_the_experts() -> None:
    rows = cart.normalised("vision8-baselines")
    table = load_table("vision8-baselines").query("method == 'cart'")
    assert TABLE["vision8"][-1] / EXPERTS == pytest.approx(0.936, abs=5e-4), "the paper's"
    assert rows["mean"]["cart"] == pytest.approx(100 * table["normalised"].mean())


def test_interference_is_higher_in_every_layer_with_the_norm_over_the_kept_values() -> None:
    assert (cart.centred_excess("interference") > 0).all(axis=None)
    everything = cart.centred_excess("interference_all")
    assert (everything[0.01] < 0).any()
    assert (everything[0.01] > 0).any()


def test_compressed_and_bits() -> None:
    bits = cart.bits_per_weight("vision8")
    assert set(cart.compressed("vision8")["method"]) == {"individual", *bits.index}
    assert bits["TALL + TIES"] == pytest.approx(1, abs=1e-3)
    factors = bits.filter(like="CART-Indexing, rest averaged")
    assert factors.iloc[-1] == pytest.approx(
        2 * factors["CART-Indexing, rest averaged, 8%"], rel=0.01
    )


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
