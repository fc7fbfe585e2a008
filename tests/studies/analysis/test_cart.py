"""What chapter 11 reads from results, against counts and means taken another way."""

import numpy as np
import pandas as pd
import pytest

from mergelib.records.results import load_table
from mergelib.studies.analysis import cart
from mergelib.studies.comparison import individual
from mergelib.testbed.tasks import Zoo


def test_vision_runs_are_of_three_sizes_and_two_networks() -> None:
    runs = cart.vision_runs()
    assert {key: table["task"].nunique() for key, table in runs.items()} == {
        (network, count): count for network in cart.NETWORKS for count in (8, 14, 20)
    }


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


def test_cost_of_rank() -> None:
    found = cart.cost_of_rank(ranks(), 0.1)
    assert found["best rank"].tolist() == [0.5, 0.1]
    assert found["mean"].tolist() == pytest.approx([30.0, 0.0])


def test_bell_and_gains_are_in_points() -> None:
    means = cart.bell(ranks(), "cart", 1.0)["mean"]
    assert means.to_dict() == pytest.approx({0.0: 40.0, 0.1: 50.0, 0.5: 80.0})
    assert cart.task_gains(ranks(), 2.0).to_numpy()[0].tolist() == pytest.approx([0.0, 20.0, -25.0])


def test_choices_and_what_fixing_costs() -> None:
    assert cart.chosen_ranks().sum() == 30
    corner = cart.at_the_corner()
    assert corner[["vision, 20", "small, 14", "glyphs, 20"]].tolist() == [0.6, 0.8, 1.0]
    lost = cart.cost_of_fixing()
    assert (lost >= 0).all(axis=None)
    searched = load_table("vision8-baselines", "validation").query("method == 'cart'")
    best = searched.groupby("seed")["accuracy"].max()
    eight = searched[searched["rank_ratio"] == 0.08].groupby("seed")["accuracy"].max()
    assert lost["vision, 8"].to_dict()[0.08] == pytest.approx(100 * (best - eight).mean())


def test_interference_is_higher_in_every_layer_with_the_norm_over_the_kept_values() -> None:
    assert (cart.centred_excess("interference") > 0).all(axis=None)
    everything = cart.centred_excess("interference_all")
    assert (everything[0.01] < 0).any()
    assert (everything[0.01] > 0).any()


def test_subsets_needed() -> None:
    found = cart.subsets_needed(0.02)
    assert found["run"].tolist() == [25, 25, 25, 25, 25, 5]
    table = load_table("vision20-task_counts").query("method == 'cart' and count == 4")
    sigma = np.std(table["accuracy"], ddof=1)
    assert found.loc[4, "by measured σ"] == np.ceil((1.96 * sigma / 0.02) ** 2)
    assert (found["by Popoviciu"] > found["by measured σ"]).all()


def test_leads_and_losses_agree() -> None:
    """What is lost between 4 and 20 tasks is what the leads differ by."""
    ahead = cart.leads("cart", ["ties"])["mean"]["ties"]
    lost = cart.lost_with_tasks("cart", ["ties"])["mean"]["ties"]
    assert lost == pytest.approx(ahead[20] - ahead[4])


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


def test_indexing_at_full_rank_with_its_own_rest_is_the_expert(tiny_zoo: Zoo) -> None:
    found = cart.indexing_by_rest(tiny_zoo, 1.0)
    assert found["own"] == pytest.approx(individual(tiny_zoo)["accuracy"].mean(), abs=0.01)
    assert set(found) == {"average", "own"}
