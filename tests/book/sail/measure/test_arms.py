"""Starts compared: what keeps the function begins at one loss, and every start pays for itself.

On texts of random letters, and on pictures of six shades.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from benchmarks import starts
from mergebook.lab.results import Tables
from mergebook.lab.runner import REGISTERED, Run
from mergebook.sail.measure import arms as module
from mergebook.sail.measure import grounds, sources, transfers
from mergebook.sail.measure.arms import arms, starts_tuning
from mergebook.sail.measure.grounds import picture_transfer, text_transfer, transfer_of
from mergebook.sail.measure.rates import Rates, usual_rates
from mergebook.sail.measure.sources import ARMS, Sources
from mergebook.sail.measure.training import State, Texts
from mergebook.sail.measure.transfers import TARGET, Schedule, Transfer
from mergebook.suites.families.pictures import rendered_sets
from mergebook.suites.models import GPT
from mergebook.suites.types import LabelledSet
from mergelib.evaluation.tasks import Split, Task
from mergelib.statedict import lerp
from tests.book.sail.measure.test_text import words

FAMILY = "mergebook.suites.families.pictures"
GPTS = {"small": (16, 2, 2), "half wider": (24, 3, 3), "twice": (32, 3, 4)}
RESNETS = {
    "small": (8, 1, 1, 1),
    "half wider": (12, 2, 2, 2),
    "deeper": (8, 2, 2, 2),
    "deepest": (8, 3, 4, 3),
}


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for all tests here, so that sources are trained once; small networks, few steps."""
    yield from quick(tmp_path_factory.mktemp("sources"))


