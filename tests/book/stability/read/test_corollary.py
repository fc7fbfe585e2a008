"""What chapter 41 reads out of the study: tables made by hand."""

import numpy as np
import pandas as pd
import pytest

from mergebook.stability.read.corollary import (
    beside_losses,
    links,
)

# Operator, density, raw, relative, and the loss at 1/T; with the best scale it is half of that.
MADE = [
    ("none", 1.0, 1.0, 0.8, 1.0),
    ("elect", 1.0, 0.5, 0.4, 0.9),
    ("trim", 0.2, 0.25, 0.82, 1.2),
    ("drop", 0.2, 5.0, 0.85, 1.3),
    ("elect the minority", 1.0, 0.1, 0.3, 9.0),
]


@pytest.fixture
def made() -> tuple[pd.DataFrame, pd.DataFrame]:
    names = ["operator", "density", "raw", "relative", "loss"]
    table = pd.concat([pd.DataFrame(MADE, columns=names).assign(seed=seed) for seed in range(3)])
    shifts = {"a": 0.5, "b": -0.5}
    table = table.assign(projection=2 - table["loss"])
    tasks = [table.assign(task=task, loss=table["loss"] + shifts[task]) for task in shifts]
    test = pd.concat(tasks, ignore_index=True).drop(columns=["raw", "relative"])
    halved = test.assign(loss=test["loss"] / 2, scale="chosen")
    chosen = halved[halved["operator"] != "elect the minority"]
    test = pd.concat([test.assign(scale="printed"), chosen], ignore_index=True)
    return table.drop(columns=["loss", "projection"]), test


def test_changes_by_hand(made: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    table = beside_losses(*made).set_index(["seed", "scale", "operator"]).loc[1]
    assert table.loc[("printed", "trim"), "change"] == pytest.approx(0.2)
    assert table.loc[("chosen", "elect"), "change"] == pytest.approx(-0.05)
    assert table.loc[("printed", "trim"), "raw"] == pytest.approx(np.log(0.25))
    assert table.loc[("chosen", "elect"), "relative"] == pytest.approx(np.log(0.5))
    assert len(table) == 5 + 4


def test_links_by_hand(made: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    changes = beside_losses(*made)
    table = links(changes)
    # Losses rank none 2, elect 1, trim 3, drop 4; raw 3, 2, 1, 4; the share 2, 1, 3, 4.
    assert table["printed", "raw"].tolist() == pytest.approx([1 - 6 * 6 / 60] * 3)
    assert table["chosen", "relative"].tolist() == pytest.approx([1] * 3)
    assert table["printed", "projection"].tolist() == pytest.approx([-1] * 3)
