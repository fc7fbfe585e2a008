"""What the chapters on CoGraM compute: by hand where a number follows, else what must hold."""

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mergebook.cogram import draw as figures
from mergebook.cogram import pairs
from mergebook.cogram import read as analysis
from mergebook.cogram.pairs import Pair
from mergebook.cogram.synthetic import synthetic_pair, train_pair
from mergebook.lab.results import load_table

SEEDS = range(12)  # so many that no bootstrap draw holds one value only


def column(*values: float) -> pd.Series:
    """Three values, four seeds each, in every case."""
    rows = [(*case, seed) for case in analysis.CASES for seed in SEEDS]
    index = pd.MultiIndex.from_tuples(rows, names=["data", "start", "seed"])
    return pd.Series([*values] * (len(index) // 3), index=index).sort_index()


def runs(**rows: tuple[str, dict[str, tuple[float, ...]]]) -> pd.DataFrame:
    """Rows of a study: levels to method and columns, three values for four seeds each."""
    return pd.DataFrame(
        [
            {"data": data, "start": start, "seed": seed, "method": method, "levels": levels}
            | {"prototypes": "arithmetic", "iterations": 1}
            | {name: values[seed % 3] for name, values in columns.items()}
            for data, start in analysis.CASES
            for levels, (method, columns) in rows.items()
            for seed in SEEDS
        ]
    )


@pytest.fixture
def source() -> analysis.Source:
    fusion = runs(
        fisher=("fisher", {"accuracy": (50.0, 50, 50), "toward_a": (0.5, 0.5, 0.5)}),
        a=("a", {"accuracy": (60.0, 70, 80), "toward_a": (1.0, 1, 1)}),
        b=("b", {"accuracy": (62.0, 72, 82), "toward_a": (0.0, 0, 0)}),
        better=("better", {"accuracy": (60.0, 72, 82), "toward_a": (1.0, 0, 0)}),
        layer=("cogram", {"accuracy": (40.0, 60, 78), "toward_a": (0.97, 0.99, 0.6)}),
        other=("cogram", {"accuracy": (40.0, 60, 77), "toward_a": (0.97, 0.9, 0.6)}),
    )
    return analysis.Source("synthetic", fusion, fusion, fusion)


def test_differences_are_paired_by_seed(source: analysis.Source) -> None:
    table = analysis.differences({"a - b": lambda s: s.of("a") - s.of("b")}, [source])
    assert next(iter(table.index)) == "synthetic, homogeneous, own"
    assert set(table["a - b"]) == {"-2.0 ± 0.0"}
    with pytest.raises(ValueError, match="expected one per case and seed"):
        source.of("cogram")


def test_counts_of_seeds(source: analysis.Source) -> None:
    assert set(analysis.improved(source, "arithmetic").values()) == {8}
    # of three seeds, one is near A, the better, one near A, the worse, one near none
    found = analysis.at_parent(source, 1)
    assert found["near"].tolist() == [8] * 4
    assert found["better"].tolist() == [4] * 4
    # of three seeds, one has the same accuracy at another place, one another accuracy
    assert set(analysis.same_network(source, "layer", "other").values()) == {4}


def test_the_spread_ratio_is_one_of_deviations() -> None:
    first, second = column(0, 2, 7), column(1, 2, 4.5)
    found = analysis.spread_ratio(first, second, draws=200)
    np.testing.assert_allclose(found["ratio"], np.std([0, 2, 7]) / np.std([1, 2, 4.5]))
    doubled = analysis.spread_ratio(2 * first, first, draws=200)
    np.testing.assert_allclose(doubled[["ratio", "low", "high"]], 2)


def test_a_drop_at_weak_seeds_is_a_positive_rank_correlation(source: analysis.Source) -> None:
    # CoGraM is 21, 11 and 3 points below A and B, which get better from seed to seed
    found = analysis.drop_at_weak(source, draws=50)
    np.testing.assert_allclose(found["rho"], 1)


@pytest.mark.parametrize("name", ["synthetic", "digits"])
def test_the_files_hold_what_the_chapters_read(name: str) -> None:
    source = analysis.Source.load(name)
    assert source.fusion["accuracy"].between(1, 100).all()
    means, chosen = analysis.threshold_means(source)
    assert chosen in means.index
    curve = analysis.steepness_curve(source, ("heterogeneous", "common"), "arithmetic")
    assert 5.5 in curve.index
    assert (curve["half_width"] > 0).all()


def test_refinement_of_other_merges_keeps_to_the_files_means() -> None:
    gains = analysis.after_other_merges("vision8-granular")
    table = load_table("vision8-granular").query("base == 'cart'")
    means = 100 * table.groupby("method")["accuracy"].mean()
    for name, method in (("as published", "cogram"), ("with rollback", "cogram, rolled back")):
        assert gains[name]["mean"]["CART"] == pytest.approx(means[method] - means["none"])


def feature_scale(scales: tuple[float, ...] = (1.0, 3.0)) -> pd.DataFrame:
    """A map where CoGraM is ahead of Fisher by the offset in points, and behind B by one."""
    rows: list[dict[str, Any]] = []
    for (data, start), scale, offset, seed in product(analysis.CASES, scales, (0.0, 2.0), (0, 1)):
        names = {"data": data, "start": start, "scale": scale, "offset": offset, "seed": seed}
        fisher = 0.5 + 0.1 * seed
        merged = fisher + offset / 100
        rows.append({**names, "method": "fisher", "accuracy": fisher})
        rows.append({**names, "method": "better", "accuracy": merged + 0.01 * (1 + seed)})
        for kind, steepness, count in product(("geometric", "arithmetic"), (1.0, 5.5), (1, 3)):
            other = 0.0 if (kind, steepness, count) == ("geometric", 5.5, 3) else 0.2
            done = {"prototypes": kind, "steepness": steepness, "iterations": count}
            rows.append({**names, "method": "cogram", **done, "accuracy": merged + other})
    return pd.DataFrame(rows)


def test_a_map_compares_one_setting_with_one_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "load_table", lambda _: feature_scale())
    found = analysis.feature_map("geometric", "fisher", iterations=3)
    assert len(found) == 4 * 2 * 2
    offsets = found.index.get_level_values("offset")
    np.testing.assert_allclose(found["mean"], offsets)
    np.testing.assert_allclose(found["half_width"], 0, atol=1e-9)
    found = analysis.feature_map("geometric", "better", iterations=3)
    np.testing.assert_allclose(found["mean"], -1.5)
    np.testing.assert_allclose(found["half_width"], 12.706 / 2, rtol=1e-3)
    drawn = figures.feature_maps({"above Fisher": analysis.feature_map("arithmetic", "fisher")})
    assert [text.get_text() for text in drawn.axes[0].texts] == ["20", "22"] * 2


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    def draw(seed: int, heterogeneous: bool) -> Any:
        sizes: dict[str, Any] = {
            "classes": 4,
            "dimensions": 6,
            "train_size": 80,
            "validation_size": 40,
        }
        return synthetic_pair(seed, heterogeneous=heterogeneous, test_size=40, **sizes)

    monkeypatch.setitem(pairs.SOURCES, "synthetic", draw)
    monkeypatch.setattr(pairs, "train_pair", partial(train_pair, hidden=16, epochs=10))
    return pairs.make_pair(0, "synthetic", "homogeneous", shared=False)


def test_aligning_keeps_what_b_computes(pair: Pair) -> None:
    turned = analysis.aligned(pair)
    torch.testing.assert_close(pair.outputs(turned), pair.outputs(pair.b))
    assert not torch.equal(turned["0.weight"], pair.b["0.weight"])
    scores = analysis.aligned_scores([pair])
    assert scores["better"][0] in (scores["a"][0], scores["b"][0])
    assert scores["a"][0] == pytest.approx(100 * pair.accuracy(pair.a))


@pytest.mark.usefixtures("pair")
def test_layer_passes_tell_which_parent_the_first_decision_prefers() -> None:
    table = analysis.layer_passes([0])
    assert len(table) == 4 * 3
    assert ((table["last"] > 0.5) == (table["lean"] < 0)).all(), "α is above 1/2 where A is better"
    assert table["rises"].between(0, 2).all()


@pytest.mark.usefixtures("pair")
def test_class_means_tell_more_than_magnitudes() -> None:
    kinds = {"mean": {"kind": "arithmetic"}, "geometric": {"kind": "geometric"}}
    told = analysis.told_by_prototypes(kinds, range(3)).groupby("prototypes").mean().to_dict()
    assert told["nearest, %"]["mean"] > told["nearest, %"]["geometric"]
    assert told["loss of A"]["mean"] < told["loss of A"]["geometric"]


def test_figures_draw_every_run(source: analysis.Source) -> None:
    plain = analysis.gap(source.of("a") - source.of("fisher"))
    drawn = figures.forest({"one": {"x": plain, "y": plain}}, "points")
    assert [ax.get_title() for ax in drawn.axes] == ["one"]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["x", "y"]
    texts = {text.get_text() for ax in figures.algorithm().axes for text in ax.texts}
    assert {"accept", "roll back", "did M's loss fall?"} <= texts