def quick(cache: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MERGELIB_CACHE", str(cache))
        patch.delenv("MERGELIB_DATA", raising=False)
        patch.setattr(sources, "LEARNING", 2)
        patch.setattr(module, "EVERY", 2)
        patch.setitem(grounds.GPTS, "default", GPTS)
        patch.setattr(grounds, "RESNETS", RESNETS)
        yield cache


@pytest.fixture(scope="module")
def text() -> Transfer:
    made = text_transfer(Texts(0, {"a": words(0) * 10, "b": words(1) * 10}))
    return replace(judged_by(made, 8), schedule=Schedule(8, 3e-3, 8))


@pytest.fixture(scope="module")
def run(text: Transfer) -> tuple[Tables, list[State]]:
    """The tables of all starts, and the weights that each has after two steps."""
    seen: list[State] = []

    class Watched(Transfer):
        def judged(self, net: torch.nn.Module, state: Mapping[str, Tensor]) -> dict[str, float]:
            seen.append(dict(state))
            return super().judged(net, state)

    watched = Watched(**{each.name: getattr(text, each.name) for each in fields(text)})
    made = arms(watched, start="own", size="twice", steps=2)
    return made, seen[1::2]


@pytest.fixture(scope="module")
def tables(run: tuple[Tables, list[State]]) -> Tables:
    return run[0]


@pytest.fixture(scope="module")
def pictures() -> Transfer:
    return few_pictures()


def few_pictures() -> Transfer:
    """Two pictures of each shade choose, two judge, and there are five to learn from."""
    made = picture_transfer(*shades(30), 0)
    return replace(judged_by(made, 12), schedule=Schedule(3, 3e-3, 8))


def judged_by(made: Transfer, count: int) -> Transfer:
    """A transfer whose networks are judged on the first few examples."""
    return replace(made, choose=made.choose.first(count), judge=made.judge.first(count))


def shades(count: int = 48) -> tuple[Task, list[LabelledSet]]:
    labels = torch.arange(count) % 6
    inputs = (40 * labels[:, None, None, None]).expand(count, 3, 32, 32).to(torch.uint8)
    split, names = Split(inputs, labels), tuple("abcdef")
    task = Task("shades", names, split, split, split, transform=lambda rows: rows / 100 - 1)
    return task, [LabelledSet("known", names, split, split, "0")]


def loss_of(transfer: Transfer, body: torch.nn.Module, state: dict[str, Tensor]) -> float:
    return transfer.judged(body, state)["judge"]


def test_every_start_of_a_text(text: Transfer, tables: Tables) -> None:
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    curves = pd.DataFrame(tables["curves"])
    assert [*curves["arm"].unique()] == [*ARMS]
    assert curves.groupby("arm")["step"].apply(list).map(tuple).unique().tolist() == [(0, 2)]
    begun = curves[curves["step"] == 0].set_index("arm")["judge"]
    same = ["own size", "Net2Net"]
    assert begun[same].to_numpy() == pytest.approx(begun["nearest source"], abs=1e-4)
    assert begun["SAIL, distilled"] == begun["SAIL"] != begun["SAIL, matched"]
    assert len({*begun[["stack", "bert2BERT", "LiGO", "LiGO, published"]]}) == 4
    pair = Sources(text, "own", "twice")
    one, two = (body.state_dict() for body in pair.nets)
    averages = {"uniform": 0.5, "SAIL": pair.distances["gamma"]}
    assert 0 < averages["SAIL"] < 1 != averages["SAIL"]
    for name, gamma in averages.items():
        small = loss_of(text, pair.nets[0], lerp(two, one, gamma))
        assert begun[name] == pytest.approx(small, abs=1e-4), "growing keeps the average's function"
    after = curves[curves["step"] == 2].set_index("arm")["judge"]
    assert after["SAIL, distilled"] != after["SAIL"]


@pytest.mark.parametrize("name", [name for name, arm in ARMS.items() if arm.weights])
def test_no_start_has_units_that_stay_copies(run: tuple[Tables, list[State]], name: str) -> None:
    """Else a larger network has the capacity of its source, for ever."""
    state = dict(zip(ARMS, run[1], strict=True))[name]
    for key in ("token_embed.weight", "blocks.0.fc2.weight", "blocks.1.attn.proj.weight"):
        assert state[key].unique(dim=1).shape == state[key].shape, key


def test_noise_parts_copies(text: Transfer) -> None:
    """It cancels at the start, and training goes another way."""
    curves = []
    for noise in (0.0, 0.5):
        tables = arms(text, size="twice", only=["Net2Net"], steps=2, noise=noise)
        curves.append([row["judge"] for row in tables["curves"]])
    (plain, trained), (noisy, parted) = curves
    assert noisy == pytest.approx(plain, abs=2e-6)
    assert abs(parted - trained) > 2e-5


def test_every_start_pays(tables: Tables) -> None:
    costs = pd.DataFrame(tables["costs"]).set_index("arm")
    flops = {str(row["arm"]): int(row["source_flops"]) for row in tables["costs"]}
    assert (
        flops["scratch"] == costs["added_flops"]["scratch"] == costs["added_flops"]["uniform"] == 0
    )
    assert (costs["source_flops"] > 0).sum() == len(costs) - 3
    assert flops["SAIL"] == 2 * flops["LiGO"]
    added, step = costs["added_flops"], costs["step_flops"]
    assert added["Net2Net"] == added["nearest source"] < added["greedy soup"]
    assert step["own size"] < step["SAIL"] == step["LiGO"]
    assert added["LiGO"] - added["stack"] > 2 * step["stack"], "two steps of learning maps"
    assert added["SAIL, learned"] > added["LiGO"], "two sources' maps"
    assert added["bert2BERT"] == added["stack"] < added["LiGO, published"] - 2 * step["stack"]
    assert added["SAIL, distilled"] > added["SAIL"]


def test_the_farther_source_is_the_other_one(text: Transfer, pictures: Transfer) -> None:
    for transfer, size in ((text, "twice"), (pictures, "deeper")):
        pair = Sources(transfer, "shared", size)
        weights = [pair._weights(ARMS[f"{name} source"])[0] for name in ("nearest", "farther")]
        assert weights[0][pair.nearest] == 1
        assert weights[1] == weights[0][::-1]
        assert pair.distances["first" if pair.nearest == 0 else "second"] == min(
            pair.distances["first"], pair.distances["second"]
        )


def test_a_soup_is_no_worse_than_its_members(text: Transfer) -> None:
    pair = Sources(text, "own", "twice")
    (gammas, _) = pair._greedy(ARMS["greedy soup"])
    assert sum(gammas) == 1
    net = text.network("twice", TARGET)
    states = pair._grown(net, ARMS["greedy soup"])
    states.append(lerp(states[1], states[0], gammas[0]))
    right = [
        (text.outputs(net, state, text.choose).argmax(-1) == text.choose.labels).double().mean()
        for state in states
    ]
    assert right[2] >= max(right[:2])


def test_perplexity_is_one_over_the_mean_probability_of_what_comes_next(text: Transfer) -> None:
    """The geometric mean, by a loop over windows and tokens; chapters take exp of the loss."""
    net = text.network("small", TARGET).eval()
    logs = []
    with torch.no_grad():
        for window, labels in zip(text.judge.inputs, text.judge.labels, strict=True):
            chances = net(text.transform(window[None]))[0].softmax(-1)
            logs += [math.log(row[label]) for row, label in zip(chances, labels, strict=True)]
    perplexity = math.exp(-sum(logs) / len(logs))
    assert math.exp(loss_of(text, net, net.state_dict())) == pytest.approx(perplexity, rel=1e-5)


def test_half_of_a_distilled_label_is_the_truth(text: Transfer) -> None:
    split, flops = Sources(text, "shared", "twice")._taught()
    data = text.parts[TARGET]
    assert torch.equal(split.inputs, data.inputs)
    assert split.labels.sum(-1).flatten().tolist() == pytest.approx([1.0] * data.labels.numel())
    told = split.labels.gather(-1, data.labels[..., None])
    assert (told >= 0.5).all()
    assert flops == len(data) * text.forward_flops(text.network("small", TARGET), 1)


def test_starts_of_pictures(pictures: Transfer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources know three classes each; all arms have the same new head."""
    monkeypatch.setattr(sources, "loop_flops", lambda run, steps: 0)
    known = [split.inputs[:, 0, 0, 0].unique() for split in pictures.parts[:2]]
    assert sorted(torch.cat(known).tolist()) == [0, 40, 80, 120, 160, 200]
    assert all(set(split.labels.tolist()) == {0, 1, 2} for split in pictures.parts[:2])
    rates = {name: [3e-3, 1e-2] for name in ARMS}
    tables = arms(pictures, start="own", size="half wider", steps=2, rates=rates)
    found = pd.DataFrame(tables["curves"])["arm"].unique()
    assert {*ARMS} - {*found} == {
        *("stack", "bert2BERT", "LiGO, published"),
        *("greedy soup", "SAIL, distilled", "scratch, tuned"),
    }
    pair = Sources(pictures, "own", "half wider")
    assert all(pair.rates(name).training for name in pair.allowed())
    assert all(pair.rates(name).maps for name in ("LiGO", "SAIL, learned"))
    starts = {
        name: pair.start(ARMS[name], Rates(1e-3)) for name in ("scratch", "nearest source", "SAIL")
    }
    heads = [start.net.state_dict()["1.weight"] for start in starts.values()]
    assert torch.equal(heads[0], heads[1])
    assert torch.equal(heads[0], heads[2])
    assert 0 < pair.distances["gamma"] < 1
    plain = starts["nearest source"].added
    assert starts["SAIL"].added - plain == pictures.forward_flops(
        starts["SAIL"].net, len(pictures.parts[TARGET])
    ), "statistics measured anew"


def test_halves_that_are_alike_are_told(pictures: Transfer) -> None:
    """A part is told from one far away, by no deal of 199, and not from itself."""
    first, _, target = pictures.described
    for shift, low, high in ((9, 0, 1 / 200), (0, 0.9, 1)):
        moved = replace(pictures, described=[first, first + shift, target])
        tables = arms(moved, size="deeper", only=["scratch"], steps=0)
        assert [row["step"] for row in tables["curves"]] == [0]
        assert low < tables["distances"][0]["p"] <= high


def test_the_full_profile_has_sizes_of_its_own() -> None:
    gpt = text_transfer(Texts(0, {"a": words(0) * 10, "b": words(1) * 10}, "full"))
    net = gpt.network("twice", TARGET)
    assert isinstance(net, GPT)
    assert (net.width, len(net.blocks), gpt.schedule.batch_size) == (384, 6, 64)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_starts_on_cuda(
    text: Transfer, pictures: Transfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam's first steps have the sign of each gradient, so that noise of a device shows later."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    for transfer, size in ((text, "twice"), (pictures, "deeper")):
        names = ["scratch", "nearest source", "SAIL", "SAIL, matched"]
        near, own = (
            pd.DataFrame(
                arms(replace(transfer, device=device), start="own", size=size, only=names, steps=2)[
                    "curves"
                ]
            ).set_index(["step", "arm"])["judge"]
            for device in ("cuda", "cpu")
        )
        gaps = (near - own).abs().groupby("step").max()
        assert gaps[0] < 1e-2
        assert gaps[2] < 0.1


def test_tuning_tries_every_rate_on_seeds_of_its_own(text: Transfer, pictures: Transfer) -> None:
    with pytest.raises(ValueError, match="seed 0 is used by other studies: tune on seeds"):
        starts_tuning(text, steps=2)
    other = replace(text, seed=1000)
    grid = [[1e-3, 0, 1, 1], [3e-3, 0, 5, 1]]
    rows = starts_tuning(other, size="twice", only=["scratch, tuned"], steps=20, rates=grid)
    curves = pd.DataFrame(rows["curves"])
    assert curves.groupby("training")["step"].agg(list).tolist() == 2 * [
        [*range(0, 21, module.EVERY)]
    ]
    assert curves[["training", "embeddings"]].drop_duplicates().to_numpy().tolist() == [
        [1e-3, 1],
        [3e-3, 5],
    ]
    usual = arms(other, size="twice", only=["scratch"], steps=2, rates={"scratch": [1e-3]})
    assert usual["curves"][0]["judge"] == curves["judge"][0], "a factor of 1 changes nothing"
    assert len({*curves.loc[curves["step"] == 0, "judge"]}) == 2
    with pytest.raises(ValueError, match="'scratch, tuned' does not fit: only the scale of a GPT"):
        starts_tuning(replace(pictures, seed=1000), only=["scratch, tuned"], size="deeper", steps=2)


def test_goals_need_no_sources(pictures: Transfer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("a source was trained")

    monkeypatch.setattr(Transfer, "source", refused)
    rows = starts_tuning(replace(pictures, seed=1000), size="deeper", steps=2)["curves"]
    assert {row["arm"] for row in rows} == {"scratch"}
    assert rows[0]["training"] == usual_rates(pictures.name, "shared", "deeper", "scratch").training


@pytest.mark.parametrize("size", ["half wider", "twice"])
def test_random_weights_of_the_grown_scale_know_nothing(text: Transfer, size: str) -> None:
    """Every tensor keeps its mean and deviation, within what chance allows, and nothing else."""
    pair = Sources(text, "shared", size)
    grown, drawn = (
        pair.start(ARMS[name], Rates(1e-3)).net.state_dict()
        for name in ("SAIL", "random, same scale")
    )
    for key, value in grown.items():
        other, spread = drawn[key], float(value.std(correction=0))
        error = 5 * spread / value.numel() ** 0.5
        assert float(other.mean() - value.mean()) == pytest.approx(0, abs=error + 1e-7), key
        assert float(other.std(correction=0)) == pytest.approx(spread, abs=error + 1e-7), key
        if value.numel() > 2000 and spread:
            pairs = torch.stack([value.flatten(), other.flatten()])
            assert abs(float(torch.corrcoef(pairs)[0, 1])) < 0.1, key
    again = pair.start(ARMS["random, same scale"], Rates(1e-3)).net.state_dict()
    assert all(torch.equal(again[key], value) for key, value in drawn.items())


def test_every_arm_has_one_row_of_rates_where_it_is_used() -> None:
    """The last row that fits counts."""
    assert usual_rates("GPT", "own", "twice", "SAIL") == Rates(3e-3)
    assert usual_rates("GPT", "shared", "twice", "SAIL") == Rates(1e-3)
    halves = ("ResNet, halves", "half wider")
    assert usual_rates(halves[0], "shared", halves[1], "scratch") == Rates(1e-3)
    assert usual_rates(halves[0], "shared", halves[1], "SAIL") == Rates(3e-3)
    assert usual_rates(halves[0], "own", halves[1], "uniform") == Rates(3e-3)
    assert usual_rates(halves[0], "shared", halves[1], "uniform") == Rates(1e-3)
    with pytest.raises(ValueError, match="no rates of 'SAIL' are known for ResNets, deeper"):
        usual_rates("ResNets", "shared", "deeper", "SAIL")


def test_what_is_refused(
    text: Transfer, pictures: Transfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(words: str, transfer: Transfer, **settings: Any) -> None:
        with pytest.raises(ValueError, match=words):
            arms(transfer, steps=2, **settings)

    refused("start is 'other', expected 'shared' or 'own'", text, start="other")
    refused("size is 'small', expected 'half wider' or 'twice'", text, size="small")
    refused("arm is 'best', expected 'scratch'", text, only=["best"])
    refused("'Net2Net' does not fit: a layer norm", text, only=["Net2Net"])
    refused("'SAIL, matched' does not fit: sources that share", text, only=["SAIL, matched"])
    unknown = replace(pictures, name="other")
    refused(
        "no rates of 'SAIL' are known for other, half wider, shared start: pass",
        unknown,
        only=["SAIL"],
    )
    for name in ("stack", "bert2BERT", "LiGO, published"):
        refused(f"'{name}' does not fit: a stage has no block", pictures, only=[name])
    for size, name in (("deeper", "LiGO"), ("deepest", "SAIL, learned")):
        refused(f"'{name}' does not fit: nothing to learn", pictures, only=[name], size=size)
    study = REGISTERED["arms"]
    usual, byol = (study.complete(changes) for changes in ({}, {"learning": "byol"}))
    with pytest.raises(ValueError, match="studies of starts take no model, got 'mlp'"):
        transfer_of(Run(study, "glyphs8", 0, model="mlp", settings=usual))
    with pytest.raises(ValueError, match="learning is 'byol', expected 'labels'"):
        transfer_of(Run(study, "tinyshakespeare", 0, settings=byol))
    for suite in ("tinyshakespeare", "glyphs8"):
        with pytest.raises(ValueError, match="known is 'halves', expected ''"):
            transfer_of(Run(study, suite, 0, settings=study.complete({"known": "halves"})))
    monkeypatch.setattr(f"{FAMILY}.pretraining_sets", lambda: shades()[1])
    grounds._known.cache_clear()
    with pytest.raises(ValueError, match="no file of tiny_imagenet32 in the data folder"):
        transfer_of(Run(study, "vision8", 0, settings=usual))


def test_a_run_tells_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"train_size": 60, "validation_size": 20, "test_size": 20}
    monkeypatch.setattr(grounds, "PICTURES", few)
    monkeypatch.setattr(f"{FAMILY}.rendered_sets", partial(rendered_sets, 4, 1))
    grounds._known.cache_clear()
    complete = REGISTERED["arms"].complete({})
    loaded = transfer_of(Run(REGISTERED["arms"], "glyphs8", 0, settings=complete))
    (transfer,) = loaded.arguments
    assert transfer.name == "ResNet, halves"
    assert [*loaded.inputs["sources"]][-1] == "pretraining/glyphs"
    assert len(transfer.parts[TARGET].labels.unique()) > 2


def test_classes_that_are_held_out_are_known_to_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grounds, "HELD", {"classes": 2, "train": 5, "validation": 2})
    (known,) = shades()[1]
    rest, task = grounds._apart(known, 0)
    assert {*rest.class_names, *task.class_names} == {*"abcdef"}
    assert [len(split) for split in (task.train, task.validation, task.test)] == [10, 4, 2 + 16]
    transfer = picture_transfer(task, [rest], 0)
    seen = [{*split.inputs[:, 0, 0, 0].tolist()} for split in transfer.parts]
    assert [len(values) for values in seen] == [2, 2, 2]
    assert set.union(*seen) == {0, 40, 80, 120, 160, 200}, "no class is in two parts"
    splits = {rest.class_names: [rest.train, rest.test]}
    splits[task.class_names] = [task.train, task.validation, task.test]
    for names, split in ((names, split) for names, group in splits.items() for split in group):
        told = {names[label] for label in split.labels.tolist()}
        values = {"abcdef"[value // 40] for value in split.inputs[:, 0, 0, 0].tolist()}
        assert told == values, "labels are those of their pictures"
    assert {*grounds._apart(known, 1)[1].class_names} != {*task.class_names}


def test_random_weights_as_the_papers_draw_them(text: Transfer, pictures: Transfer) -> None:
    """He's √(2 / fan out) for convolutions; over √(2L) for both last weights of L blocks."""
    ways = (ARMS["scratch"], ARMS["scratch, published"])
    pair = Sources(text, "shared", "twice")
    plain, drawn = (pair.start(arm, Rates(1e-3)).net.state_dict() for arm in ways)
    for key, value in plain.items():
        last = key.endswith(("attn.proj.weight", "fc2.weight"))
        assert torch.allclose(drawn[key], value / 6**0.5 if last else value), key
    pair = Sources(pictures, "shared", "half wider")
    plain, drawn = (pair.start(arm, Rates(1e-3)).net.state_dict() for arm in ways)
    assert torch.equal(drawn["1.weight"], plain["1.weight"]), "all starts have one head"
    for key, value in drawn.items():
        if value.ndim == 4 and len(value) >= 48:
            wanted = (2 / (len(value) * value[0, 0].numel())) ** 0.5
            assert float(value.std()) == pytest.approx(wanted, rel=0.05), key
            assert float(plain[key].std()) < 0.6 * wanted, key


@pytest.fixture(params=["labels, probed", "byol"])
def probed(request: pytest.FixtureRequest) -> Transfer:
    task, known = shades()
    made = picture_transfer(task, known, 0, request.param)
    return replace(made, schedule=Schedule(3, 3e-3, 8))


def test_features_are_judged_by_a_probe(probed: Transfer) -> None:
    """Shades are told apart by any features, whatever the head says, once statistics are right."""
    net = probed.network("deeper", TARGET)
    spoiled = {**net.state_dict(), "1.weight": torch.zeros(6, 32)}
    told, also = (probed.judged(net, state) for state in (net.state_dict(), spoiled))
    assert told == also
    assert told["accuracy"] > 0.9
    mean = {key: value + 5 for key, value in net.state_dict().items() if "running_mean" in key}
    assert probed.judged(net, {**net.state_dict(), **mean}) == pytest.approx(told)


def test_learning_with_and_without_labels(probed: Transfer) -> None:
    net = probed.network("deeper", TARGET)
    part = probed.parts[TARGET]
    others = Split(part.inputs, (part.labels + 1) % 6)
    (one, two) = (probed.trained(net, split, [2], 1e-3)[2] for split in (part, others))
    unlabelled = "BYOL" in probed.name
    assert torch.equal(one["0.stem.0.weight"], two["0.stem.0.weight"]) == unlabelled
    assert torch.equal(one["1.weight"], net.state_dict()["1.weight"]) == unlabelled
    plain = Transfer.step_flops(probed, net)
    assert (probed.step_flops(net) > 2 * plain) == unlabelled


def test_maps_are_learned_with_labels_alone(probed: Transfer) -> None:
    pair = Sources(probed, "shared", "half wider")
    refusal = pair.refusal(ARMS["LiGO"])
    unlabelled = "BYOL" in probed.name
    assert refusal == ("maps are learned by labels, of which the target has none" * unlabelled)
    assert all(pair.rates(name) for name in pair.allowed())


def test_sources_are_trained_once_for_all_targets(
    probed: Transfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = probed.source("shared", 0).state_dict()
    calls: list[object] = []
    monkeypatch.setattr(transfers, "by_adam", lambda *_, **__: calls.append("labels"))
    monkeypatch.setattr(grounds, "train_byol", lambda *_, **__: calls.append("byol"))
    again = replace(probed, target="another").source("shared", 0).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert calls == []
    with pytest.raises((TypeError, AttributeError), match="NoneType"):
        probed.source("own", 0)
    assert len(calls) == 1


def test_the_benchmark_counts_a_start_in_steps(
    text: Transfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "STEPS", 2)
    monkeypatch.setattr(sources, "loop_flops", lambda run, steps: 10**9)
    names = ["scratch", "nearest source", "LiGO"]
    rows = starts.compare(text, "twice", names, 1)
    table = pd.DataFrame(rows).set_index("arm")
    assert [*table.index] == names
    assert (table["seconds"] / table["step_seconds"]).tolist() == table["in_steps"].tolist()
    flops, steps = (table[name].to_dict() for name in ("flops", "in_steps"))
    assert flops["scratch"] == 0 < flops["nearest source"]
    assert (table["flops"] / table["step_flops"]).tolist() == table["flops_in_steps"].tolist()
    assert steps["LiGO"] > steps["nearest source"] > 0
    with pytest.raises(ValueError, match="arm is 'warm', expected"):
        starts.compare(text, "twice", ["warm"], 1)
