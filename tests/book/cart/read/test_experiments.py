"""What chapter 11 reads from results, against counts and means taken another way."""

import pandas as pd
import pytest

from mergebook.cart.read import experiments as cart


def ranks() -> pd.DataFrame:
    """Two scales and seeds: scale 1 is best at 0.5 by 0.2 and 0.4, scale 2 at 0.1."""
    best = {(1.0, 0.1): (0.5, 0.5), (1.0, 0.5): (0.7, 0.9), (2.0, 0.1): (0.6, 0.6)}
    best |= {(2.0, 0.5): (0.1, 0.2), (1.0, 0.0): (0.4, 0.4), (2.0, 0.0): (0.4, 0.4)}
    return pd.DataFrame(
        [
            {"method": "cart", "scale": s, "rank_ratio": r, "seed": i, "task": "x", "accuracy": a}
            for (s, r), values in best.items()
            for i, a in enumerate(values)
        ]
    )


def test_bell_is_in_points() -> None:
    means = cart.bell(ranks(), "cart", 1.0)["mean"]
    assert means.to_dict() == pytest.approx({0.0: 40.0, 0.1: 50.0, 0.5: 80.0})


def test_choices_are_counted() -> None:
    assert cart.chosen_ranks().sum() == 30


def test_interference_is_higher_in_every_layer_with_the_norm_over_the_kept_values() -> None:
    assert (cart.centred_excess("interference") > 0).all(axis=None)
    everything = cart.centred_excess("interference_all")
    assert (everything[0.01] < 0).any()
    assert (everything[0.01] > 0).any()


def test_learned_coefficients_lower_what_they_minimise() -> None:
    found = cart.learned_coefficients()
    assert len(found) == 4
    assert (found["last"] < found["first"]).all()


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
