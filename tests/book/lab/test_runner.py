"""The loop over seeds behind results/, and the studies it repeats."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd
import pytest

from mergebook.cart.measure.experiments import (
    adaptation,
    baselines,
    compression,
    interference,
    ranks,
    task_counts,
)
from mergebook.lab import comparison
from mergebook.lab.catalogue import get_study
from mergebook.lab.measuring import Measurement, measure
from mergebook.lab.runner import Run, Study, beginning_of
from mergebook.suites.training import Recipe
from mergebook.suites.zoo import Zoo
from mergelib import merge
from mergelib.evaluation.loops import evaluate
from mergelib.statedict import is_kernel, is_matrix


@pytest.fixture(scope="module")
def methods() -> dict[str, dict[str, list[Any]]]:
    return {"average": {}, "ties": {"scale": [0.5, 1.0]}, "dare": {"drop_rate": [0.5]}}


def test_baselines_are_complete_and_valid_json(tiny: str, methods: dict[str, Any]) -> None:
    plan = Measurement(
        baselines,
        "digits2",
        range(2),
        settings={"grids": methods},
        model=tiny,
        recipe=Recipe(epochs=1),
        options={"profile": "smoke"},
    )
    record = measure(plan)
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
    real = comparison.compare

    def watched(zoo: Zoo, settings: Any) -> pd.DataFrame:
        if measured == [0] and zoo.suite.seed == 1:
            raise KeyboardInterrupt
        measured.append(zoo.suite.seed)
        return real(zoo, settings)

    def again(rate: float = 4e-4, grids: Any = methods, **options: Any) -> dict[str, Any]:
        plan = Measurement(
            baselines,
            "digits2",
            range(2),
            settings={"grids": grids},
            model=tiny,
            recipe=Recipe(epochs=1, learning_rate=rate),
            options={"profile": "smoke", **options},
        )
        return measure(plan)

    monkeypatch.setattr(comparison, "compare", watched)
    with pytest.raises(KeyboardInterrupt):
        again()
    assert measured == [0]
    measured.append(-1)
    resumed = again()
    assert measured == [0, -1, 1]
    monkeypatch.setenv("MERGELIB_CACHE", f"{os.environ['MERGELIB_CACHE']}-fresh")
    whole = again()
    assert measured == [0, -1, 1, 0, 1]
    assert resumed == whole
    again(test_size=60)
    again(rate=1e-3)
    again(grids={"average": {}})
    monkeypatch.setitem(methods, "ties", {"scale": [0.5]})
    again()
    assert measured[5:] == [0, 1] * 4
    again()
    assert len(measured) == 13


def test_baselines_of_an_unknown_method_fail_before_any_work(
    tiny_zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "choose_wide", pytest.fail)
    with pytest.raises(ValueError, match="unknown method 'tias'; did you mean 'ties'"):
        baselines(tiny_zoo, grids={"average": {}, "tias": {}})


def test_ranks_are_those_of_merge(tiny_zoo: Zoo) -> None:
    rows = ranks(tiny_zoo, rank_ratios=[0, 0.3, 1], scales=[1.0, 2.0], uncentred_scales=[0.5])
    table = pd.DataFrame(rows["test"])
    assert len(table) == 3 * 3 * 2
    found = table.set_index(["method", "scale", "rank_ratio", "task"])["accuracy"]
    ends = [found["cart", scale, ratio] for scale in (1.0, 2.0) for ratio in (0, 1)]
    assert all(end.equals(ends[0]) for end in ends), "CART ends where it starts: at the average"
    merged = merge("cart", tiny_zoo.experts, rank_ratio=0.3, scale=2.0)
    expected = evaluate(tiny_zoo.model, merged, tiny_zoo.heads, tiny_zoo.suite, autocast=True)
    assert found["cart", 2.0, 0.3].tolist() == expected["accuracy"].tolist()


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
    keys = ["method", "setting", "rest"]
    means = pd.DataFrame(tables["test"]).groupby(keys)["accuracy"].mean()
    average = merge("average", tiny_zoo.experts)
    judged = evaluate(tiny_zoo.model, average, tiny_zoo.heads, tiny_zoo.suite, autocast=True)
    assert means["cart_indexing", "rank_ratio=0.0", "average"] == judged["accuracy"].mean()
    experts = means["individual", "", ""]
    assert means["cart_indexing", "rank_ratio=1.0", "own"] == pytest.approx(experts, abs=0.01)
    assert means["emr", "", ""] > experts - 0.1
    storage = pd.DataFrame(tables["storage"]).set_index(keys).sort_index()
    count = storage["parameters"].iloc[0]
    masks = storage.loc["tall_masks", "bits_per_task"]
    assert ((masks >= count) & (masks < 1.01 * count + 800)).all(), "a bit a parameter, padded"
    bits = storage["bits_per_task"]
    assert bits["cart_indexing", "rank_ratio=0.0", "average"] == 0
    state = tiny_zoo.pretrained
    rest = sum(value.numel() for key, value in state.items() if not is_matrix(key, value))
    for setting in ("rank_ratio=0.0", "rank_ratio=1.0"):
        own, averaged = (bits["cart_indexing", setting, name] for name in ("own", "average"))
        assert own - averaged == 32 * rest


def test_compression_study_of_kernels(tiny_zoo: Zoo) -> None:
    """Where convolutions are matrices, their factors are kept as well."""
    quick: dict[str, Any] = {"rank_ratios": [1.0], "mask_scales": [0.4]}
    bits = [
        row["bits_per_task"]
        for kind in (is_matrix, is_kernel)
        for row in compression(replace(tiny_zoo, is_matrix=kind), **quick)["storage"]
        if row["rest"] == "average"
    ]
    kernels_alone = [
        value.flatten(1).shape
        for key, value in tiny_zoo.pretrained.items()
        if is_kernel(key, value) and not is_matrix(key, value)
    ]
    assert bits[1] - bits[0] == sum(32 * min(shape) * sum(shape) for shape in kernels_alone)


def test_adaptation_study(tiny_zoo: Zoo) -> None:
    grids = {"task_arithmetic": {"scale": [0.3, 0.5]}}
    tables = adaptation(tiny_zoo, grids=grids, granularities=("layer", "task"), steps=11)
    table = pd.DataFrame(tables["test"])
    found = table.groupby(["method", "granularity"]).size().index.tolist()
    plus = "adamerging+task_arithmetic"
    assert found == [(plus, "layer"), (plus, "task"), ("task_arithmetic", "")]
    means = table.groupby("granularity")["accuracy"].mean()
    assert means["layer"] != means["task"], "one coefficient a task is another search"
    assert json.loads(json.dumps(tables)) == tables


def test_adaptation_with_adarank(tiny_zoo: Zoo) -> None:
    """From the same start, with no step: CART with one direction of each matrix, or all."""
    options = {"cart": {"scale": [1.5], "rank_ratio": [0.01]}, "task_arithmetic": {"scale": [0.3]}}
    tables = adaptation(tiny_zoo, grids=options, adarank=True, steps=0)
    accuracy = pd.DataFrame(tables["test"]).pivot(index="task", columns="method")["accuracy"]
    for base in options:
        assert accuracy[f"adarank+{base}"].equals(accuracy[base].rename(f"adarank+{base}"))
    ranks = pd.DataFrame(tables["ranks"]).set_index(["base", "expert", "matrix"])["rank"]
    assert set(ranks["cart"]) == {1}
    assert min(ranks["task_arithmetic"]) > 1
    assert set(ranks.index.unique("expert")) == set(tiny_zoo.experts)
    moved = adaptation(tiny_zoo, grids=options, adarank=True, steps=3, learning_rate=0.1)
    assert moved["ranks"] != tables["ranks"]
    assert json.loads(json.dumps(moved)) == moved


def test_tables_of_a_study_are_json(tiny_zoo: Zoo) -> None:
    found = get_study("granular")
    tables = found.function(tiny_zoo, **found.complete({"examples": 2}))
    assert all(tables.values())
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables


def test_defaults_and_later_fields_change_no_key() -> None:
    def before(zoo: Zoo, *, steps: int = 5) -> dict[str, Any]:
        return {}

    def after(zoo: Zoo, *, steps: int = 5, rates: tuple[float, ...] = (0.1, 1.0)) -> dict[str, Any]:
        return {}

    after.__name__ = "before"

    def run(function: Any, recipe: Any = None, **settings: Any) -> Run:
        study = Study(function)
        return Run(study, "digits2", 0, "vit", recipe, settings=study.complete(settings), code="c")

    old, new = run(before), run(after)
    inputs = {"zoo": "1", "sources": {}}
    assert (old.name, old.key(inputs)) == (new.name, new.key(inputs))
    assert run(after, rates=[0.1, 1.0]).key(inputs) == old.key(inputs), "as read from JSON"
    different = [run(before, steps=6), run(after, rates=[0.1]), replace(old, seed=1)]
    different.append(replace(old, code="d"))
    assert len({old.key(inputs), *(other.key(inputs) for other in different)}) == 5
    assert len({old.name, *(other.name for other in different[:3])}) == 4
    assert old.key({**inputs, "zoo": "2"}) != old.key(inputs)


def test_points_are_runs_of_their_own(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two points by two seeds; a sweep that was killed goes on where it was."""
    asked: list[tuple[int, float]] = []

    def timed(zoo: Zoo, *, rate: float = 0.1, batch: int = 8) -> dict[str, Any]:
        if len(asked) == 3:
            asked.append((-1, 0.0))
            raise KeyboardInterrupt
        asked.append((zoo.suite.seed, rate))
        return {"test": [{"rate": rate, "accuracy": rate}]}

    plan = Measurement(
        Study(timed, load=beginning_of),
        "digits2",
        range(2),
        settings={"batch": 4},
        points=[{"rate": 0.2}, {}],
        model=tiny,
        options={"profile": "smoke"},
    )
    with pytest.raises(KeyboardInterrupt):
        measure(plan)
    record = measure(plan)
    assert asked == [(0, 0.2), (0, 0.1), (1, 0.2), (-1, 0.0), (1, 0.1)]
    told = [(row["seed"], row["rate"]) for row in record["test"]]
    assert told == [(0, 0.2), (0, 0.1), (1, 0.2), (1, 0.1)]
    made = record["provenance"]
    assert made["settings"] == {"batch": 4}
    assert made["points"] == [{"rate": 0.2}, {"rate": 0.1}]
    assert made["seeds"] == [0, 1]
    assert len(set(made["zoo"].values())) == 2, "one zoo for all points of a seed"
    with pytest.raises(ValueError, match="two runs have the name"):
        measure(Measurement(timed, "digits2", [0], points=[{}, {"rate": 0.1}], model=tiny))


