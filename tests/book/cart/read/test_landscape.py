"""CART's path, and maps of the loss that agree with evaluation."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mergebook.cart.read import landscape
from mergebook.lab.plane import Plane
from mergebook.suites.types import (
    Zoo,
)
from mergelib import merge
from mergelib.evaluation.loops import evaluate
from mergelib.statedict import flatten


def test_window_holds_all_places_with_a_margin() -> None:
    xs, ys = landscape.window(np.array([[0.0, 0.0], [10.0, 5.0]]), size=3, margin=0.1)
    assert xs.tolist() == pytest.approx([-1, 5, 11])
    assert ys.tolist() == pytest.approx([-0.5, 2.5, 5.5])


def test_path_starts_and_ends_at_the_average_and_scales(tiny_zoo: Zoo) -> None:
    """Of three experts; two cancel at every rank."""
    names = list(tiny_zoo.experts)
    third = {key: 0.5 * value for key, value in tiny_zoo.experts[names[0]].items()}
    zoo = replace(tiny_zoo, experts={**tiny_zoo.experts, "third": third})
    ways = landscape.path(zoo, [0.0, 0.25, 1.0])
    assert ways.norm(dim=1)[[0, 2]].tolist() == pytest.approx([0, 0], abs=1e-6)
    far = merge("cart", zoo.experts, rank_ratio=0.25, scale=3.0)
    there = flatten(far) - flatten(merge("average", zoo.experts))
    assert torch.allclose(there, 3 * ways[1], atol=1e-5)
    assert ways[1].norm() > 0.1


def test_loss_map_agrees_with_evaluation(tiny_zoo: Zoo) -> None:
    ends = list(tiny_zoo.experts.values())
    plane = Plane.through([ends[1], tiny_zoo.pretrained, ends[0]])
    x, y = plane.place(ends[1])
    table = landscape.loss_map(tiny_zoo, plane, np.array([0.0, x]), np.array([y]))
    direct = evaluate(tiny_zoo.model, ends[1], tiny_zoo.heads, tiny_zoo.suite)["loss"].mean()
    assert table.shape == (1, 2)
    assert table.to_numpy()[0, 1] == pytest.approx(direct, rel=0.03)  # bfloat16 where there is
