"""The studies of the stability framework, on the tiny zoo."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch

from mergebook.lab.catalogue import get_study
from mergebook.lab.runner import Run
from mergebook.stability.measure.constants import stability
from mergebook.stability.measure.retraining import drawn, retraining
from mergebook.suites.types import (
    Zoo,
)
from mergelib.evaluation.tasks import (
    Split,
)
from mergelib.statedict import flatten

QUICK: dict[str, Any] = {"tasks": 1, "pairs": 3, "steps": (2, 4, 8), "examples": 32}
ONE: dict[str, Any] = {"rates": (), "batches": (), "counts": ()}


def moves(zoo: Zoo, **settings: Any) -> pd.DataFrame:
    return pd.DataFrame(retraining(zoo, **{**QUICK, **ONE, **settings})["moves"])


def test_constants_of_a_zoo(tiny_zoo: Zoo) -> None:
    tables = stability(tiny_zoo, pictures=12, curved=5, singles=3, products=6, adam=5)
    curvature, gradients = pd.DataFrame(tables["curvature"]), pd.DataFrame(tables["gradients"])
    names = [*tiny_zoo.suite.tasks]
    assert curvature["point"].unique().tolist() == ["pretrained"]
    assert curvature.groupby("of").size().to_dict() == {"mean": 1, "example": 3 * len(names)}
    largest = curvature.groupby("of")["smoothness"].max()
    assert largest["example"] >= largest["mean"]
    assert (gradients["largest"] ** 2 >= gradients["noise"] * 11 / 12).all()
    points = pd.DataFrame(tables["points"]).set_index("point")
    start = gradients[gradients["point"] == "pretrained"]
    assert points.loc["pretrained", "loss"] == pytest.approx(start["loss"].mean())
    assert points.loc["pretrained", "dissimilarity"] == pytest.approx(start["heterogeneity"].mean())
    quick: dict[str, Any] = {"pictures": 12, "curved": 5, "singles": 3, "products": 1, "adam": 1}
    early = stability(tiny_zoo, after=[1, 20], learning_rate=2e-3, **quick)
    (first, near, far) = early["points"]
    assert first == tables["points"][0]
    assert [near["point"], far["point"]] == ["average after 1", "average after 20"]
    assert first["loss"] > near["loss"] > far["loss"]
    adam = pd.DataFrame(tables["adam"])
    assert adam.groupby("task")["steps"].apply(list).tolist() == [[1, 5]] * 2
    assert adam["residual"].between(0.1, 1).all()


def test_only_seen_examples_move_an_expert(tiny_zoo: Zoo) -> None:
    """In whole epochs of one batch every step sees all; distances grow with the rate squared."""
    small = moves(tiny_zoo, batch=32, rate=1e-4)
    large = moves(tiny_zoo, batch=32, rate=2e-4)
    ratios = large["stability"] / small["stability"]
    assert ratios.between(3.6, 4.4).all()
    assert (small["stability"] > 100 * small["chaos"]).all()
    for table in (small, large):
        whole = table[table["sampling"] == "epochs"].set_index("steps")["stability"]
        assert whole[8] / whole[2] == pytest.approx(16, rel=0.2), "K² where all are seen"
    assert retraining(tiny_zoo, **QUICK, **ONE) == retraining(tiny_zoo, **QUICK, **ONE)


def test_new_examples_come_from_unused_rows_else_from_validation(tiny_zoo: Zoo) -> None:
    name = next(iter(tiny_zoo.suite.tasks))
    task = tiny_zoo.suite.tasks[name]

    def with_rows(rows: slice) -> Zoo:
        train = Split(task.train.inputs[rows], task.train.labels[rows])
        changed = {**tiny_zoo.suite.tasks, name: replace(task, train=train)}
        return replace(tiny_zoo, suite=replace(tiny_zoo.suite, tasks=changed))

    options: dict[str, Any] = {"batch": 32, "rate": 1e-3}
    everything, spare = moves(tiny_zoo, **options), moves(with_rows(slice(0, 35)), **options)
    assert everything["stability"].tolist() == spare["stability"].tolist()
    none_left = moves(with_rows(slice(0, 34)), **options)
    assert (none_left["stability"] > 0).all()
    assert none_left["stability"].tolist() != spare["stability"].tolist()


def test_one_setting_at_a_time(tiny_zoo: Zoo) -> None:
    settings: dict[str, Any] = {"rates": (0.01, 0.02), "batches": (4, 8), "counts": (16, 32)}
    table = moves(tiny_zoo, pairs=2, steps=(1,), **settings)
    kinds = table[["rate", "batch", "examples", "sampling"]].to_numpy().tolist()
    assert kinds == [
        [0.02, 8, 32, "drawn"],
        [0.02, 8, 32, "epochs"],
        [0.01, 8, 32, "drawn"],
        [0.02, 4, 32, "drawn"],
        [0.02, 8, 16, "drawn"],
    ]


def test_batches_are_drawn_anew() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [*drawn(10, 4, generator, steps=2000)]
    assert {len(set(batch.tolist())) for batch in batches} == {4}
    counts = torch.bincount(torch.cat(batches), minlength=10)
    assert counts.tolist() == pytest.approx([800] * 10, rel=0.1)


def test_a_backbone_and_heads_are_enough(tiny: str) -> None:
    run = Run(get_study("retraining"), "digits2", 0, tiny, options={"profile": "smoke"})
    (zoo,) = run.study.load(run).arguments
    assert not zoo.experts
    assert flatten(zoo.pretrained).tolist() == flatten(dict(zoo.model.named_parameters())).tolist()
    assert {*zoo.heads} == {*zoo.suite.tasks}
