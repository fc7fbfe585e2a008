"""SAIL's sweeps over γ in text (Anonymous, 2025, section 4.4, Figure 2).

Where the paper has one curve, each study here has one for every seed: a seed draws the held-out
stretch, the starts, and the orders of training. All of them can be made larger by ``plan``. Rates
are the best of three on a seed that no study uses: for sources, of 1e-3, 3e-3 and 6e-3, for
retraining the nearer source, of 3e-4, 1e-3 and 3e-3.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import torch

from mergelib.align import git_rebasin
from mergelib.data.texts import load_text
from mergelib.hashing import stable_seed
from mergelib.records.results import Tables
from mergelib.sail.blocks import (
    histograms,
    mean_thirds,
    mix,
    overlapped,
    random_thirds,
)
from mergelib.sail.divergences import mmd_table
from mergelib.sail.proximal import proximal_weights
from mergelib.statedict import StateDict
from mergelib.studies.papers.sail.training import (
    COARSE,
    STATE,
    Corpus,
    Rows,
    load_corpus,
    planned,
)
from mergelib.studies.runner import Loaded, Run, study

STARTS = ("shared", "own", "re-basin")


def texts_of(run: Run) -> Loaded:
    """Seed and texts of a run, that of its suite's name first, then its setting ``others``.

    Raises:
        ValueError: an unknown text, or a setting of zoos.
    """
    refused = {"model": run.model, "recipe": run.recipe, **run.options}
    for name, value in refused.items():
        if value is not None:
            raise ValueError(f"studies of texts take no {name}, got {value!r}: see plan")
    names = [run.suite, *run.settings.get("others", ())]
    texts = {name: load_text(name) for name in names}
    sources = {f"text/{name}": source for name, (_, source) in texts.items()}
    return Loaded(
        (run.seed, {name: text for name, (text, _) in texts.items()}), {"sources": sources}
    )


@study(methods=[], load=texts_of)
def gamma_sweep(
    seed: int,
    texts: Mapping[str, str],
    *,
    starts: Sequence[str] = STARTS,
    plan: Mapping[str, Any] = {},
) -> Tables:
    """Loss on the last third of a text against γ, for sources of the other two (Figure 2b).

    Args:
        seed: of a run.
        texts: one text.
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
    corpus = load_corpus([*texts.values()], planned(plan), seed)
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


@study(methods=[], load=texts_of)
def overlap(
    seed: int,
    texts: Mapping[str, str],
    *,
    cells: Sequence[Sequence[float]] = ((0, 0), (0.5, 0), (1, 0), (0, 0.5), (1, 0.5), (1, 1)),
    plan: Mapping[str, Any] = {},
) -> Tables:
    """The sweep where D_1 and D_2 share a part α of their blocks, and each β with D_t (Figure 2c).

    Blocks are those of `gamma_sweep`, replaced as `mergelib.sail.blocks.overlapped` does.
    Sources have one start.

    Args:
        seed: of a run.
        texts: one text.
        cells: α and β, with β ≤ (1 + α)/2.
        plan: sizes other than the usual ones, γ in steps of ¼ and readings at 0 and 25 steps.

    Returns:
        ``curves``: rows of ``alpha``, ``beta``, ``gamma``, ``step``, ``choose``, ``judge``.
    """
    sizes = planned(plan, gammas=COARSE, reads=(0, 25))
    corpus = load_corpus([*texts.values()], sizes, seed)
    thirds = [corpus.parted(rows) for rows in mean_thirds(corpus.blocks)]
    curves = []
    for alpha, beta in cells:
        drawn = stable_seed("overlap", seed)
        parts = overlapped([rows.train for rows in thirds], alpha, beta, drawn)
        one, two = _pair(corpus, parts[0], parts[1])
        target = corpus.target(thirds[2]._replace(train=parts[2]))
        rows = corpus.swept(one, two, target)
        curves += [{"alpha": alpha, "beta": beta, **row} for row in rows]
    return {"curves": curves}


@study(methods=[], load=texts_of)
def mixture(
    seed: int,
    texts: Mapping[str, str],
    *,
    others: Sequence[str] = ("wikitext2_test",),
    shares: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    plan: Mapping[str, Any] = {},
) -> Tables:
    """The sweep for targets ρ D_1 + (1 − ρ) D_2, for which Theorem 3 says γ = ρ.

    D_1 and D_2 are two texts, or the outer thirds of the first one. The target's blocks to train on
    are drawn from those that the sources saw, its held-out blocks are in the same shares. Sources
    have one start.

    Args:
        seed: of a run.
        texts: D_1, and one more.
        others: the name of that one.
        shares: values of ρ.
        plan: sizes other than the usual ones, γ in steps of ¼ and readings at 0 and 25 steps.

    Returns:
        ``curves``: rows of ``pair`` (``texts``, ``thirds``), ``share``, ``gamma``, ``step``,
        ``choose``, ``judge``.
    """
    sizes = planned(plan, gammas=COARSE, reads=(0, 25))
    corpus = load_corpus([*texts.values()], sizes, seed)
    own = corpus.rows_of_text(0)
    lowest, _, highest = mean_thirds(corpus.blocks[own])
    pairs = {"texts": (own, corpus.rows_of_text(1)), "thirds": (lowest, highest)}
    curves = []
    for name, pair in pairs.items():
        first, second = (corpus.parted(rows) for rows in pair)
        one, two = _pair(corpus, first.train, second.train)
        for share in shares:
            mixed = (mix(*both, share, seed) for both in zip(first, second, strict=True))
            target = corpus.target(Rows(*mixed))
            rows = corpus.swept(one, two, target)
            curves += [{"pair": name, "share": share, **row} for row in rows]
    return {"curves": curves}


@study(methods=[], load=texts_of)
def cross_corpus(
    seed: int,
    texts: Mapping[str, str],
    *,
    others: Sequence[str] = ("wikitext2_test", "don_quijote_es"),
    plan: Mapping[str, Any] = {},
) -> Tables:
    """The sweep for sources of two thirds of one text and another text as target (Figure 2d).

    Sources have one start.

    Args:
        seed: of a run.
        texts: that of the sources, then the targets.
        others: names of the targets.
        plan: sizes other than the usual ones, γ in steps of ¼.

    Returns:
        ``curves``: rows of ``target``, ``gamma``, ``step``, ``choose``, ``judge``; ``scratch``: of
        a random start, the same less γ.
    """
    corpus = load_corpus([*texts.values()], planned(plan, gammas=COARSE), seed)
    thirds = [corpus.parted(rows) for rows in mean_thirds(corpus.blocks[corpus.rows_of_text(0)])]
    one, two = _pair(corpus, thirds[0].train, thirds[1].train)
    tables: Tables = {"curves": [], "scratch": []}
    for place, name in enumerate(others, 1):
        target = corpus.target(corpus.parted(corpus.rows_of_text(place)))
        tables["curves"] += [{"target": name, **row} for row in corpus.swept(one, two, target)]
        tables["scratch"] += [{"target": name, **row} for row in corpus.from_scratch(target)]
    return tables


def _pair(corpus: Corpus, first: torch.Tensor, second: torch.Tensor) -> tuple[STATE, STATE]:
    """Two sources of one start."""
    model = corpus.model("shared")
    return corpus.source(model, first, 1), corpus.source(model, second, 2)


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
