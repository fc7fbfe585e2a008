"""Lengths, angles and spectra of task vectors that are known by hand."""

import math
from dataclasses import replace

import pytest
import torch

from mergebook.cart.measure.surface import geometry
from mergebook.suites.zoo import Zoo


def test_geometry_by_hand(tiny_zoo: Zoo) -> None:
    zero = {key: torch.zeros_like(value) for key, value in tiny_zoo.pretrained.items()}
    key = "blocks.0.fc1.weight"
    pretrained = {**zero, key: torch.ones_like(zero[key])}
    rank_two = torch.zeros_like(zero[key])
    rank_two[0, 0], rank_two[1, 1] = 2.0, 1.0
    names = list(tiny_zoo.experts)
    experts = {
        names[0]: {**pretrained, key: pretrained[key] + rank_two},
        names[1]: {**pretrained, key: pretrained[key] - rank_two},
    }
    zoo = replace(tiny_zoo, pretrained=pretrained, experts=experts)
    least = 1 / min(zero[key].shape)
    tables = geometry(zoo, rank_ratios=(least, 2 * least))
    norm = math.sqrt(zero[key].numel())
    assert [row["length"] for row in tables["tasks"]] == pytest.approx([math.sqrt(5) / norm] * 2)
    assert [row["cosine"] for row in tables["pairs"]] == pytest.approx([-1, -1])
    assert [row["kept"] for row in tables["spectra"]] == pytest.approx([0.8, 1.0] * 4)
