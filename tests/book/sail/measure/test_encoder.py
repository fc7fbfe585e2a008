"""A sentence encoder that is grown: a tiny random BERT on random tokens, in heads of its own."""

import json
from collections.abc import Iterable
from typing import Any

import pandas as pd
import pytest
import torch

from mergebook.lab.results import Tables
from mergebook.sail.measure.encoder import WAYS, encoder, grown
from mergebook.suites.families.sentences import SentenceEncoder
from mergebook.suites.types import Zoo
from mergelib.evaluation.tasks import Split, Suite, Task
from mergelib.training import seeded
from tests.library.sail.families import perturbed

transformers = pytest.importorskip("transformers")
EXACT = {"source", "replicate", "mean, hidden"}
WIDTH, HEADS, HIDDEN, LAYERS, WORDS, PLACES = 16, 2, 24, 2, 40, 12


def tiny() -> SentenceEncoder:
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        max_position_embeddings=PLACES,
    )
    with seeded(0):
        network: Any = perturbed(SentenceEncoder(config)).float()
    with torch.no_grad():  # far from linear, as trained ones are
        for layer in layers(network):
            layer.intermediate.dense.weight.mul_(20)
            layer.attention.self.query.weight.mul_(20)
            layer.attention.output.dense.weight.mul_(20)
    return network  # type: ignore[no-any-return]


def layers(network: SentenceEncoder) -> Iterable[Any]:
    return network.bert.encoder.layer


def as_they_are(tokens: torch.Tensor) -> torch.Tensor:
    return tokens


@pytest.fixture(scope="module")
def zoo() -> Zoo:
    """Two tasks of random tokens; the heads are those of ``digits``, of a few examples."""
    generator = torch.Generator().manual_seed(0)

    def split(classes: int, count: int) -> Split:
        tokens = torch.randint(1, WORDS, (count, PLACES), generator=generator)
        return Split(tokens, torch.arange(count) % classes)

    tasks = {}
    for name, classes in (("two", 2), ("three", 3)):
        train, validation, test = (split(classes, count) for count in (30, 6, 40))
        names = tuple("abc"[:classes])
        tasks[name] = Task(name, names, train, validation, test, transform=as_they_are)
    return Zoo(Suite("digits2", 0, tasks, {}), tiny(), {}, {}, {}, {}, "")


@pytest.fixture(scope="module")
def tables(zoo: Zoo) -> Tables:
    return encoder(zoo, sentences=30)


def test_what_keeps_a_post_norm_encoder(tables: Tables) -> None:
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    rows = pd.DataFrame(tables["encoders"]).set_index("way")
    exact = rows.loc[sorted(EXACT)]
    assert exact["correlation"].to_numpy() == pytest.approx(1, abs=1e-6)
    assert exact["change"].max() < 1e-5
    assert rows.drop(list(EXACT))["change"].min() > 1e-3
    tasks = pd.DataFrame(tables["tasks"]).set_index(["task", "way"])
    for name in ("two", "three"):
        own = tasks.loc[name]
        assert own["agreement"][sorted(EXACT)].eq(1).all()
        assert own["accuracy"][sorted(EXACT)].eq(own["accuracy"]["source"]).all()
        assert own["agreement"]["random"] < 1
    assert {*rows.index} == {"source", "random", *WAYS}


def test_sizes_are_those_of_berts(tables: Tables) -> None:
    """Three tables, a norm, and in a layer four matrices, two of the hidden units, two norms."""
    ways = {name: way[2:] for name, way in WAYS.items()}
    for row in tables["encoders"]:
        wider, more, deeper = ways.get(row["way"], (1, 1, 1))
        width, hidden = round(wider * WIDTH), round(more * HIDDEN)
        layer = 4 * width * (width + 1) + 2 * width * hidden + hidden + width + 4 * width
        tables_and_norm = (WORDS + PLACES + 2 + 2) * width
        assert row["parameters"] == tables_and_norm + deeper * LAYERS * layer


@torch.no_grad()
def test_what_copies_repeat_and_what_copies_of_unit_length_lose(zoo: Zoo) -> None:
    """The latter are divided by √2. That halves scores, and GELU bends smaller numbers less."""
    source, tokens = tiny(), zoo.suite.tasks["two"].test.inputs
    copies = grown(source, WAYS["replicate"], 0)(tokens)
    x = source(tokens)
    torch.testing.assert_close(copies, torch.cat([x, x], 1), atol=1e-5, rtol=1e-4)
    for layer in layers(source):
        inner, outer = layer.intermediate.dense, layer.output.dense
        inner.bias.add_(200)  # there GELU is the identity
        outer.bias.sub_(200 * outer.weight.sum(1))
    wide = grown(source, WAYS["svd"], 0)
    x = source(tokens)
    expected = torch.cat([x, x], 1) / 2**0.5
    assert (wide(tokens) - expected).abs().max() > 0.01
    for layer in layers(wide):
        for part in (layer.attention.self.query, layer.attention.self.key):
            part.weight.mul_(2**0.5)
            part.bias.mul_(2**0.5)
    torch.testing.assert_close(wide(tokens), expected, atol=1e-3, rtol=0)
