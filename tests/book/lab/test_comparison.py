"""Choosing on validation data, judging on test data, and the record that results are made of."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from mergebook.lab import comparison
from mergebook.lab.comparison import (
    adapted,
    best_of,
    choose_wide,
    compare,
    examples_of,
    individual,
    merge_zoo,
    problem_of,
    score_grid,
)
from mergebook.lab.grids import GRIDS
from mergebook.suites.zoo import Zoo
from mergelib import merge
from mergelib.evaluation.loops import evaluate
from mergelib.procedures import Adapted
from mergelib.procedures.common import unlabelled
from mergelib.registry import get_method, method_names, rule
from mergelib.tuning import Grid, _beyond, merged_grid, points


def test_points_are_all_combinations() -> None:
    grid = {"rank_ratio": [0.1, 0.2], "scale": [1.0, 2.0, 3.0]}
    found = points(grid)
    assert found[:2] == [{"rank_ratio": 0.1, "scale": 1.0}, {"rank_ratio": 0.1, "scale": 2.0}]
    assert len(found) == 6
    assert points({}) == [{}]


@pytest.mark.parametrize("method", list(GRIDS))
def test_grids_are_of_hyperparameters_that_exist(method: str, tiny_zoo: Zoo) -> None:
    assert set(GRIDS[method]) <= set(get_method(method).hyperparameters)
    for point in (points(GRIDS[method])[0], points(GRIDS[method])[-1]):
        merge_zoo(method, tiny_zoo, **point)


@pytest.mark.parametrize("method", [name for name in GRIDS if "scale" in GRIDS[name]])
def test_rules_are_affine_in_their_scale(method: str, tiny_zoo: Zoo) -> None:
    grid = {name: values[:2] for name, values in GRIDS[method].items()}
    grid["scale"] = [0.3, 0.7, 1.6]
    states = dict(merged_grid(partial(merge_zoo, method, tiny_zoo), method, grid))
    assert sorted(states) == list(range(len(points(grid))))
    for i, point in enumerate(points(grid)):
        torch.testing.assert_close(states[i], merge_zoo(method, tiny_zoo, **point))


@pytest.fixture
def curved(spare_registry: None) -> str:
    """A rule whose result is not affine in its scale."""

    @rule(paper="none", elementwise=True)
    def bent(experts: Sequence[Tensor], pretrained: Tensor, *, scale: float = 1.0) -> Tensor:
        return pretrained + scale**2 * (experts[0] - pretrained)

    return "bent"


def test_a_rule_that_declares_nothing_is_merged_at_every_point(curved: str, tiny_zoo: Zoo) -> None:
    grid = {"scale": [0.0, 0.5, 1.0, 2.0]}
    states = dict(merged_grid(partial(merge_zoo, curved, tiny_zoo), curved, grid))
    for i, point in enumerate(points(grid)):
        expected = merge_zoo(curved, tiny_zoo, **point)
        assert all(torch.equal(states[i][key], expected[key]) for key in expected)


def test_values_that_are_no_numbers_are_merged_one_by_one(tiny_zoo: Zoo) -> None:
    """DARE's own scale is None, which stands for one that depends on `combine`."""
    grid: Grid = {"scale": [None, 0.1, 0.2], "drop_rate": [0.5]}
    states = dict(merged_grid(partial(merge_zoo, "dare", tiny_zoo), "dare", grid))
    for i, point in enumerate(points(grid)):
        torch.testing.assert_close(states[i], merge_zoo("dare", tiny_zoo, **point))


def validation_accuracy(zoo: Zoo, method: str, **point: Any) -> float:
    merged = merge(method, zoo.experts, pretrained=zoo.pretrained, **point)
    table = evaluate(zoo.model, merged, zoo.heads, zoo.suite, split="validation")
    return table["accuracy"].mean()


def test_best_of_takes_the_best_on_validation_data(tiny_zoo: Zoo) -> None:
    grid = {"scale": [-1.0, 0.0, 0.4, 0.8, 6.0]}
    table = score_grid(tiny_zoo, "task_arithmetic", grid)
    best = best_of(tiny_zoo, "task_arithmetic", grid, autocast=False)
    expected = [validation_accuracy(tiny_zoo, "task_arithmetic", scale=s) for s in grid["scale"]]
    assert len(set(expected)) > 2, "a case worth testing"
    assert list(table["accuracy"]) == pytest.approx(expected)
    assert list(table["scale"]) == grid["scale"]
    assert best == {"scale": grid["scale"][expected.index(max(expected))]}


