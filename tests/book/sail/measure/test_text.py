"""Studies of SAIL in text, on texts of a few hundred words."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pandas as pd
import pytest
import torch

from mergebook.lab.results import Tables
from mergebook.lab.runner import REGISTERED, Run
from mergebook.sail.measure import kernels, training
from mergebook.sail.measure import text as studies
from mergebook.sail.measure.kernels import mixture_weights, text_kernels
from mergebook.sail.measure.training import Corpus, Texts, load_corpus
from mergebook.sail.read.tuning import goals_on
from mergebook.sail.thirds import mean_thirds
from mergebook.suites.data.texts import encode, encode_pairs
from mergebook.suites.models import GPT

SMALL: dict[str, Any] = {
    "width": 8,
    "depth": 1,
    "context": 16,
    "batch_size": 4,
    "source_steps": 3,
    "block": 40,
    "gammas": (0.0, 0.5, 1.0),
    "reads": (0, 2),
    "judged": 6,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sizes for the studies that have no setting of them."""
    monkeypatch.setitem(training.PROFILES, "default", SMALL)


def words(seed: int, letters: str = "abcdefghijklmnopqrstuvwxyz", count: int = 3000) -> str:
    generator = torch.Generator().manual_seed(seed)
    lots = torch.randint(len(letters), (count,), generator=generator).tolist()
    return "".join(letters[lot] for lot in lots)


def step_flops(width: int, depth: int, vocabulary: int, context: int, batch: int) -> int:
    """6 FLOPs per weight of a matrix and token, and 12 per layer, unit and pair of tokens.

    Forward, each product of an ``(m, k)`` with a ``(k, n)`` has 2mkn, and attention two of T × T by
    d; backward, each has two more. Positions, norms and biases multiply no matrix; the table is the
    head, and looking tokens up costs nothing.
    """
    net = GPT(width, depth, 4, vocabulary=vocabulary, context=context)
    matrices = [p for name, p in net.named_parameters() if p.dim() == 2 and name != "pos_embed"]
    weights = sum(matrix.numel() for matrix in matrices)
    return batch * (6 * weights * context + 12 * depth * width * context**2)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus(Texts(4, {"a": words(0), "b": words(1)}), SMALL)


def test_nobody_trains_on_what_is_held_out(corpus: Corpus) -> None:
    assert [len(rows) for rows in corpus.texts] == [75, 75]
    assert [int(corpus.held[rows].sum()) for rows in corpus.texts] == [15, 15]
    parts = corpus.parted(corpus.texts[1])
    assert corpus.held[torch.cat([parts.choose, parts.judge])].all()
    assert not corpus.held[parts.train].any()
    assert parts.choose.max() < parts.judge.min(), "two stretches"
    split = corpus.windows(parts.train[:1])
    block = encode(words(1)).view(75, 40)[parts.train[0] - 75]
    assert split.inputs.flatten().tolist() == [*block[:16].tolist(), *block[17:33].tolist()]
    assert torch.equal(split.labels[:, :-1], split.inputs[:, 1:])
    with pytest.raises(ValueError, match="0 blocks of a part are held out"):
        corpus.parted(parts.train)


def test_ends_of_a_sweep_are_the_sources(corpus: Corpus) -> None:
    parts = corpus.parted(corpus.texts[0])
    target = corpus.target(parts)
    one, two = (corpus.source(corpus.model(name), parts.train, name) for name in ("a", "b"))
    swept = list(corpus.swept(one, two, target))
    for gamma, source in ((1.0, one), (0.0, two)):
        alone = list(corpus.retrained(source, target))
        rows = [row for row in swept if row["gamma"] == gamma]
        assert rows == [{"gamma": gamma, **row} for row in alone], "bit for bit"
        logits = corpus.model("shared")
        logits.load_state_dict(source)
        with torch.no_grad():
            outputs = logits(target.judge.inputs)
        loss = torch.nn.functional.cross_entropy(
            outputs.flatten(0, 1), target.judge.labels.flatten()
        )
        assert alone[0]["judge"] == pytest.approx(loss.item(), rel=1e-5)


def test_the_sweep_is_whole_and_repeats_itself() -> None:
    plan = {**SMALL, "gammas": (0.0, 0.1, 0.5, 1.0)}
    tables = studies.gamma_sweep(Texts(0, {"a": words(0)}), plan=plan)
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    assert studies.gamma_sweep(Texts(0, {"a": words(0)}), plan=plan) == tables
    curves = pd.DataFrame(tables["curves"])
    assert curves.groupby(["start", "gamma", "step"]).size().tolist() == [1] * (4 + 4 + 3) * 2
    matched = curves.loc[curves["start"] == "re-basin", "gamma"].unique()
    assert set(curves["gamma"]) - set(matched) == {0.1}, "fewer γ after re-basin"
    first = curves[curves["gamma"] == 1.0].groupby("step")["judge"]
    assert (first.nunique() == 1).all(), "the first source is the same for all starts"
    second = curves[(curves["gamma"] == 0.0) & (curves["step"] == 0)].set_index("start")["judge"]
    assert second["re-basin"] == pytest.approx(second["own"], rel=1e-5), "an order is no function"
    assert abs(second["shared"] - second["own"]) > 1e-4
    assert {row["start"] for row in tables["references"]} == {"random", "target"}
    weights = [row["gamma"] for row in tables["distances"] if row["split"] == "thirds"]
    assert max(weights) < 0.5, "the second third is nearer"


