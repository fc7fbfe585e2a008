"""The study of Corollary 1: its operators against rules, and coordinates worked by hand."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch

from mergebook.lab.comparison import cut
from mergebook.stability.measure.variance import changes, masked, variance
from mergebook.suites.zoo import Zoo
from mergelib import merge
from mergelib.evaluation.loops import evaluate


@pytest.fixture(scope="module")
def tables(tiny_zoo: Zoo) -> dict[str, pd.DataFrame]:
    found = variance(tiny_zoo, densities=[0.5, 0.2], multiples=[1.0, 2.0], pictures=40)
    return {name: pd.DataFrame(rows) for name, rows in found.items()}


def test_changes_by_hand() -> None:
    before = torch.tensor([[5.0, 1.0, 2.0], [1.0, 1.0, 3.0], [-1.0, 1.0, 4.0]])
    after = torch.tensor([[5.0, 1.0, 0.0], [1.0, 1.0, 3.0], [0.0, 0.0, 4.0]])
    found = changes(before, after)
    # Variances: 56/9, 0, 2/3 before; 14/3, 2/9, 26/9 after.
    assert found["raw"] == pytest.approx((14 / 3 + 2 / 9 + 26 / 9) / (56 / 9 + 2 / 3))
    squares = 25 + 1 + 1 + 1 + 9 + 16
    mean = (4 + 4 / 9 + 49 / 9) * 3
    assert found["relative"] == pytest.approx(1 - mean / squares)
    # δ of expert 1: 100/9 − 9 − 1/9 + 1 − 49/9 < 0; of 2 with kept entries only, < 0; of 3, −16/9…
    by_expert = [(100 - 81 - 1 + 9 - 49), (4 - 9 - 1 + 0 - 4), (64 - 36 - 4 + 9 - 25)]
    assert [value > 0 for value in by_expert] == [False, False, True]
    assert found["experts"] == pytest.approx(1 / 3)
    # Zeroed: expert 3's −1, from 8/3 to 2, and its 1, from 0 to 2/3: 64/9 − 4 − 4/9 > 0.
    assert found["experts_zeroed"] == pytest.approx(1 / 3)


def test_rows_are_complete(tables: dict[str, pd.DataFrame]) -> None:
    points = tables["variance"].set_index(["operator", "density"]).index
    assert not points.has_duplicates
    assert len(points) == 3 + 2 * 4
    test = tables["test"].groupby("scale").size()
    assert test.to_dict() == {"printed": 2 * 11, "chosen": 2 * 8}
    chosen = tables["test"].query("scale == 'chosen'")
    assert set(chosen["projection"]) <= {1.0, 2.0}


def test_what_is_proved_shows(tables: dict[str, pd.DataFrame]) -> None:
    table = tables["variance"].set_index(["operator", "density"])
    raw, share = table["raw"], table["relative"]
    assert raw["none", 1.0] == 1
    for operator in ("elect", "elect the minority"):
        assert raw[operator, 1.0] < 1
    assert raw["shrink", 0.2] == pytest.approx(0.2**2)
    assert share["shrink", 0.2] == pytest.approx(share["none", 1.0])
    assert min(raw["drop", density] for density in (0.5, 0.2)) > 1


def test_merges_are_those_of_the_rules(tiny_zoo: Zoo, tables: dict[str, pd.DataFrame]) -> None:
    zoo = cut(tiny_zoo, 40)
    printed = tables["test"].query("scale == 'printed'")
    both: dict[str, Any] = {"experts": zoo.experts, "pretrained": zoo.pretrained}
    merges = {
        ("none", 1.0): merge("average", **both),
        ("trim, elect", 0.2): merge("ties", density=0.2, scale=0.5, reduce="sum", **both),
    }
    for (operator, density), state in merges.items():
        ours = printed[(printed["operator"] == operator) & (printed["density"] == density)]
        table = evaluate(zoo.model, state, zoo.heads, zoo.suite, autocast=True)
        assert ours["loss"].tolist() == pytest.approx(table["loss"].tolist(), rel=0.02)


def test_the_best_scale_is_that_of_validation(tiny_zoo: Zoo) -> None:
    """With validation and test data exchanged, no other projection has a lower loss there."""
    tasks = {
        name: replace(task, test=task.validation)
        for name, task in cut(tiny_zoo, 60).suite.tasks.items()
    }
    zoo = replace(tiny_zoo, suite=replace(tiny_zoo.suite, tasks=tasks))
    losses = []
    for multiples in ((0.5, 3.0), (0.5,), (3.0,)):
        found = variance(zoo, densities=[1.0], multiples=multiples, pictures=60)["test"]
        chosen = pd.DataFrame(found).query("scale == 'chosen' and operator == 'elect'")
        losses.append(chosen["loss"].mean())
    assert losses[0] == pytest.approx(min(losses[1:]))
    assert max(losses[1:]) > min(losses[1:])
    without = pd.DataFrame(variance(zoo, densities=[1.0], multiples=[], pictures=10)["test"])
    assert set(without["scale"]) == {"printed"}


def test_dropping_is_drawn_by_the_seed() -> None:
    rows = torch.randn(2, 50)
    draws = [dropped(rows, seed) for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def dropped(rows: torch.Tensor, seed: int) -> torch.Tensor:
    """What dropping leaves of rows."""
    return next(after for name, _, after in masked(rows, [0.5], seed) if name == "drop")
