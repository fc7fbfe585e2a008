"""SAIL's sweeps over γ in text (Anonymous, 2025, section 4.4, Figure 2).

Rates are the best on a seed that no study uses. For retraining on thirds that is 1e-3 for 50 steps,
3e-3 for 200, and 3e-3 on mixtures and another text; with 512 byte pairs, width 64, depth 3 and
1,000 steps, 3e-3 for sources and 1e-3. All but `gamma_sweep` try `FACTORS` of these for each start.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from torch import Tensor

from mergebook.lab.results import Tables
from mergebook.lab.runner import Loaded, Run, refuse_zoo_settings, study
from mergebook.sail.costs import check_tuning, count_flops, mmd_flops
from mergebook.sail.measure import training
from mergebook.sail.measure.spirals import apart
from mergebook.sail.measure.training import Corpus, Rows, State, Texts
from mergebook.sail.thirds import histograms, mean_thirds, mix, overlapped
from mergebook.suites.data.texts import load_text
from mergelib.align import git_rebasin
from mergelib.hashing import stable_seed
from mergelib.problems.checks import check_choice
from mergelib.sail.divergences import median_distance, mmd_table
from mergelib.sail.proximal import proximal_weights
from mergelib.statedict import lerp

STARTS = ("shared", "own", "re-basin")
REFERENCES = ("random", "target")  # retrained without a sweep
MATCHED = (-0.5, 0.0, 0.2, 0.5, 0.8, 1.0, 1.5)  # γ of a plan that are tried after re-basin
FEATURES = ("mean", "tokens", "histogram")  # of blocks
PAIRS = {"first": (0, 2), "second": (1, 2), "between": (0, 1)}  # of D_1, D_2 and D_t
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
CELLS = (*product((0.0, 1 / 3, 2 / 3, 1.0), (0.0, 0.5)), (1.0, 1.0))  # all that have β ≤ (1 + α)/2
FACTORS = (1 / 3, 1.0, 3.0)  # of rates, of which every start has its best
SECOND = "wikitext2_test"  # the text of the second source
CORPORA = ("tinyshakespeare", SECOND, "don_quijote_es")
EVERY, BUDGET = 10, 200  # steps between readings of an arm; its last step


def texts_of(run: Run, others: Sequence[str] | None = None) -> Loaded:
    """What a run works on: its suite's text, then others, by default of its setting ``others``."""
    profile = refuse_zoo_settings(run, "studies of texts", profiles=tuple(training.PROFILES))
    others = run.settings.get("others", ()) if others is None else others
    texts = {name: load_text(name) for name in (run.suite, *others)}
    sources = {f"text/{name}": source for name, (_, source) in texts.items()}
    named = {name: text for name, (text, _) in texts.items()}
    inputs = {"sources": sources} | ({} if profile == "default" else {"profile": profile})
    return Loaded((Texts(run.seed, named, profile, run.device),), inputs)


@study(load=texts_of)
def gamma_sweep(
    source: Texts,  # its seed, and texts: one, to be cut into thirds
    *,
    starts: Sequence[str] = (*STARTS, *REFERENCES),
    plan: Mapping[str, Any] = {},
) -> Tables:
    """Loss on the last third of a text against γ, for sources of the other two (Figure 2b).

    ``curves``: rows of ``start``, ``gamma``, ``step``, ``choose``, ``judge`` (nats per token);
    ``references``: the same without γ. ``distances``: of ``split`` and ``features``, MMD² ``first``
    (of D_1 and D_t), ``second``, ``between``, and ``gamma``, γ_1 of Eq. 11.
    """
    for start in starts:
        check_choice("start", start, (*STARTS, *REFERENCES))
    corpus = training.load_corpus(source, plan)
    split = mean_thirds(corpus.blocks)
    thirds = [corpus.parted(rows) for rows in split]
    target = corpus.target(thirds[2])
    few = [gamma for gamma in corpus.plan.gammas if gamma in MATCHED]
    fewer = replace(corpus, plan=replace(corpus.plan, gammas=few))
    distances = [{"split": "thirds", **weighed(corpus, split, name)} for name in FEATURES]
    tables: Tables = {"curves": [], "references": [], "distances": distances}
    for start in starts:
        if start == "random":
            table, rows = "references", corpus.from_scratch(target)
        elif start == "target":
            optimum = corpus.source(corpus.model("shared"), thirds[2].train, 3)
            table, rows = "references", corpus.retrained(optimum, target)
        else:
            pair = trained_pair(corpus, start, thirds[0].train, thirds[1].train)
            ground = fewer if start == "re-basin" else corpus
            table, rows = "curves", ground.swept(*pair, target)
        tables[table] += [{"start": start, **row} for row in rows]
    return tables