def test_a_start_by_itself_is_as_among_all() -> None:
    source, plan = Texts(0, {"a": words(0)}), {**SMALL, "gammas": (0.0, 0.5, 1.0)}
    whole = studies.gamma_sweep(source, plan=plan)
    parts = [
        studies.gamma_sweep(source, starts=[start], plan=plan)
        for start in (*studies.STARTS, *studies.REFERENCES)
    ]
    for table in ("curves", "references"):
        assert [row for part in parts for row in part[table]] == whole[table]
    assert all(part["distances"] == whole["distances"] for part in parts)
    with pytest.raises(
        ValueError, match="start is 'common', expected 'shared' or 'own' or 're-basin'"
    ):
        studies.gamma_sweep(source, starts=["own", "common"], plan=plan)


def test_byte_pairs_come_by_frequency_and_lose_nothing() -> None:
    pytest.importorskip("tokenizers")
    text = "aaab " * 200 + "xyz "
    codes, alone = encode_pairs([text, "xyz "], 260)
    assert codes.max() < 260
    assert len(codes) < len(text) / 2
    assert codes.bincount(minlength=260)[256:].sum() > 0
    assert codes[-len(alone) :].tolist() == alone.tolist(), "one vocabulary"


def test_every_start_has_the_best_of_its_rates() -> None:
    texts = Texts(0, {"a": words(0)})

    def run(*factors: float) -> list[dict[str, float]]:
        corpus = load_corpus(texts, {**SMALL, "factors": factors})
        rows = corpus.parted(corpus.texts[0])
        target = corpus.target(rows)
        return [*corpus.retrained(corpus.model("mine").state_dict(), target)]

    alone = {factor: run(factor) for factor in (0.01, 1.0, 300.0)}
    ends = {factor: rows[-1]["choose"] for factor, rows in alone.items()}
    best = min(ends, key=lambda factor: ends[factor])
    assert best == 1.0, "neither hardly any training nor one that harms"
    assert run(*alone) == alone[best]
    assert len({rows[0]["judge"] for rows in alone.values()}) == 1


def test_what_is_refused() -> None:
    texts = Texts(0, {"a": words(0)})
    with pytest.raises(TypeError, match="unexpected keyword argument 'steps'"):
        load_corpus(texts, {"steps": 3})
    with pytest.raises(ValueError, match=r"expected 0, 0\.5 and 1 among them"):
        load_corpus(texts, {"gammas": [0.0, 1.0]})
    with pytest.raises(ValueError, match="holds no window"):
        load_corpus(texts, {"block": 64})
    with pytest.raises(ValueError, match="studies of texts take no model, got 'gpt'"):
        studies.texts_of(Run(REGISTERED["gamma_sweep"], "names", 0, model="gpt"))
    with pytest.raises(ValueError, match="start is 'common', expected 'shared' or 'own'"):
        studies.overlap(texts, start="common")


def test_the_full_profile_is_the_model_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "load_text", lambda _: (words(0), {}))
    text = {"a": words(0) * 10}
    plan = load_corpus(Texts(0, text, "full")).plan
    assert (plan.width, plan.depth, plan.heads, plan.context) == (384, 6, 6, 256)
    assert load_corpus(Texts(0, text, "full"), {"width": 16}).plan.width == 16
    run = Run(REGISTERED["gamma_sweep"], "tinyshakespeare", 0, options={"profile": "full"})
    loaded = studies.texts_of(run)
    assert loaded.arguments[0].profile == loaded.inputs["profile"] == "full"
    small = {**SMALL, "heads": 2}
    tables = studies.gamma_sweep(Texts(0, {"a": words(0)}, "full"), starts=["shared"], plan=small)
    assert len(tables["curves"]) == 6
    with pytest.raises(ValueError, match="texts have no profile 'huge'; they have: default, full"):
        studies.texts_of(replace(run, options={"profile": "huge"}))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_sweeps_on_cuda() -> None:
    source = Texts(0, {"a": words(0)}, device="cuda")
    near = pd.DataFrame(studies.gamma_sweep(source, plan=SMALL)["curves"])
    own = pd.DataFrame(studies.gamma_sweep(replace(source, device="cpu"), plan=SMALL)["curves"])
    assert near["judge"].to_numpy() == pytest.approx(own["judge"].to_numpy(), abs=1e-3)


