"""What growing keeps: shares that must be 1, learning that must help, and steps that cost as much.

On pictures of three shades, and on a text of random letters.
"""

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from mergebook.lab.results import Tables
from mergebook.lab.runner import REGISTERED, Run
from mergebook.sail.costs import perceptron_flops
from mergebook.sail.measure import kept as module
from mergebook.sail.measure.kept import Ground, kept, kept_scratch, picture_ground, text_ground
from mergebook.sail.measure.training import Texts, by_adam
from mergelib.evaluation.tasks import Split, Task
from mergelib.hashing import stable_seed
from tests.book.sail.measure.test_text import words

QUICK = {"SOURCE_STEPS": 12, "LEARNING": 4, "FURTHER": 2, "MAP_RATES": (1e-3, 1e-2)}
QUICK |= {"RATES": (1e-3,), "SCRATCH": (1e-3, 3e-2), "EVERY": 3}


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK.items():
            patch.setattr(module, name, value)
        yield


def shades() -> Ground:
    """The ResNet, which takes longer, comes before the MLP."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(24) % 3
    pictures = torch.randn(24, 3, 32, 32, generator=generator) + labels[:, None, None, None]
    split = Split(pictures, labels)
    few = split.first(12)
    ground = picture_ground(Task("shades", ("dark", "grey", "bright"), split, few, few), 0)
    return replace(ground, builds=dict(reversed([*ground.builds.items()])))


@pytest.fixture(scope="module")
def tables() -> Tables:
    with pytest.MonkeyPatch.context() as patch:  # counting takes half of the time
        patch.setattr(module, "loop_flops", lambda run, steps: 10**8)
        return kept(shades(), 0)


@pytest.fixture(scope="module")
def alone() -> Tables:
    ground = shades()
    return kept(replace(ground, builds={"MLP": ground.builds["MLP"]}), 0)


def test_what_keeps_the_function_keeps_all(tables: Tables) -> None:
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    rows = pd.DataFrame(tables["starts"])
    keys = ["family", "grown", "width", "depth", "sources", "mode"]
    assert not rows.duplicated(keys).any()
    plain = rows[(rows["sources"] == "one") & (rows["mode"] == "grown")]
    exact = plain["width"].isin(["replicate", "mean", ""]) & plain["depth"].isin(["identity", ""])
    assert plain.loc[exact, "kept"].to_numpy() == pytest.approx(1, abs=1e-3)
    assert exact.sum() == 2 + 2 + 1 + 2, "an MLP has no layers that can be closed"
    assert plain.loc[plain["width"] == "svd_random", "kept"].max() < 0.5
    learned = rows[rows["mode"] != "grown"]
    for _, own in learned.groupby("family"):
        assert own.groupby(["sources", "mode"]).size().to_dict() == {
            ("one", "alone"): 4,
            **{(start, mode): 1 for start in ("own", "shared") for mode in ("alone", "joint")},
        }
    assert set(learned["family"]) == {"MLP", "ResNet"}


def test_learning_lowers_the_loss_that_it_descends(tables: Tables) -> None:
    rows = pd.DataFrame(tables["starts"])
    for _, own in rows.groupby("family"):
        chosen = own[(own["width"] == "svd") & (own["grown"] == "wider")]
        losses = chosen.set_index("mode")["loss"]
        assert losses["alone"] < losses["grown"]
        pairs = own[own["sources"] == "own"].set_index("mode")["loss"]
        assert pairs["joint"] < pairs["grown"]


def test_averages_of_normalised_networks_have_statistics_of_their_own() -> None:
    ground = shades()
    bench = module.Bench(ground, ground.builds["ResNet"], 0)
    one, other = (bench.source("common", part) for part in (0, 1))
    mixed = bench._averaged(one, other.state_dict()).state_dict()
    inputs = ground.parts[2].inputs
    assert len(inputs) <= ground.batch_size, "one batch, whose mean is the statistic"
    images = torch.nn.functional.conv2d(inputs, mixed["0.stem.0.weight"], padding=1)
    torch.testing.assert_close(mixed["0.stem.1.running_mean"], images.mean((0, 2, 3)))
    half = (one.state_dict()["0.stem.0.weight"] + other.state_dict()["0.stem.0.weight"]) / 2
    torch.testing.assert_close(mixed["0.stem.0.weight"], half)


def test_extra_steps_cost_as_much_as_learning(alone: Tables) -> None:
    """Nearly all that maps add to a step is the first layer's product, and its half backwards.

    The source's weights need no gradient. Before the first step and after the last one there are
    three products more.
    """
    rows = pd.DataFrame(alone["trained"])
    row = rows[(rows["grown"] == "wider") & (rows["width"] == "svd")].iloc[0]
    step = perceptron_flops([3072, 96, 96, 96, 3], 8)
    assert row["extra"] == round(row["flops"] / step)
    first = 2 * 2 * 96 * 64 * 3072  # E W of the first layer, and the gradient of E
    assert first < row["flops"] / module.LEARNING - step < 1.6 * first


def test_seeds_repeat_and_differ() -> None:
    ground = text_ground(Texts(0, {"a": words(0) * 20}))
    assert ground.parts[0].inputs.dtype == torch.int64
    assert not torch.equal(ground.judge.inputs, ground.choose.inputs)
    bench = module.Bench(ground, ground.builds["GPT"], 0)
    source = bench.source("common", 0)
    benches = (replace(bench, seed=seed) for seed in (0, 0, 1))
    found = [
        {width: each.loss(model) for width, _, model in each.ways(source, "wider")}
        for each in benches
    ]
    assert found[0] == found[1] != found[2]
    assert {*found[0]} == {"mean", "svd", "svd_random", "interpolate"}, "48 is no multiple of 32"


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="studies of growth take no model, got 'mlp'"):
        module.ground_of(Run(REGISTERED["kept"], "glyphs8", 0, model="mlp"))


def test_a_family_by_itself_is_as_among_all(tables: Tables, alone: Tables) -> None:
    """The second one, which follows the other among all."""
    assert [*shades().builds] == ["ResNet", "MLP"]
    assert alone["starts"]
    assert alone["starts"] == [row for row in tables["starts"] if row["family"] == "MLP"]


def test_training_that_harms_is_stopped_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = shades()
    monkeypatch.setattr(module, "FURTHER", 4)
    monkeypatch.setattr(module, "RATES", (1.0,))
    bench = module.Bench(ground, ground.builds["MLP"], 0)
    model = bench.source("common", 0)
    start = bench.loss(model)
    assert bench._after(model, {2, 8}) == {2: pytest.approx(start), 8: pytest.approx(start)}
    monkeypatch.setattr(module, "RATES", (1.0, 1e-3))
    assert bench._after(model, {8})[8] < start


def test_training_from_scratch_is_measured_by_the_same_fraction(tables: Tables) -> None:
    """Two losses and their fractions give what a fraction is of: these are the same in both."""
    found = kept_scratch(shades(), 0, steps=6)["curve"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    curve, starts = pd.DataFrame(found), pd.DataFrame(tables["starts"])
    assert curve["step"].tolist() == 2 * 3 * [3, 6]
    for (family, grown), rows in curve.groupby(["family", "grown"]):
        own = starts[(starts["family"] == family) & (starts["grown"] == grown)]
        slope, offset = np.polyfit(own["loss"], own["kept"], 1)
        assert rows["kept"].to_numpy() == pytest.approx(
            slope * rows["loss"].to_numpy() + offset, abs=1e-3
        )
    ground = shades()
    bench = module.Bench(ground, ground.builds["MLP"], 0)
    runs = {
        rate: by_adam(
            bench.fresh("wider"),
            ground.parts[2],
            [6],
            rate,
            batch_size=ground.batch_size,
            seed=stable_seed("order", 0),
        )[6]
        for rate in module.SCRATCH
    }
    losses = {}
    for rate, state in runs.items():
        net = bench.fresh("wider")
        net.load_state_dict(state)
        losses[rate] = bench.loss(net, ground.choose)
    last = curve[(curve["family"] == "MLP") & (curve["grown"] == "wider")].iloc[-1]
    assert last["rate"] == min(losses, key=lambda rate: losses[rate])
    assert last["loss"] == pytest.approx(min(losses.values())), "choose and judge are one here"