@study(load=texts_of)
def overlap(
    source: Texts,  # its seed, and texts: one, to be cut into thirds
    *,
    start: str = "shared",  # of the second source, `shared`, `own` or `re-basin`
) -> Tables:
    """`gamma_sweep` where D_1 and D_2 share α of their blocks, and each β with D_t (Figure 2c)."""
    corpus = _corpus(source, start, 50, rate=1e-3)
    thirds = [corpus.parted(rows) for rows in mean_thirds(corpus.blocks)]
    whole, drawn = [rows.train for rows in thirds], stable_seed("overlap", source.seed)
    curves: list[dict[str, Any]] = []
    for alpha, beta in CELLS:
        *seen, train = overlapped(whole, alpha, beta, drawn)
        trial = ({"alpha": alpha, "beta": beta}, thirds[2]._replace(train=train))
        curves += _measured(corpus, start, seen, [trial])["curves"]
    return {"curves": curves}


@study(load=texts_of)
def mixture(
    source: Texts,  # its seed, and texts: D_1 and D_2, or one, to be cut into thirds
    *,
    others: Sequence[str] = (SECOND,),  # the name of D_2; none for thirds
    start: str = "shared",
) -> Tables:
    """The sweep for targets ρ D_1 + (1 − ρ) D_2 (``share``), for which Theorem 3 says γ = ρ.

    Sources see every second block, targets are mixed from the others. Tables of `gamma_sweep`, with
    ``method``: ``sweep``, or ``theorem`` for γ_1 by MMD² of histograms, in 0..1.
    """
    corpus = _corpus(source, start, 100)
    seen, fresh = divided(corpus, thirds=not others)
    trials = [({"share": share}, mixed(fresh, (share, 1 - share), source.seed)) for share in SHARES]
    tables = _measured(corpus, start, seen, trials, ["theorem"])
    swept = [{"method": "sweep", **row} for row in tables["curves"]]
    return {"curves": [*swept, *tables["arms"]], "distances": tables["distances"]}


@study(load=partial(texts_of, others=CORPORA))
def cross_corpus(
    source: Texts,  # its seed, and texts: that of the sources, then the targets
    *,
    start: str = "shared",
) -> Tables:
    """The sweep for sources of two thirds of one text and another text as target (Figure 2d).

    Tables of `gamma_sweep` with ``target``; ``arms``, by ``method``, and ``costs`` in FLOPs.
    """
    corpus = _corpus(source, start, 100)
    thirds = mean_thirds(corpus.blocks[corpus.texts[0]])
    seen = [corpus.parted(rows).train for rows in thirds[:2]]
    trials = [
        ({"target": name}, corpus.parted(rows))
        for name, rows in zip([*source.texts][1:], corpus.texts[1:], strict=True)
    ]
    names = ["theorem", "nearest source", "uniform", "scratch"]
    tables = _measured(corpus, start, seen, trials, names)
    single = replace(corpus, plan=replace(corpus.plan, source_steps=1))
    step = count_flops(lambda: single.source(single.model("shared"), seen[0], 1))
    costs: list[dict[str, Any]] = []
    for words, rows in trials:
        sizes = [len(part) for part in (*seen, rows.train)]
        row = {"start": start, **words, "step_flops": step}
        row["distance_flops"] = mmd_flops(sizes, corpus.plan.vocabulary)
        costs.append(row | {"source_flops": corpus.plan.source_steps * step})
    return {**tables, "costs": costs}


@study(load=texts_of)
def text_nearness(source: Texts) -> Tables:
    """Squared distances of sources (``parameters``) and ``random`` weights to an optimum of D_t.

    By ``start`` and ``source``; the optimum begins where sources share their start, else apart.
    """
    corpus = training.load_corpus(source)
    first, second, target = (corpus.parted(rows).train for rows in mean_thirds(corpus.blocks))
    random = corpus.model("random").state_dict()
    rows: list[dict[str, Any]] = []
    for start in ("shared", "own"):
        begun = corpus.model("shared" if start == "shared" else "optimum")
        optimum = corpus.source(begun, target, 3)
        pair = trained_pair(corpus, start, first, second)
        rows += [{"start": start, **row} for row in apart(pair, optimum, random)]
    return {"sources": rows}


