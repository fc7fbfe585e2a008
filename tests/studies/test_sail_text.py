"""Studies of SAIL in text, on a text of a few hundred words."""

import json
from typing import Any

import pandas as pd
import pytest
import torch

from mergelib.data.texts import encode, encode_pairs
from mergelib.studies.papers.sail import text as studies
from mergelib.studies.papers.sail.training import Corpus, load_corpus, planned
from mergelib.studies.runner import REGISTERED, Run

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


def words(seed: int) -> str:
    generator = torch.Generator().manual_seed(seed)
    letters = torch.randint(97, 123, (3000,), generator=generator).tolist()
    return "".join(map(chr, letters))


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus(words(0), planned(SMALL), seed=4)


def test_nobody_trains_on_what_is_held_out(corpus: Corpus) -> None:
    assert corpus.held.sum() == 15
    parts = corpus.parted(torch.arange(75))
    assert corpus.held[torch.cat([parts.choose, parts.judge])].all()
    assert not corpus.held[parts.train].any()
    assert parts.choose.max() < parts.judge.min(), "two stretches"
    split = corpus.windows(parts.train[:1])
    block = encode(words(0)).view(75, 40)[parts.train[0]]
    assert split.inputs.flatten().tolist() == [*block[:16].tolist(), *block[17:33].tolist()]
    assert torch.equal(split.labels[:, :-1], split.inputs[:, 1:])
    with pytest.raises(ValueError, match="0 blocks of a part are held out"):
        corpus.parted(parts.train)


def test_ends_of_a_sweep_are_the_sources(corpus: Corpus) -> None:
    parts = corpus.parted(torch.arange(75))
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
    tables = studies.gamma_sweep(0, words(0), plan=SMALL)
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    assert studies.gamma_sweep(0, words(0), plan=SMALL) == tables
    curves = pd.DataFrame(tables["curves"])
    assert curves.groupby(["start", "gamma", "step"]).size().tolist() == [1] * 3 * 3 * 2
    first = curves[curves["gamma"] == 1.0].groupby("step")["judge"]
    assert (first.nunique() == 1).all(), "the first source is the same for all starts"
    second = curves[(curves["gamma"] == 0.0) & (curves["step"] == 0)].set_index("start")["judge"]
    assert second["re-basin"] == pytest.approx(second["own"], rel=1e-5), "an order is no function"
    assert abs(second["shared"] - second["own"]) > 1e-4
    assert {row["start"] for row in tables["references"]} == {"random", "target"}
    weights = [row["gamma"] for row in tables["distances"] if row["split"] == "thirds"]
    assert max(weights) < 0.5, "the second third is nearer"


def test_byte_pairs_come_by_frequency_and_lose_nothing() -> None:
    pytest.importorskip("tokenizers")
    text = "aaab " * 200 + "xyz "
    codes = encode_pairs(text, 260)
    assert codes.max() < 260
    assert len(codes) < len(text) / 2
    assert codes.bincount(minlength=260)[256:].sum() > 0


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="a plan has no steps; it has: width"):
        planned({"steps": 3})
    with pytest.raises(ValueError, match=r"expected 0, 0\.5 and 1 among them"):
        planned({"gammas": [0.0, 1.0]})
    with pytest.raises(ValueError, match="holds no window"):
        planned({"block": 64})
    with pytest.raises(ValueError, match="studies of texts take no model, got 'gpt'"):
        studies.texts_of(Run(REGISTERED["gamma_sweep"], "names", 0, model="gpt"))
