"""The study of Git Re-Basin: copies that matching must undo, and what it cannot change."""

import pandas as pd
import torch

from mergebook.stability.measure.remedies import _compared, rebasin
from mergebook.suites.models import started_anew
from mergebook.suites.types import (
    Zoo,
)
from mergelib import flatten
from mergelib.align import permute, random_permutations
from mergelib.structure import structure_of


def test_starts_are_drawn(tiny_zoo: Zoo) -> None:
    before, random = flatten(tiny_zoo.model.state_dict()), torch.get_rng_state()
    one, same, other = (
        flatten(started_anew(tiny_zoo.model, seed).state_dict()) for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert (one - other).norm() > 0.5 * one.norm()
    assert torch.equal(flatten(tiny_zoo.model.state_dict()), before)
    assert torch.equal(torch.get_rng_state(), random)


def test_a_reordered_copy_is_put_back(tiny_zoo: Zoo) -> None:
    first = next(iter(tiny_zoo.experts.values()))
    structure = structure_of(tiny_zoo.model)
    copy = permute(first, structure, random_permutations(structure, seed=1))
    before, after = _compared(tiny_zoo, first, copy, examples=12, parts=3)
    assert before["distance"] > 0.5
    assert before["barrier"] > 0.01
    assert after["distance"] < 1e-6
    assert abs(after["barrier"]) < 1e-5
    assert after["moved"] > 0.5
    same = list(_compared(tiny_zoo, first, first, examples=12, parts=3))[1]
    assert same["moved"] == 0


def test_all_pairs_are_compared(tiny_zoo: Zoo) -> None:
    tables = rebasin(tiny_zoo, epochs=1, examples=12, parts=3, pictures=40)
    table = pd.DataFrame(tables["pairs"])
    assert table.groupby(["pair", "matched"], sort=False).size().tolist() == [2] * 6
    two = table[table["pair"] != "same task"]
    assert two["heterogeneity"].notna().all()
    distance = table.pivot(index=["pair", "task"], columns="matched", values="distance")
    assert (distance[True] <= distance[False] + 1e-6).all()
