"""The loop over seeds behind results/, and the studies it repeats."""

import json
import math
import os
from itertools import product
from typing import Any

import pandas as pd
import pytest

from mergelib import flatten, merge
from mergelib.statedict import is_kernel, is_matrix
from mergelib.studies import cart as rule_studies
from mergelib.studies.cart import (
    adaptation,
    baselines,
    compression,
    interference,
    kernels,
    ranks,
    task_counts,
)
from mergelib.studies.runner import measure_study
from mergelib.testbed.evaluation import evaluate
from mergelib.testbed.training import Recipe
from mergelib.testbed.zoo import Zoo


@pytest.fixture(scope="module")
def methods() -> dict[str, dict[str, list[Any]]]:
    return {"average": {}, "ties": {"scale": [0.5, 1.0]}, "dare": {"drop_rate": [0.5]}}


def test_baselines_are_complete_and_valid_json(tiny: str, methods: dict[str, Any]) -> None:
    record = measure_study(
        baselines,
        "digits2",
        range(2),
        settings={"grids": methods},
        model=tiny,
        recipe=Recipe(epochs=1),
        profile="smoke",
    )
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    test = pd.DataFrame(record["test"])
    rows = set(test[["seed", "method", "task"]].itertuples(index=False, name=None))
    names = ["pretrained", *methods, "individual"]
    assert rows == set(product(range(2), names, ["digits_low", "digits_high"]))
    assert len(test) == len(rows)
    assert (test["n"] == 120).all()
    assert (test.loc[test["method"] == "individual", "normalised"] == 1).all()
    validation = pd.DataFrame(record["validation"])
    assert validation.groupby(["seed", "method"]).size().to_dict() == {
        (0, "ties"): 2,
        (1, "ties"): 2,
        (0, "dare"): 1,
        (1, "dare"): 1,
    }
    assert [chosen["seed"] for chosen in record["chosen"]] == [0, 1]
    assert record["chosen"][0]["zoo"] != record["chosen"][1]["zoo"]
    for chosen in record["chosen"]:
        found = validation[
            (validation["seed"] == chosen["seed"]) & (validation["method"] == "ties")
        ]
        best = found.loc[found["accuracy"].idxmax(), "scale"]
        assert chosen["settings"]["ties"]["scale"] == best
        assert chosen["settings"]["average"] == {}
    made = record["provenance"]
    assert made["suite"] == "digits2"
    assert made["seeds"] == [0, 1]
    assert made["recipe"]["epochs"] == 1
    assert set(made["sources"]) == {"0", "1"}
    assert all(not math.isnan(row["accuracy"]) for row in record["test"])