def test_a_grid_that_ends_at_its_best_point_is_continued(
    tiny_zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hill(zoo: Zoo, method: str, grid: Grid, **options: Any) -> pd.DataFrame:
        """Highest at scale 5 and rank 2 %; a kind is better than the other."""
        table = pd.DataFrame(points(grid))
        off = (table["scale"] / 5).map(math.log).abs() + (table["rank_ratio"] / 0.02).map(
            math.log
        ).abs()
        return table.assign(accuracy=1 - off / 10 - (table["kind"] == "worse"))

    monkeypatch.setattr(comparison, "score_grid", hill)
    grid: Grid = {
        "scale": [1.0, 1.5, 2.2],
        "rank_ratio": [0.08, 0.16, 0.32],
        "kind": ["worse", "better"],
    }
    best, table = choose_wide(tiny_zoo, "cart", grid)
    assert best == {"scale": 4.74, "rank_ratio": 0.02, "kind": "better"}
    tried = sorted(table["scale"].unique())
    assert tried[0] < best["scale"] < tried[-1], "an inner point"
    assert table["rank_ratio"].min() == 0.01
    assert not table.duplicated().any()
    assert grid["scale"] == [1.0, 1.5, 2.2], "what was given is left as it is"


@pytest.mark.parametrize(
    ("values", "best", "further"),
    [
        ([0.3, 0.6, 0.9], 0.9, ("rank_ratio", 1.0)),
        ([0.6, 0.9, 1.0], 1.0, None),
        ([0.6, 0.9, 1.0], 0.9, None),
        ([0.3, 0.6, 0.9], 0.3, ("rank_ratio", 0.15)),
        ([0.3, 0.6], 0.3, None),
    ],
)
def test_where_a_grid_is_continued(
    values: list[float], best: float, further: tuple[str, float] | None
) -> None:
    assert _beyond({"rank_ratio": values}, {"rank_ratio": best}) == further


def test_a_continued_grid_keeps_the_kind_of_a_hyperparameter(
    tiny_zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rising(zoo: Zoo, method: str, grid: Grid, **options: Any) -> pd.DataFrame:
        table = pd.DataFrame(points(grid))
        return table.assign(accuracy=table["scale"] / 100)

    monkeypatch.setattr(comparison, "score_grid", rising)
    grid: Grid = {"scale": [1.0, 1.5, 2.0], "seed": [3], "exact": [True]}
    best, _ = choose_wide(tiny_zoo, "dare", grid)
    assert best["scale"] > 2, "it was continued"
    assert [type(value) for value in best.values()] == [float, int, bool]


def test_best_of_keeps_the_kind_of_a_hyperparameter(tiny_zoo: Zoo) -> None:
    grid: dict[str, list[Any]] = {"trim": ["tensor"], "density": [0.5], "reduce": ["sum"]}
    assert best_of(tiny_zoo, "ties", grid) == {"trim": "tensor", "density": 0.5, "reduce": "sum"}
    best = best_of(tiny_zoo, "dare", {"seed": [3], "drop_rate": [0.5]})
    assert best == {"seed": 3, "drop_rate": 0.5}
    assert isinstance(best["seed"], int)
    assert best_of(tiny_zoo, "average", {}) == {}


def test_individual_is_each_expert_on_its_own_task(tiny_zoo: Zoo) -> None:
    table = individual(tiny_zoo).set_index("task")
    for task, expert in tiny_zoo.experts.items():
        whole = evaluate(tiny_zoo.model, expert, tiny_zoo.heads, tiny_zoo.suite)
        own = whole.set_index("task").loc[task]
        assert table.loc[task, "accuracy"] == own["accuracy"]
    assert len(table) == 2


def test_compare(tiny_zoo: Zoo) -> None:
    settings: dict[str, dict[str, Any]] = {"average": {}, "ties": {"scale": 0.5}}
    table = compare(tiny_zoo, settings)
    methods = ["pretrained", "average", "ties", "individual"]
    assert list(table[["method", "task"]].itertuples(index=False, name=None)) == list(
        product(methods, tiny_zoo.suite.tasks)
    )
    by_method = table.set_index(["method", "task"])
    assert (by_method["normalised"]["individual"] == 1).all()
    assert (by_method["correct"] == (by_method["accuracy"] * by_method["n"]).round()).all()
    for task in tiny_zoo.suite.tasks:
        accuracies = by_method["accuracy"]
        share = accuracies["average", task] / accuracies["individual", task]
        assert by_method["normalised"]["average", task] == pytest.approx(share)
    merged = merge("ties", tiny_zoo.experts, pretrained=tiny_zoo.pretrained, scale=0.5)
    expected = evaluate(tiny_zoo.model, merged, tiny_zoo.heads, tiny_zoo.suite)
    assert list(by_method["accuracy"]["ties"]) == list(expected["accuracy"])
    assert (by_method.loc[["average", "ties"], "seconds"] > 0).all()
    assert by_method.loc[["pretrained", "individual"], "seconds"].isna().all()


def test_compare_where_memory_cannot_be_measured(
    tiny_zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mergelib.evaluation.cost._memory", lambda *_, **__: None)
    table = compare(tiny_zoo, {"average": {}})
    assert table["peak_bytes"].isna().all()
    assert table["peak_bytes"].dtype.kind == "f"


def test_what_dare_draws_depends_on_the_suites_seed(tiny_zoo: Zoo) -> None:
    def drawn(suite_seed: int, **options: Any) -> torch.Tensor:
        zoo = replace(tiny_zoo, suite=replace(tiny_zoo.suite, seed=suite_seed))
        return merge_zoo("dare", zoo, **options)["norm.bias"]

    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))
    assert torch.equal(drawn(0, seed=5), drawn(1, seed=5))


SEEDED = [
    name
    for name in method_names("procedure")
    if "seed" in get_method(name, "procedure").hyperparameters
]


def of_seed(zoo: Zoo, seed: int) -> Zoo:
    return replace(zoo, suite=replace(zoo.suite, seed=seed))


def outcome(result: Adapted) -> list[torch.Tensor]:
    """All weights that a procedure returns, those of its heads too."""
    heads = [tensor for head in result.heads.values() for tensor in head.state_dict().values()]
    return [*result.state.values(), *heads]


def equal(first: Adapted, second: Adapted) -> bool:
    return all(torch.equal(*pair) for pair in zip(outcome(first), outcome(second), strict=True))


def test_procedures_that_draw_are_known() -> None:
    assert {"adamerging", "concrete", "fisher", "surgery", "multitask"} <= set(SEEDED)


@pytest.mark.parametrize("method", SEEDED)
def test_a_procedure_draws_by_the_seed_of_the_run(method: str, tiny_zoo: Zoo) -> None:
    kind = get_method(method, "procedure")
    data: Any = examples_of(tiny_zoo, 20)
    assert kind.requires is not None
    if not kind.requires.labels:
        data = unlabelled(data)
    few = {"steps": 2} if "steps" in kind.hyperparameters else {}
    own = adapted(of_seed(tiny_zoo, 3), method, data, **few)
    assert equal(own, adapted(tiny_zoo, method, data, seed=3, **few)), "a given seed counts"
    assert not equal(own, adapted(tiny_zoo, method, data, **few)), "seeds draw differently"


@pytest.mark.parametrize("method", sorted({*method_names("procedure")} - {*SEEDED}))
def test_a_procedure_that_does_not_draw_is_given_no_seed(
    method: str, tiny_zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(comparison, "adapt", lambda *_, **options: given.update(options))
    adapted(of_seed(tiny_zoo, 3), method, examples_of(tiny_zoo, 5))
    assert "seed" not in given
    assert set(given) >= {"model", "heads", "data", "transform", "is_matrix"}


def test_a_problem_holds_all_that_the_zoo_says(tiny_zoo: Zoo) -> None:
    zoo = replace(tiny_zoo, is_matrix=lambda key, tensor: False)
    problem = problem_of(zoo, 5)
    for name in ("experts", "pretrained", "model", "heads", "is_matrix"):
        assert getattr(problem, name) is getattr(zoo, name), name
    assert problem.transform == zoo.suite.transforms
    for name, pair in examples_of(zoo, 5).items():
        part = problem.data[name]
        assert part.labels is not None
        torch.testing.assert_close((part.inputs, part.labels), pair)
