"""What the chapter on SAIL in text reads off the study, on curves worked by hand."""

import pandas as pd
import pytest
import torch

from mergelib.studies.analysis.sail import text
from mergelib.studies.papers.sail import clusters


@pytest.fixture
def curves() -> pd.DataFrame:
    rows = [
        (seed, "own", gamma, step, choose, judge + seed * gamma)
        for seed in (0, 1)
        for step, scale in ((0, 4.0), (10, 1.0))
        for gamma, choose, judge in ((0.0, 3.0, 1.0), (0.5, 2.0, 1.0 + scale), (1.0, 2.5, 2.0))
    ]
    return pd.DataFrame(rows, columns=["seed", "start", "gamma", "step", "choose", "judge"])


def test_barriers(curves: pd.DataFrame) -> None:
    found = text.barriers(curves).set_index("step")
    assert found["mean"].tolist() == [3.5, 0.5], "1 + scale − ½(1 + 2); a slope adds none"
    assert found["half_width"].tolist() == [0, 0]


def test_the_choice_is_made_on_one_half_and_judged_on_the_other(curves: pd.DataFrame) -> None:
    found = text.chosen(curves)
    assert found["gamma"].tolist() == [0.5, 0.5], "least on the half that chooses"
    assert found["over_nearest"].tolist() == [-1.0, -1.5]
    assert found["over_half"].tolist() == [0, 0]


def test_rare_characters_are_left_out() -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(60, 64, (12, 30), generator=generator)
    blocks[0, 0] = 5
    features = clusters.described(blocks)
    assert features["histogram"].shape == (12, 4)
    assert features["histogram"][1:].sum(1).tolist() == pytest.approx([1] * 11)
