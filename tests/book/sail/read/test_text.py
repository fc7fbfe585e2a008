"""What the chapter on SAIL in text reads off the study, on curves worked by hand."""

import math

import pandas as pd
import pytest
import torch

from mergebook.sail.measure import clusters
from mergebook.sail.read import spirals, text


@pytest.fixture
def curves() -> pd.DataFrame:
    rows = [
        (seed, "own", gamma, step, choose, judge + seed * gamma)
        for seed in (0, 1)
        for step, scale in ((0, 4.0), (10, 1.0))
        for gamma, choose, judge in ((0.0, 3.0, 1.0), (0.5, 2.0, 1.0 + scale), (1.0, 2.5, 2.0))
    ]
    columns = ["seed", "start", "gamma", "step", "choose", "judge"]
    return pd.DataFrame(rows, columns=columns).assign(tokens="characters")


def test_the_choice_is_made_on_one_half_and_judged_on_the_other(curves: pd.DataFrame) -> None:
    found = text.chosen(curves)
    assert found["gamma"].tolist() == [0.5, 0.5], "least on the half that chooses"
    assert found["over_nearest"].tolist() == [-1.0, -1.5]
    assert found["over_farther"].tolist() == [0, 0.5]
    assert found["over_half"].tolist() == [0, 0]


def test_rare_characters_are_left_out() -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(60, 64, (12, 30), generator=generator)
    blocks[0, 0] = 5
    features = clusters.described(blocks)
    assert features.shape == (12, 4)
    assert features[1:].sum(1).tolist() == pytest.approx([1] * 11)


def test_distances_from_an_optimum_in_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = {"seed": 3, "start": "own"}
    rows = [{**cell, "source": i, "parameters": math.e**i, "random": 1.0} for i in (1, 2)]
    monkeypatch.setattr(spirals, "load_table", lambda name, part: pd.DataFrame(rows))
    found = text.nearness()
    assert set(found.columns) == {*cell, "source", "point", "log"}
    logs = found.set_index(["source", "point"])["log"]
    assert logs[1, "source"] == pytest.approx(1)
    assert logs[2, "source"] == pytest.approx(2)
    assert logs[2, "random"] == 0