def test_baselines_that_were_killed_resume(
    tiny: str, methods: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first seed is not measured again; other grids, sizes and recipes are measured anew."""
    measured: list[int] = []
    real = rule_studies.compare

    def watched(zoo: Zoo, settings: Any) -> pd.DataFrame:
        if measured == [0] and zoo.suite.seed == 1:
            raise KeyboardInterrupt
        measured.append(zoo.suite.seed)
        return real(zoo, settings)

    def measure(rate: float = 4e-4, **options: Any) -> dict[str, Any]:
        recipe = Recipe(epochs=1, learning_rate=rate)
        chosen = {"settings": {"grids": methods}, "profile": "smoke", "model": tiny, **options}
        return measure_study(baselines, "digits2", range(2), recipe=recipe, **chosen)

    monkeypatch.setattr(rule_studies, "compare", watched)
    with pytest.raises(KeyboardInterrupt):
        measure()
    assert measured == [0]
    measured.append(-1)
    resumed = measure()
    assert measured == [0, -1, 1]
    monkeypatch.setenv("MERGELIB_CACHE", f"{os.environ['MERGELIB_CACHE']}-fresh")
    whole = measure()
    assert measured == [0, -1, 1, 0, 1]
    assert resumed == whole
    measure(test_size=60)
    measure(rate=1e-3)
    measure(settings={"grids": {"average": {}}})
    monkeypatch.setitem(methods, "ties", {"scale": [0.5]})
    measure()
    assert measured[5:] == [0, 1] * 4
    measure()
    assert len(measured) == 13


def test_baselines_of_an_unknown_method_fail_before_any_work(
    tiny_zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_studies, "choose", pytest.fail)
    with pytest.raises(ValueError, match="unknown method 'tias'; did you mean 'ties'"):
        baselines(tiny_zoo, grids={"average": {}, "tias": {}})


def test_ranks_are_those_of_merge(tiny_zoo: Zoo) -> None:
    first = next(iter(tiny_zoo.experts.values()))
    rows = ranks(tiny_zoo, rank_ratios=[0, 0.3, 1], scales=[1.0, 2.0], uncentred_scales=[0.5])
    table = pd.DataFrame(rows["test"])
    assert len(table) == 3 * 3 * 2
    found = table.set_index(["method", "scale", "rank_ratio", "task"])["accuracy"]
    ends = [found["cart", scale, ratio] for scale in (1.0, 2.0) for ratio in (0, 1)]
    assert all(end.equals(ends[0]) for end in ends), "CART ends where it starts: at the average"
    merged = merge("cart", tiny_zoo.experts, rank_ratio=0.3, scale=2.0)
    expected = evaluate(tiny_zoo.model, merged, tiny_zoo.heads, tiny_zoo.suite, autocast=True)
    assert found["cart", 2.0, 0.3].tolist() == expected["accuracy"].tolist()
    path = pd.DataFrame(rows["path"]).set_index(["method", "scale", "rank_ratio"])["distance"]
    assert path["cart"].max() < 1e-5, "with two experts CART is the average"
    assert path["low_rank_task_arithmetic", 0.5, 1] < 1e-5, "at scale 1/T too"
    centre = flatten(merge("average", tiny_zoo.experts))
    name, options = "low_rank_task_arithmetic", {"scale": 0.5, "rank_ratio": 0.3}
    merged = merge(name, tiny_zoo.experts, pretrained=tiny_zoo.pretrained, **options)
    away = (flatten(merged) - centre).norm() / (flatten(first) - centre).norm()  # two are as far
    assert path[name, 0.5, 0.3] == pytest.approx(float(away), rel=1e-4)


def test_task_counts(tiny_zoo: Zoo) -> None:
    """Of one task only, every method that needs no scale is its expert."""
    rows = task_counts(tiny_zoo, counts=[1, 2], subsets=3, pictures=80)
    table = pd.DataFrame(rows["test"])
    assert table.groupby(["count", "method"]).size().unstack().loc[1].eq(3).all()
    assert table.groupby(["count", "method"]).size().unstack().loc[2].eq(1).all(), "all tasks once"
    alone = table[(table["count"] == 1) & table["method"].isin(["average", "cart"])]
    assert alone["normalised"].tolist() == pytest.approx([1.0] * 6)
    bounds = pd.DataFrame(rows["bounds"])
    assert list(bounds["task"]) == list(tiny_zoo.suite.tasks)
    assert bounds["individual"].mean() > bounds["pretrained"].mean()
    assert rows == task_counts(tiny_zoo, counts=[1, 2], subsets=3, pictures=80)


def test_interference_study(tiny_zoo: Zoo) -> None:
    table = pd.DataFrame(interference(tiny_zoo, rank_ratios=[0.0, 0.5, 1.0])["curves"])
    layers = [key for key, value in tiny_zoo.pretrained.items() if is_matrix(key, value)]
    assert table.groupby("layer", sort=False).size().to_dict() == dict.fromkeys(layers, 6)


def test_compression_study(tiny_zoo: Zoo) -> None:
    tables = compression(tiny_zoo, rank_ratios=[0.0, 1.0], mask_scales=[0.2, 0.6])
    means = pd.DataFrame(tables["test"]).groupby(["method", "setting"])["accuracy"].mean()
    average = merge("average", tiny_zoo.experts)
    judged = evaluate(tiny_zoo.model, average, tiny_zoo.heads, tiny_zoo.suite, autocast=True)
    assert means["cart_indexing", "rank_ratio=0.0"] == judged["accuracy"].mean()
    assert means["emr", ""] > means["individual", ""] - 0.1
    storage = pd.DataFrame(tables["storage"]).set_index(["method", "setting"])
    count = storage["parameters"].iloc[0]
    masks = storage.loc["tall_masks", "bits_per_task"]
    assert ((masks >= count) & (masks < 1.01 * count + 800)).all(), "a bit a parameter, padded"
    assert storage.loc[("cart_indexing", "rank_ratio=0.0"), "bits_per_task"] == 0


def test_adaptation_study(tiny_zoo: Zoo) -> None:
    grids = {"task_arithmetic": {"scale": [0.3, 0.5]}}
    tables = adaptation(tiny_zoo, grids=grids, steps=11)
    table = pd.DataFrame(tables["test"])
    assert set(table["method"]) == {"task_arithmetic", "adamerging+task_arithmetic"}
    assert [row["step"] for row in tables["history"]] == [0, 10]
    assert json.loads(json.dumps(tables)) == tables


def test_kernels_are_folded(tiny_zoo: Zoo) -> None:
    tables = kernels(tiny_zoo, grids={"average": {}, "cart": {"scale": [1.0, 2.0]}})
    test = pd.DataFrame(tables["test"])
    assert test["method"].unique().tolist() == ["individual", "pretrained", "average", "cart"]
    assert [row["method"] for row in tables["chosen"]] == ["average", "cart"]
    scale = tables["chosen"][1]["scale"]
    merged = merge("cart", tiny_zoo.experts, scale=scale, is_matrix=is_kernel)
    table = evaluate(tiny_zoo.model, merged, tiny_zoo.heads, tiny_zoo.suite, autocast=True)
    assert test.loc[test["method"] == "cart", "accuracy"].tolist() == table["accuracy"].tolist()
