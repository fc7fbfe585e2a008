"""Theorem 4's bounds over draws, and clusters that a sort by a statistic makes."""

import json
from collections.abc import Sequence

import pandas as pd
import pytest
import torch

from mergebook.lab.runner import REGISTERED, Run
from mergebook.sail.measure import clusters as module
from mergebook.sail.measure import risk as risks
from mergebook.sail.measure.clusters import (
    BLOCK,
    MAP,
    clusters,
    described,
    silhouettes,
    split_blocks,
    split_texts,
    text_map,
)
from mergebook.sail.measure.risk import risk
from mergebook.sail.measure.training import Texts
from mergebook.sail.thirds import cut_blocks, held_stretch
from mergebook.suites.data.texts import encode


def test_a_bound_that_tells_something_holds_and_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(risks, "EXAMPLES", (50, 2000))
    monkeypatch.setattr(risks, "DRAWS", 10)
    tables = risk(0)
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    rows = {(row["form"], row["examples"]): row for row in tables["bounds"]}
    assert {key: row["tells"] for key, row in rows.items()} == {
        ("printed", 50): 0,
        ("printed", 2000): 0,
        ("repaired", 50): 0,
        ("repaired", 2000): 1,
    }
    assert rows["printed", 2000]["bound"] > 2, "whatever the number of examples"
    assert rows["repaired", 50]["bound"] > 1 > rows["repaired", 2000]["bound"]
    assert all(row["holds"] == 1 and row["bound"] > row["truth"] for row in rows.values())


def test_blocks_that_differ_in_one_share_are_clusters_by_construction() -> None:
    """As many a as the block has it, else b or c by lot: without the mean only the lot is left."""
    generator = torch.Generator().manual_seed(0)
    shares = torch.rand(90, 1, generator=generator) * 0.8 + 0.1
    draws = torch.rand(2, 90, 1024, generator=generator)
    codes = torch.where(draws[0] < shares, 0, 1 + (draws[1] < 0.5).int())
    text = "".join("abc"[code] for code in codes.flatten().tolist())
    tables = clusters(Texts(0, {"abc": text}))
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    table = pd.DataFrame(tables["separation"])
    auc = table.groupby(["split", "features"])["auc"]
    assert auc.min()["thirds", "histogram"] > 0.95
    assert auc.max()["random"].max() < 0.9
    assert 0.35 < auc.mean()["thirds", "histogram without mean"] < 0.65
    assert clusters(Texts(1, {"abc": text})) != tables


def two_texts() -> dict[str, str]:
    """Both have as many a as c, and so one mean, but only one has b."""
    generator = torch.Generator().manual_seed(0)
    lots = torch.randint(8, (2, 60 * 1024), generator=generator).tolist()
    letters = {"ac": "aaaacccc", "abc": "abbbbbbc"}
    return {
        name: "".join(choice[lot] for lot in row)
        for (name, choice), row in zip(letters.items(), lots, strict=True)
    }


def test_the_map_of_two_texts_has_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAPPED", 30)
    tables = text_map(Texts(0, two_texts()))
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    assert text_map(Texts(0, two_texts())) == tables
    places = pd.DataFrame(tables["map"]).groupby("text")[["x", "y"]]
    assert places.size().to_dict() == {"ac": 30, "abc": 30}
    one, two = places.mean().to_numpy()
    assert ((one - two) ** 2).sum() ** 0.5 > places.std().max(axis=None)


def test_two_texts_are_told_apart_by_more_than_their_mean() -> None:
    tables = clusters(Texts(0, two_texts()), others=["abc"])
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    table = pd.DataFrame(tables["separation"]).set_index(["split", "features"])
    assert table["pair"].unique().tolist() == ["ac, abc", "one half, other half"]
    assert table["auc"]["texts", "histogram without mean"] > 0.9
    assert table["auc"]["random"].between(0.2, 0.8).all()


def test_halves_are_of_both_texts() -> None:
    splits = split_texts(["a", "b"], [torch.zeros(5, 4), torch.zeros(3, 4)], seed=0)
    assert [rows.tolist() for rows in splits["texts"].values()] == [[0, 1, 2, 3, 4], [5, 6, 7]]
    halves = torch.cat([*splits["random"].values()])
    assert halves.sort().values.tolist() == [*range(8)]
    assert halves.tolist() != [*range(8)]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="no suite 'glyphs8', only 'gaussians'"):
        REGISTERED["risk"].load(Run(REGISTERED["risk"], "glyphs8", 0))


def by_hand(points: torch.Tensor, parts: Sequence[torch.Tensor]) -> float:
    """The mean of (b − a)/max(a, b) over the rows that have a part."""
    scores = []
    for own in parts:
        for row in own:
            gaps = (points - points[row]).norm(dim=1)
            inside = float(gaps[own].sum()) / (len(own) - 1)
            outside = min(float(gaps[other].mean()) for other in parts if other is not own)
            scores.append((outside - inside) / max(outside, inside))
    return sum(scores) / len(scores)


@pytest.mark.parametrize(
    ("names", "left_out"), [(["ac", "abc"], 0.2), (["ac"], 0.2), (["ac"], 0.22)]
)
def test_silhouettes_are_those_of_the_blocks_that_have_a_part(
    names: list[str], left_out: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One or two blocks more than a multiple of three belong to no third."""
    texts = {name: two_texts()[name] for name in names}
    source, others = Texts(0, texts), names[1:]
    monkeypatch.setattr(module, "LEFT_OUT", left_out)
    rows = silhouettes(source, others=others)["silhouettes"]
    own = [cut_blocks(encode(text), BLOCK) for text in texts.values()]
    own = [table[~held_stretch(len(table), left_out, 0)] for table in own]
    points = described(torch.cat(own))
    points = points / points.std(0)
    splits = split_texts(names, own, 0) if others else split_blocks(own[0], 0)
    found = {(row["split"], row["space"]): row["silhouette"] for row in rows}
    assert {space for _, space in found} == {"histogram", MAP}
    for split, parts in splits.items():
        expected = by_hand(points, [*parts.values()])
        assert found[split, "histogram"] == pytest.approx(expected)
    if others:
        assert found["texts", "histogram"] > 0.25 > 0.1 > abs(found["random", "histogram"])
