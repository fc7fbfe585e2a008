"""The study of spirals: its ends are the sources, and its rows are complete."""

import json

import pandas as pd
import pytest
import torch

from mergebook.lab.catalogue import get_study
from mergebook.lab.results import load_table
from mergebook.lab.runner import Run
from mergebook.sail.costs import TUNING
from mergebook.sail.measure import spirals as study
from mergebook.sail.measure.spirals import GAMMAS, READINGS, spirals
from mergebook.sail.read.tuning import goals_on
from mergelib.statedict import lerp

GOALS = {"easy": 100.0, "hard": 0.0}


def test_all_arms_of_a_reading() -> None:
    tables = spirals(0, gammas=(0.0, 0.5, 1.0), epochs=50, goals=GOALS)
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    arms = pd.DataFrame(tables["arms"])
    assert {*arms["reading"]} == {"", *READINGS}
    arms = arms[arms["reading"].isin(["", "random"])]
    assert arms["easy"].eq(0).all(), "below 100 from the start"
    assert arms["hard"].isna().all(), "never as low as 0"
    counts = arms.groupby(["arm", "start"]).size().to_dict()
    assert counts == {
        ("sweep", "shared"): 3,
        ("sweep", "own"): 3,
        ("sweep", "re-basin"): 1,
        ("proximal", "shared"): 1,
        ("proximal", "own"): 1,
        ("scratch", "common"): 1,
        ("scratch", "fresh"): 1,
    }
    sweep = arms[arms["arm"] == "sweep"]
    values = ["accuracy", "loss", "gradient", "loss_0", "loss_50"]
    first = sweep.loc[sweep["gamma"].eq(1.0), values]
    assert len(first) == 2
    assert len(first.drop_duplicates()) == 1, "one source, however the other began"
    assert sweep.loc[sweep["gamma"].eq(0.5), "loss_0"].nunique() == 3
    sources = pd.DataFrame(tables["sources"]).query("reading == 'random'")
    assert sources.groupby("start").size().to_dict() == {"own": 2, "shared": 2}
    assert sources.groupby("source")["mmd"].nunique().eq(1).all(), "of data, not of networks"
    matched = pd.DataFrame(tables["matched"]).query("reading == 'random'")
    assert matched["source"].tolist() == [1, 2]
    own = sources[sources["start"] == "own"]
    for column in ("parameters", "random"):
        assert matched[column].mean() < own[column].mean(), "nearer by order alone"


def test_equal_sources_are_their_average_at_every_weight() -> None:
    """θ₁ = θ₂: the whole sweep of Fig. 8 is one curve."""
    source = {"weight": torch.randn(3, 4, generator=torch.Generator().manual_seed(0))}
    for gamma in GAMMAS:
        merged = lerp(source, source, gamma)["weight"]
        assert torch.allclose(merged, source["weight"], atol=1e-6), gamma


def test_the_grid_has_both_ends_and_the_middle() -> None:
    assert len(GAMMAS) == 31
    assert {-1.0, 0.0, 0.5, 1.0, 2.0} <= {*GAMMAS}


def test_it_takes_a_seed_and_no_suite_of_tasks() -> None:
    study = get_study("spirals")
    assert study.load(Run(study, "spirals", 3)).arguments == (3,)
    with pytest.raises(ValueError, match="only 'spirals'"):
        study.load(Run(study, "glyphs8", 0))
    with pytest.raises(ValueError, match="no model"):
        study.load(Run(study, "spirals", 0, model="mlp"))


def test_goals_are_those_of_other_seeds() -> None:
    """The result holds them, and its first seed comes out again.

    Trainings of 300 steps go apart in the last digits of a machine.
    """
    curves = load_table("spirals-spirals_goals", "curves")
    assert goals_on(curves, study.EPOCHS) == pytest.approx(study.GOALS, abs=5e-4)
    assert curves["seed"].min() >= TUNING, "no seed that anybody measures"
    first = pd.DataFrame(study.spirals_goals(TUNING)["curves"])
    assert first["judge"].to_numpy() == pytest.approx(
        curves.loc[curves["seed"] == TUNING, "judge"].to_numpy(), abs=0.01
    )
