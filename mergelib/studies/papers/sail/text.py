"""SAIL's sweep over γ in text (Anonymous, 2025, section 4.4, Figure 2b).

Where the paper has one curve, the study has one for every seed: a seed draws the held-out stretch,
the starts, and the orders of training. It can be made larger by ``plan``. Rates are the best of
three on a seed that the study does not use: for sources, of 1e-3, 3e-3 and 6e-3, for retraining the
nearer source, of 3e-4, 1e-3 and 3e-3.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from mergelib.align import git_rebasin
from mergelib.data.texts import load_text
from mergelib.hashing import stable_seed
from mergelib.records.results import Tables
from mergelib.sail.blocks import (
    histograms,
    mean_thirds,
    random_thirds,
)
from mergelib.sail.divergences import mmd_table
from mergelib.sail.proximal import proximal_weights
from mergelib.statedict import StateDict
from mergelib.studies.papers.sail.training import (
    Corpus,
    Rows,
    load_corpus,
    planned,
)
from mergelib.studies.runner import Loaded, Run, refuse_zoo_settings, study

STARTS = ("shared", "own", "re-basin")


def texts_of(run: Run) -> Loaded:
    """Seed and text of a run: its suite is the name of a text.

    Raises:
        ValueError: an unknown text, or a setting of zoos.
    """
    refuse_zoo_settings(run, "studies of texts")
    text, source = load_text(run.suite)
    return Loaded((run.seed, text), {"sources": {f"text/{run.suite}": source}})


@study(methods=[], load=texts_of)
def gamma_sweep(
    seed: int,
    text: str,
    *,
    starts: Sequence[str] = STARTS,
    plan: Mapping[str, Any] = {},
) -> Tables:
    """Loss on the last third of a text against γ, for sources of the other two (Figure 2b).

    Args:
        seed: of a run.
        text: to be cut into thirds.
        starts: ``shared`` (both sources from one random start), ``own`` (each from its own) and
            ``re-basin`` (the latter, and θ_2 reordered to match θ_1).
        plan: sizes other than those of `mergelib.studies.papers.sail.training.Plan`.

    Returns:
        ``curves``: rows of ``start``, ``gamma``, ``step``, ``choose``, ``judge`` (nats per token on
        both halves of the held-out part); ``references``: the same less γ, of the ``start``
        ``random`` and of ``target``, a model trained on D_t as sources are on their parts.
        ``distances``: rows of ``split`` (``thirds``, ``random``), ``features``, MMD² ``first``
        (of D_1 and D_t), ``second`` and ``between``, and ``gamma``, γ_1 of Eq. 11.
    """
    corpus = load_corpus(text, planned(plan), seed)
    thirds = [corpus.parted(rows) for rows in mean_thirds(corpus.blocks)]
    target = corpus.target(thirds[2])
    first = corpus.source(corpus.model("shared"), thirds[0].train, 1)
    curves = []
    for start, second in _seconds(corpus, first, thirds[1], starts):
        curves += [{"start": start, **row} for row in corpus.swept(first, second, target)]
    optimum = corpus.source(corpus.model("shared"), thirds[2].train, 3)
    references = [{"start": "random", **row} for row in corpus.from_scratch(target)]
    references += [{"start": "target", **row} for row in corpus.retrained(optimum, target)]
    return {"curves": curves, "references": references, "distances": [*_distances(corpus)]}


def _seconds(
    corpus: Corpus, first: StateDict, rows: Rows, starts: Sequence[str]
) -> Iterator[tuple[str, StateDict]]:
    """The second source, by how it starts."""
    trained = {
        name: corpus.source(corpus.model(name), rows.train, 2)
        for name in ("shared", "own")
        if name in starts or (name == "own" and "re-basin" in starts)
    }
    for start in starts:
        if start == "re-basin":
            yield start, git_rebasin(first, trained["own"], corpus.model("shared")).state
        else:
            yield start, trained[start]


def _distances(corpus: Corpus) -> Iterator[dict[str, Any]]:
    """MMD² of thirds by mean and of random thirds, and Eq. 11, in three features."""
    blocks = corpus.blocks
    features = {
        "mean": blocks.double().mean(1, keepdim=True),
        "tokens": blocks.double(),
        "histogram": histograms(blocks, corpus.plan.vocabulary),
    }
    splits = {
        "thirds": mean_thirds(blocks),
        "random": random_thirds(len(blocks), stable_seed("thirds", corpus.seed)),
    }
    for (split, thirds), (name, values) in product(splits.items(), features.items()):
        table = mmd_table([values[rows] for rows in thirds])
        weights = proximal_weights(table[2, :2], table[:2, :2], "affine").weights
        squares = {"first": table[0, 2], "second": table[1, 2], "between": table[0, 1]}
        numbers = {**squares, "gamma": weights[0]}
        yield {
            "split": split,
            "features": name,
            **{key: float(value) for key, value in numbers.items()},
        }