def test_a_study_that_fails_for_one_seed(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fragile(zoo: Zoo, *, broken: int = 1) -> dict[str, Any]:
        asked.append(zoo.suite.seed)
        if zoo.suite.seed == broken:
            raise FloatingPointError("diverged")
        return {"test": [{"accuracy": 1.0}]}

    def plan(seeds: Sequence[int]) -> Measurement:
        return Measurement(
            fragile, "digits2", seeds, tiny, Recipe(epochs=1), options={"profile": "smoke"}
        )

    with pytest.raises(FloatingPointError, match="diverged") as failure:
        measure(plan(range(3)))
    assert "1 of 3 runs failed" in failure.value.__notes__[0]
    assert asked == [0, 1, 2]
    measure(plan([0, 2]))
    assert asked == [0, 1, 2], "the others are there"


def test_what_is_unknown_is_named(tiny: str) -> None:
    with pytest.raises(
        ValueError, match="unknown study 'rank'; known: adaptation, arms, baselines"
    ):
        get_study("rank")
    with pytest.raises(ValueError, match=r"ranks has no setting 'ratios'; it has: rank_ratios=\("):
        measure(Measurement(ranks, "digits2", range(2), settings={"ratios": [1]}))


def test_one_value_is_a_list_of_one_where_a_list_is_asked() -> None:
    complete = get_study("scaling").complete({"steps": 5, "rivals": "ties", "groups": 2})
    assert (complete["steps"], complete["rivals"], complete["groups"]) == ([5], ["ties"], 2)
