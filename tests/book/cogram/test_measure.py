"""Studies of CoGraM on pairs of networks: what they draw, and that a killed run resumes."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mergebook.cogram import measure as studies
from mergebook.cogram import pairs
from mergebook.cogram.measure import CHOSEN, feature_scale, fusion, thresholds, tuning
from mergebook.cogram.pairs import digit_pair, draw_pairs, make_pair, pair_of, shifted
from mergebook.cogram.synthetic import synthetic_pair, train_pair
from mergebook.lab.measuring import Measurement, measure
from mergebook.lab.results import load_result
from mergebook.lab.runner import Study
from mergebook.suites.data.sampling import stratified
from mergebook.suites.types import LabelledSet
from mergelib.evaluation.tasks import Split
from mergelib.hashing import stable_seed


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs that train in no time."""
    sizes: dict[str, Any] = {"classes": 4, "dimensions": 6, "train_size": 80, "validation_size": 40}

    def draw(seed: int, heterogeneous: bool) -> Any:
        return synthetic_pair(seed, heterogeneous=heterogeneous, test_size=40, **sizes)

    monkeypatch.setitem(pairs.SOURCES, "synthetic", draw)
    train = partial(train_pair, hidden=5, epochs=2)
    monkeypatch.setattr(pairs, "train_pair", train)
    monkeypatch.setattr(pairs, "FEW", 20)


