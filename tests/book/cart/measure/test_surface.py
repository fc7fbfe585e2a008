"""What tells accuracy without labels: cases by hand, and the plane that it is measured on."""

import math

import pytest
import torch
from torch import nn

from mergebook.cart.measure.surface import surface, told
from mergebook.lab.comparison import merge_zoo
from mergebook.suites.zoo import Zoo
from mergelib.evaluation.loops import evaluate


def test_told_by_hand() -> None:
    start, expert, merged = torch.eye(3)
    seen = told(2 * merged[None], 3 * expert[None], start[None], nn.Identity())
    # z - z_0 = (-1, 0, 1) and z_e - z_0 = (-1, 1, 0): half along it, (-1/2, -1/2, 1) across.
    assert seen["signal"] == pytest.approx(0.5)
    assert seen["interference"] == pytest.approx(math.sqrt(0.75))
    assert seen["error"] == pytest.approx(1.0)
    assert seen["agreement"] == 0
    assert told(start[None], expert[None], start[None], nn.Identity())["signal"] == 0
    own = told(expert[None], expert[None], start[None], nn.Identity())
    assert (own["signal"], own["error"], own["agreement"]) == pytest.approx((1, 0, 1))


def test_error_is_what_signal_and_interference_make_it() -> None:
    torch.manual_seed(0)
    merged, expert, start = torch.randn(3, 20, 5)
    seen = told(merged, expert, start, nn.Identity())
    assert seen["error"] == pytest.approx((1 - seen["signal"]) ** 2 + seen["interference"] ** 2)
    assert 0 < seen["entropy"] < math.log(5)


def test_surface_measures_every_point(tiny_zoo: Zoo) -> None:
    ratios, scales = (0.25, 0.5), (1.0, 2.0, 3.0)
    tables = surface(tiny_zoo, rank_ratios=ratios, scales=scales, counts=(1, 2), pictures=120)
    rows = tables["test"]
    points = {(row["count"], row["method"], row["rank_ratio"], row["scale"]) for row in rows}
    assert len(points) == 2 * (1 + 2 * 3 + 2)
    assert len(rows) == (1 + 2) * (1 + 2 * 3 + 2)
    point = {"method": "cart", "rank_ratio": 0.5, "scale": 3.0}
    state = merge_zoo("cart", tiny_zoo, rank_ratio=0.5, scale=3.0)
    table = evaluate(tiny_zoo.model, state, tiny_zoo.heads, tiny_zoo.suite)
    found = [row for row in rows if row["count"] == 2 and point.items() <= row.items()]
    assert [row["accuracy"] for row in found] == pytest.approx(list(table["accuracy"]))
    (average,) = (row for row in rows if row["count"] == 1 and row["scale"] == 0)
    assert average["signal"] == pytest.approx(1), "the average of one is the expert"
