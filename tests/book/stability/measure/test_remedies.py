"""Experts that are trained so as to merge better, at equal cost."""

from dataclasses import replace
from itertools import product

import pytest

from mergebook.lab.comparison import individual
from mergebook.stability.measure.remedies import remedies
from mergebook.suites.families import family_of
from mergebook.suites.training import fine_tune
from mergebook.suites.types import (
    Zoo,
)


def test_kinds_of_experts(tiny_zoo: Zoo) -> None:
    tables = remedies(tiny_zoo, epochs=2, radii=(1e-9,), methods=("average",))
    losses = {(row["kind"], row["method"], row["task"]): row["loss"] for row in tables["test"]}
    kinds = ["plain", "plain, half as long", "sharpness-aware, 1e-09", "linearised"]
    methods, tasks = ["individual", "average"], list(tiny_zoo.suite.tasks)
    assert list(losses) == list(product(kinds, methods, tasks))
    assert [(row["kind"], row["settings"]) for row in tables["chosen"]] == [(k, {}) for k in kinds]
    usual = family_of(tiny_zoo.suite.name).recipe
    assert usual is not None
    name, task = next(iter(tiny_zoo.suite.tasks.items()))
    expert = fine_tune(
        tiny_zoo.model,
        tiny_zoo.heads[name],
        task.train,
        replace(usual, epochs=1),
        transform=task.transform,
        seed=tiny_zoo.suite.seed,
    )
    alone = replace(tiny_zoo, experts={name: expert})
    expected = float(individual(alone)["loss"].iloc[0])
    own = {kind: losses[kind, "individual", name] for kind in kinds}
    assert own["plain, half as long"] == pytest.approx(expected, rel=1e-4)
    assert own["sharpness-aware, 1e-09"] == pytest.approx(expected, rel=1e-4)  # a radius of nothing
    assert own["plain"] != pytest.approx(expected, rel=1e-4)
    assert own["linearised"] != pytest.approx(expected)


def test_epochs_are_even(tiny_zoo: Zoo) -> None:
    with pytest.raises(ValueError, match="epochs is 3"):
        remedies(tiny_zoo, epochs=3)