TEXTS = {"a": words(0), "b": words(1), "c": words(2)}
SWEEPS = ("overlap", "mixture", "cross_corpus")
FEW = {"CELLS": [[0, 0], [1, 1]], "SHARES": [0.25, 1.0], "BUDGET": 20}


def measured(name: str, start: str) -> Tables:
    """A study of as many texts as it takes, with few cells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(training.PROFILES, "default", SMALL)
        for constant, value in FEW.items():
            patch.setattr(studies, constant, value)
        texts = dict([*TEXTS.items()][: 1 + SWEEPS.index(name)])
        made: Tables = REGISTERED[name].function(Texts(0, texts), start=start)
        return made


once = cache(measured)


@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps_of_all_studies(name: str) -> None:
    """Each in two cells."""
    shared, own = (once(name, start) for start in ("shared", "own"))
    assert json.loads(json.dumps(shared, allow_nan=False)) == shared
    assert measured(name, "own") == own
    tables = [pd.DataFrame(run["curves"]) for run in (shared, own)]
    if name == "mixture":
        tables = [table[table["method"] == "sweep"] for table in tables]
    for table in tables:
        assert len(table) == 2 * 3 * 2
    begun = [table[table["step"] == 0].reset_index(drop=True) for table in tables]
    same = (begun[0]["judge"] == begun[1]["judge"]).groupby(begun[0]["gamma"])
    assert same.all().to_dict() == {0.0: False, 0.5: False, 1.0: True}, "θ_1 is one network"


@pytest.mark.usefixtures("small")
def test_the_theorem_is_an_arm_of_mixtures_at_its_own_weight() -> None:
    tables = studies.mixture(Texts(0, {"a": words(0), "b": words(1)}))
    curves = pd.DataFrame(tables["curves"])
    theorem = curves[curves["method"] == "theorem"].groupby("share")["gamma"].first()
    found = pd.DataFrame(tables["distances"]).set_index("share")["gamma"]
    assert theorem.tolist() == found.clip(0, 1).tolist()
    digits, letters = "".join(map(str, range(10))) * 300, words(0)
    tables = studies.mixture(Texts(0, {"a": digits, "b": letters}))
    found = pd.DataFrame(tables["distances"]).set_index("share")["gamma"]
    assert found.tolist() == pytest.approx(found.index.tolist(), abs=0.05), "γ = ρ"


def test_mixtures_of_matched_sources_have_the_same_ends() -> None:
    found = {
        start: pd.DataFrame(once("mixture", start)["curves"]).query(
            "method == 'sweep' and step == 0 and share == 0.25"
        )
        for start in ("own", "re-basin")
    }
    losses = [table.set_index("gamma")["judge"] for table in found.values()]
    ends = [0.0, 1.0]
    assert losses[1][ends].tolist() == pytest.approx(losses[0][ends].tolist(), rel=1e-5)
    assert abs(losses[1][0.5] - losses[0][0.5]) > 1e-4


@pytest.mark.usefixtures("small")
def test_mixtures_of_one_text_are_of_its_outer_thirds() -> None:
    """Blocks of a third each of low, middle and high letters, so that thirds are these."""
    letters = ["abc", "klm", "xyz"]
    generator = torch.Generator().manual_seed(0)
    lots = torch.randint(3, (60, 40), generator=generator).tolist()
    text = "".join(letters[i % 3][lot] for i, row in enumerate(lots) for lot in row)
    tables = studies.mixture(Texts(0, {"a": text}), others=[])
    found = pd.DataFrame(tables["distances"]).set_index("share")
    assert found["gamma"].tolist() == pytest.approx(found.index.tolist(), abs=0.1), "γ = ρ"
    assert (found["second"] < 0.05 * found["between"]).iloc[0], "the highest third alone"


def test_a_wide_kernel_sees_means_alone(corpus: Corpus) -> None:
    parts = [rows[:20] for rows in mean_thirds(corpus.blocks)]
    found = studies.weighed(corpus, parts, "mean", 100.0)
    means = [float(corpus.blocks[rows].double().mean()) for rows in parts]
    first, second, between = ((means[i] - means[j]) ** 2 for i, j in ((0, 2), (1, 2), (0, 1)))
    assert found["gamma"] == pytest.approx((second + between - first) / (2 * between), abs=1e-3)
    assert found["first"] / found["between"] == pytest.approx(first / between, rel=1e-3)


def test_kernels_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    monkeypatch.setattr(kernels, "FACTORS", (1.0, 2.0))
    text = words(0) * 12
    tables = text_kernels(Texts(0, {"a": text}))
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    table = pd.DataFrame(tables["distances"])
    assert table.groupby(["tokens", "features", "factor"]).size().tolist() == [1] * 2 * 3 * 2
    assert table["gamma"].nunique() == len(table)
    assert text_kernels(Texts(1, {"a": text})) != tables


@pytest.mark.usefixtures("small")
def test_weights_of_a_mixture_are_its_shares_where_features_tell_the_texts_apart() -> None:
    """Letters 0, 4, 5 and 1, 2, 6 have one mean and one variance, and two histograms."""
    texts = {"a": words(0, "aef", 8000), "b": words(1, "bcg", 8000)}
    tables = mixture_weights(Texts(0, texts))
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    assert mixture_weights(Texts(0, texts)) == tables
    found = pd.DataFrame(tables["weights"]).pivot_table(
        "gamma", ["features", "kernel"], "share", sort=False
    )
    off = found.sub(found.columns, axis=1).abs().max(axis=1)
    assert off["histogram"].max() < 0.03
    assert off["mean", "1"] > 0.5, "says nothing"
    assert len(found) == len(studies.FEATURES) * len(kernels.FACTORS)


@pytest.mark.usefixtures("small")
def test_weights_by_mmd_are_those_of_the_sweep() -> None:
    texts = Texts(0, {"a": words(0), "b": words(1)})
    sweep = studies.mixture(texts)["distances"]
    found = pd.DataFrame(mixture_weights(texts)["weights"])
    own = found[(found["features"] == "histogram") & (found["kernel"] == "1")]
    assert own["gamma"].tolist() == [row["gamma"] for row in sweep]


@pytest.mark.usefixtures("small")
def test_distances_from_an_optimum_by_hand(corpus: Corpus) -> None:
    texts = {"a": words(0), "b": words(1)}
    tables = studies.text_nearness(Texts(4, texts))
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    assert studies.text_nearness(Texts(4, texts)) == tables
    parts = [corpus.parted(rows).train for rows in mean_thirds(corpus.blocks)]
    places = {("shared", 1): "shared", ("shared", 2): "shared", ("own", 1): "shared"}
    places["own", 2] = "own"
    for row in tables["sources"]:
        start, number = row["start"], row["source"]
        source = corpus.source(corpus.model(places[start, number]), parts[number - 1], number)
        begun = corpus.model("shared" if start == "shared" else "optimum")
        optimum = corpus.source(begun, parts[2], 3)
        fresh = corpus.model("random").state_dict()
        for name, state in (("parameters", source), ("random", fresh)):
            squares = (((state[key] - optimum[key]) ** 2).sum().item() for key in optimum)
            assert row[name] == pytest.approx(sum(squares), rel=1e-5)


def test_without_training_a_shared_start_is_the_optimum_and_others_are_random(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(training.PROFILES, "default", {**SMALL, "source_rate": 1e-9})
    table = pd.DataFrame(studies.text_nearness(Texts(0, {"a": words(0)}))["sources"])
    rows = table.set_index(["start", "source"])
    shared = rows.loc["shared"]
    assert (shared["parameters"] < 1e-6 * shared["random"]).all()
    assert (rows["parameters"] / rows["random"])["own"].tolist() == pytest.approx([1, 1], rel=0.2)


def test_arms_of_another_corpus() -> None:
    tables = once("cross_corpus", "shared")
    arms = pd.DataFrame(tables["arms"])
    assert arms.groupby(["target", "method"])["step"].agg(list).map(tuple).unique().tolist() == [
        (0, 10, 20)
    ]
    assert set(arms["target"]) == {"b", "c"}
    start = arms[arms["step"] == 0].set_index(["target", "method"])["judge"]
    curves = pd.DataFrame(tables["curves"])
    middle = curves[(curves["step"] == 0) & (curves["gamma"] == 0.5)].set_index("target")["judge"]
    assert start.loc[:, "uniform"].to_dict() == middle.to_dict()
    costs = tables["costs"][0]
    assert costs["step_flops"] == pytest.approx(step_flops(8, 1, 128, 16, 4), rel=0.1)
    assert costs["source_flops"] == 3 * costs["step_flops"]


def test_goals_are_read_on_tuning_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [3.0 - 0.1 * i for i in range(studies.BUDGET // studies.EVERY + 1)]
    rows = [{"step": i * studies.EVERY, "judge": loss} for i, loss in enumerate(losses)]
    monkeypatch.setattr(Corpus, "from_scratch", lambda self, target: iter(rows))
    with pytest.raises(ValueError, match="seed 0 is used by other studies"):
        studies.text_goals(Texts(0, {"a": words(0) * 20}))
    curves = studies.text_goals(Texts(1000, {"a": words(0) * 20}))["curves"]
    found = goals_on(pd.DataFrame(curves).assign(seed=1000), studies.BUDGET)
    assert found == pytest.approx({"easy": 2.4, "hard": 1.8}), "after 60 and 120 of 200 steps"