def _measured(
    corpus: Corpus,
    start: str,  # of the second source
    seen: Sequence[Tensor],  # D_1 and D_2
    trials: Iterable[tuple[dict[str, Any], Rows]],  # words, and D_t
    names: Sequence[str] = (),  # of arms, as `cross_corpus` has them
) -> Tables:
    """The loop of all sweeps; with scratch among the arms, these are read every `EVERY` steps."""
    tables: Tables = {"curves": [], "arms": [], "distances": []}
    one, two = trained_pair(corpus, start, *seen)
    arms = _read_often(corpus) if "scratch" in names else corpus
    for words, rows in trials:
        cell, target = {"start": start, **words}, corpus.target(rows)
        tables["curves"] += [{**cell, **row} for row in corpus.swept(one, two, target)]
        if not names:
            continue
        found = weighed(corpus, [*seen, rows.train], "histogram")
        tables["distances"].append({**cell, **found})
        nearest = float(found["first"] < found["second"])
        simplex = min(max(found["gamma"], 0.0), 1.0)  # which of two sources is Eq. 11 in 0..1
        weights = {"theorem": simplex, "nearest source": nearest, "uniform": 0.5}
        for name in names:
            at = weights.get(name)
            merged = None if at is None else lerp(two, one, at)
            run = arms.retrained(merged, target) if merged else arms.from_scratch(target)
            tables["arms"] += [{**cell, "method": name, "gamma": at, **row} for row in run]
    return tables


@study(load=texts_of)
def text_goals(
    source: Texts,  # its seed, one of tuning, from 1000; and texts: one
) -> Tables:
    """``curves``: ``step``, ``choose``, ``judge`` (nats per token) of scratch, for its goals."""
    check_tuning(source.seed)
    corpus = _read_often(_corpus(source, "shared", 0))
    return {"curves": [*corpus.from_scratch(corpus.target(corpus.parted(corpus.texts[0])))]}


def divided(corpus: Corpus, *, thirds: bool) -> tuple[list[Tensor], list[Rows]]:
    """Blocks that sources of `mixture` see, every second one, and the parts that targets mix."""
    pools = mean_thirds(corpus.blocks)[::2] if thirds else corpus.texts
    parts = [corpus.parted(rows) for rows in pools]
    seen = [rows.train[::2] for rows in parts]
    return seen, [rows._replace(train=rows.train[1::2]) for rows in parts]


def mixed(parts: Sequence[Rows], shares: Sequence[float], seed: int) -> Rows:
    """Σ ρ_i D_i for shares ρ, of what there is to train on and of both halves."""
    return Rows(*(mix(rows, shares, seed) for rows in zip(*parts, strict=True)))


def _corpus(source: Texts, start: str, steps: int, **usual: Any) -> Corpus:
    """Texts at the usual sizes of a sweep, read at the start and after fixed numbers of steps."""
    check_choice("start", start, STARTS)
    usual |= {"gammas": training.FINE, "reads": (0, steps), "factors": FACTORS}
    return training.load_corpus(source, **usual)


def _read_often(corpus: Corpus) -> Corpus:
    return replace(corpus, plan=replace(corpus.plan, reads=range(0, BUDGET + 1, EVERY)))


def trained_pair(corpus: Corpus, start: str, first: Tensor, second: Tensor) -> tuple[State, State]:
    """Sources of two parts, the second by one of `STARTS`."""
    model = corpus.model("shared")
    one = corpus.source(model, first, 1)
    two = corpus.source(corpus.model("own" if start == "re-basin" else start), second, 2)
    return one, git_rebasin(one, two, model).state if start == "re-basin" else two


def weighed(
    corpus: Corpus, parts: Sequence[Tensor], name: str, factor: float = 1.0
) -> dict[str, Any]:
    """MMD² of D_1 to D_t (``first``), of D_2 to D_t, and ``between``; ``gamma``, γ_1 of Eq. 11."""
    samples = [described(corpus, name, rows) for rows in parts]
    table = mmd_table(samples, bandwidth=factor * median_distance(samples))
    return {
        "features": name,
        **{name: float(table[pair]) for name, pair in PAIRS.items()},
        "gamma": float(proximal_weights(table[2, :2], table[:2, :2], "affine").weights[0]),
    }


def described(corpus: Corpus, name: str, rows: Tensor) -> Tensor:
    """What distances compare: one of `FEATURES` of some blocks, ``(n, d)``, float64."""
    blocks = corpus.blocks[rows].double()
    if name == "histogram":
        return histograms(blocks, corpus.plan.vocabulary)
    return blocks.mean(1, keepdim=True) if name == "mean" else blocks