@pytest.fixture
def drawn(small: None, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Studies see every third pair, one of either kind of data; the list fills with all of them."""
    every, seen = draw_pairs, list[dict[str, Any]]()

    def third(*given: Any, **options: Any) -> Iterator[Any]:
        for place, (about, pair) in enumerate(every(*given, **options)):
            seen.append(about)
            if place % 3 == 0:
                yield about, pair

    monkeypatch.setattr(studies, "draw_pairs", third)
    return seen


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of digits, each picture all of one grey that tells its number in the file."""

    def load(name: str) -> LabelledSet:
        labels = torch.arange(4000) % 10
        values = (torch.arange(4000) % 251).to(torch.uint8)
        images = values[:, None, None, None].expand(-1, 3, 32, 32)
        first = 0 if name == "mnist" else 100
        train, test = Split(images, labels), Split(images // 2 + first, labels)
        return LabelledSet(name, tuple("0123456789"), train, test, name)

    monkeypatch.setattr(pairs, "load_arrays", load)


def test_fusion_judges_every_setting_of_every_pair(drawn: list[dict[str, Any]]) -> None:
    tables = fusion(3)
    assert len({*map(str, drawn)}) == len(drawn) == 6
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    table, decisions = (pd.DataFrame(tables[name]) for name in ("test", "decisions"))
    refined = decisions["case"] != "merge"
    assert refined.any()
    assert (decisions["after"].isna() == refined).all(), (
        "a layer left to its neurons has no mixture"
    )
    cases = table.groupby(["data", "start"])
    assert len(cases) == 2
    assert cases.size().nunique() == 1
    assert table["accuracy"].between(0, 1).all()
    plain = table[table["method"] != "cogram"]
    assert set(plain["method"]) == {"a", "b", "average", "fisher", "better", "ensemble"}
    line = plain.set_index(["data", "start", "method"])["toward_a"]
    for case in table[["data", "start"]].drop_duplicates().itertuples(index=False, name=None):
        assert line[(*case, "a")] == pytest.approx(1)
        assert line[(*case, "b")] == pytest.approx(0, abs=1e-6)
        assert line[(*case, "average")] == pytest.approx(0.5)
    merged = table[table["method"] == "cogram"]
    settings = merged.groupby(["data", "start", "levels", "prototypes"])["iterations"].max()
    counts = settings.groupby(["levels", "prototypes"]).unique().map(list).to_dict()
    assert len(counts) == 2 * 5 + 3 + 4 + 1
    assert counts["layer", "geometric"] == counts["all weights", "arithmetic"] == [3]
    assert counts["layer", "kmeans"] == counts["layer, shrunk", "arithmetic"] == [1]
    assert table["loss"].between(0, 20).all()
    rolled_back = decisions[decisions["levels"] == "layer, rolled back"]
    assert len(rolled_back) == 2 * 2, "one for each layer"
    kept = rolled_back["after"] < rolled_back["before"]
    assert (kept == rolled_back["accepted"]).all()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("sharpness", [1.0, 300.0])
def test_an_ensemble_of_networks_that_are_sure_has_a_finite_loss(
    sharpness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair(0, "synthetic", "homogeneous", shared=False)
    last = "2.weight"
    states = [{**state, last: sharpness * state[last]} for state in (pair.a, pair.b)]
    pair = replace(pair, a=states[0], b=states[1])
    monkeypatch.setattr(studies, "draw_pairs", lambda *_: [({"data": "x", "start": "y"}, pair)])
    table = pd.DataFrame(fusion(0)["test"]).set_index("method")
    found = table.loc["ensemble"]
    chances = torch.stack([pair.outputs(state).double().softmax(1) for state in states]).mean(0)
    logs = chances[range(40), pair.data.test.labels].log()
    assert np.isfinite(found["loss"])
    assert found["loss"] == pytest.approx(-logs.mean().item(), rel=1e-4)
    near = chances > chances.amax(1, keepdim=True) - 1e-6  # sure networks tie
    mine = near[range(40), pair.data.test.labels]
    alone = mine & (near.sum(1) == 1)
    assert alone.double().mean() - 1e-6 <= found["accuracy"] <= mine.double().mean() + 1e-6


def test_tuning_judges_all_networks_on_both_halves(drawn: list[dict[str, Any]]) -> None:
    tables = tuning(3)
    assert len(drawn) == 4
    test = pd.DataFrame(tables["test"])
    assert len(test) == 2 * 5 * 3
    halves = test[["accuracy_a", "accuracy_b"]].mean(axis=1)
    np.testing.assert_allclose(halves, test["accuracy"], atol=1e-6)
    ways = test.pivot_table(
        index=["data", "start", "method"], columns="training", values="accuracy"
    )
    assert (ways["kickoff"] != ways["fine-tuning"]).any()


@pytest.mark.usefixtures("small")
def test_positive_features_are_exponentials_of_the_same_examples() -> None:
    """So that the paper's prototype of a class is the exponential of half its mean."""
    plain, moved = (
        make_pair(0, source, "heterogeneous", shared=False)
        for source in ("synthetic", "synthetic_positive")
    )
    for name in ("a", "b", "validation", "test"):
        before, after = (getattr(pair.data, name) for pair in (plain, moved))
        torch.testing.assert_close(2 * after.inputs.log(), before.inputs)
        assert torch.equal(after.labels, before.labels)
    means = moved.prototypes("geometric")["all"][0].log() * 2
    torch.testing.assert_close(means, plain.prototypes("arithmetic")["all"][0], atol=1e-3, rtol=0)
    assert not torch.equal(moved.a["0.weight"], plain.a["0.weight"]), "trained on what was changed"


def test_shifted_features_have_another_mean_and_standard_deviation() -> None:
    data = synthetic_pair(0, heterogeneous=True, train_size=200)
    moved = shifted(data, 2.0, 3.0)
    before, after = (torch.cat([part.a.inputs, part.b.inputs]) for part in (data, moved))
    torch.testing.assert_close(after.std(), 3 * before.std())
    torch.testing.assert_close(after.mean(), 3 * (before.mean() + 2 * before.std()))
    for name in ("validation", "test"):  # by the training features' deviation, not by their own
        held_out = getattr(moved, name).inputs, getattr(data, name).inputs
        torch.testing.assert_close(
            held_out[0] / 3 - held_out[1], 0 * held_out[1] + 2 * before.std()
        )
    same = shifted(data, 0.0, 1.0)
    assert torch.equal(same.test.inputs, data.test.inputs)


@pytest.mark.usefixtures("drawn")
def test_the_map_begins_where_fusion_is() -> None:
    """Without offset and scale, its networks and CoGraM's at the paper's steepness are fusion's."""
    tables = feature_scale(3, offsets=[0.0, 3.0], scales=[1.0], steepnesses=[5.5, 20.0])
    table = pd.DataFrame(tables["test"])
    assert table.groupby(["data", "start", "offset"]).size().tolist() == [5 + 2 * (3 + 1)] * 4
    keys = ["data", "start", "method", "prototypes", "iterations"]
    here = table[(table["offset"] == 0) & (table["steepness"] != 20)].set_index(keys)["accuracy"]
    rows = pd.DataFrame(fusion(3, kinds=["homogeneous", "heterogeneous"])["test"])
    assert set(rows["data"]) == {"homogeneous", "heterogeneous"}
    layers = rows[rows["levels"].isna() | (rows["levels"] == "layer")]
    there = layers.set_index(keys)["accuracy"]
    assert len(here) == 2 * (5 + 6)
    assert (there.loc[here.index] == here).all()
    means = table[table["method"] == "cogram"].groupby("offset")["accuracy"].mean()
    assert means[0] != means[3]


@pytest.mark.usefixtures("small")
def test_a_killed_run_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one pair of networks a seed."""
    every, asked = draw_pairs, []
    monkeypatch.setattr(studies, "draw_pairs", lambda *given: islice(every(*given), 1))

    def killed(seed: int, source: str) -> Any:
        asked.append(seed)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return thresholds(seed, source=source)

    study = Study(killed, pair_of)
    with pytest.raises(KeyboardInterrupt):
        measure(Measurement(study, "synthetic", range(2)))
    record = measure(Measurement(study, "synthetic", range(2)))
    assert asked == [0, 1, 1]
    table = pd.DataFrame(record["validation"])
    assert table.groupby("seed").size().nunique() == 1
    assert record["provenance"]["seeds"] == [0, 1]
    assert record["provenance"]["suite"] == "synthetic"
    assert record["provenance"]["sources"] == {"0": {}, "1": {}}
    again = measure(Measurement(thresholds, "synthetic", range(2)))
    assert again["validation"] == record["validation"]


@pytest.mark.usefixtures("pictures")
def test_digit_pairs_share_no_picture() -> None:
    pair = digit_pair(0, False)
    assert pair.a.inputs.shape == pair.b.inputs.shape == (1000, 256)
    assert len(pair.validation) == 1000
    assert len(pair.test) == 2000
    assert pair.a.inputs.min() >= -1
    assert pair.a.inputs.max() <= 1
    rows = studies_rows("mnist", 0)
    first, second = rows.chunk(2)
    assert not set(first.tolist()) & set(second.tolist())
    grey = (first[:1000] % 251).float() / 127.5 - 1
    torch.testing.assert_close(pair.a.inputs[:, 0], grey)
    torch.testing.assert_close(pair.a.labels, first[:1000] % 10)
    other = digit_pair(0, True)
    torch.testing.assert_close(other.a.inputs, pair.a.inputs)
    assert not torch.equal(other.test.inputs[1000:], pair.test.inputs[1000:])
    torch.testing.assert_close(other.test.inputs[:1000], pair.test.inputs[:1000])


def studies_rows(name: str, seed: int) -> torch.Tensor:
    """Rows of the training file that the two parties get, validation data included."""
    generator = torch.Generator().manual_seed(stable_seed("digits", name, seed))
    return stratified(torch.arange(4000) % 10, 3000, generator)


@pytest.mark.parametrize("source", CHOSEN)
def test_thresholds_are_the_best_on_validation_data(source: str) -> None:
    record = load_result(f"{source}-thresholds")
    table = pd.DataFrame(record["validation"])
    table = table[
        (table["levels"] == "layer, neuron, weight") & (table["prototypes"] == "arithmetic")
    ]
    ends = ["layer_low", "layer_high", "neuron_low", "neuron_high"]
    means = table.groupby(ends)["accuracy"].mean()
    chosen = CHOSEN[source]
    assert means[(*chosen["layer"], *chosen["neuron"])] == pytest.approx(means.max(), abs=1e-9)
    tested = load_result(f"{source}-fusion")["provenance"]["seeds"]
    assert not set(record["provenance"]["seeds"]) & set(tested)


def test_what_pairs_do_not_take_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"unknown source 'vision8'; known: synthetic, synthetic_positive, digits"
    ):
        measure(Measurement(fusion, "vision8", range(2)))
    with pytest.raises(ValueError, match=r"pairs of networks take no profile, got 'smoke'"):
        measure(Measurement(fusion, "synthetic", range(2), options={"profile": "smoke"}))
    with pytest.raises(ValueError, match=r"tuning has no setting 'rate'; it has: learning_rate"):
        measure(Measurement(tuning, "synthetic", range(2), settings={"rate": 1}))
