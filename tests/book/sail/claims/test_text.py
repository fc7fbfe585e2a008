"""SAIL's claims on texts: made-up results for and against them, and none."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mergebook.lab.results import load_table
from mergebook.ledger import judge
from mergebook.sail import claims as sail
from mergebook.sail import read
from mergebook.sail.claims.arms import BYOL, HALVES, LABELS
from mergebook.sail.claims.text import STARTS
from mergebook.sail.measure.sources import ARMS
from mergebook.sail.measure.spirals import READINGS
from mergebook.sail.measure.text import CELLS, CORPORA, EVERY, SHARES
from mergebook.sail.measure.training import FINE
from mergebook.sail.read import arms, spirals, sweeps

Tables = dict[str, list[dict[str, Any]]]
RESNETS = ("half wider", "deeper", "deepest")
KEYS = ("S2", "S4", "S5", "S6", "S11", "S14", "S17", "S19")


def swept(draw: Callable[[], float], start: str, **cell: Any) -> Iterator[dict[str, Any]]:
    for gamma, step in product(FINE, (0, 100)):
        row = {"gamma": gamma, "step": step, "choose": draw(), "judge": draw()}
        yield {"start": start, **cell, **row}


def made(seed: int) -> dict[str, Tables]:
    """Losses of a seed as if γ, overlap and method did nothing."""
    generator = np.random.default_rng(seed)
    tables: dict[str, Tables] = {}

    def draw() -> float:
        return float(generator.normal(2.5, 0.01))

    def put(name: str, part: str, *rows: dict[str, Any]) -> None:
        tables.setdefault(name, {}).setdefault(part, []).extend({"seed": seed, **r} for r in rows)

    texts, matched = sweeps.MIXTURES["texts"]
    mixtures = [*product((texts, *sweeps.MIXTURES["thirds"]), STARTS), (matched, "re-basin")]
    for (name, start), share in product(mixtures, SHARES):
        cell = {"start": start, "share": share}
        put(name, "curves", *swept(draw, start, share=share, method="sweep"))
        theorem = {"method": "theorem", "gamma": share, "step": 100}
        put(name, "curves", {**cell, **theorem, "choose": draw(), "judge": draw()})
        put(name, "distances", {**cell, "first": 1 - share, "second": share})
    for start in STARTS:
        for alpha, beta in CELLS:
            put(sweeps.OVERLAP, "curves", *swept(draw, start, alpha=alpha, beta=beta))
        for source, target in product(sweeps.SOURCES, CORPORA):
            if source == target:
                continue
            name, cell = f"{source}-cross_corpus", {"start": start, "target": target}
            put(name, "curves", *swept(draw, start, target=target))
            for method, step in product((*sweeps.MERGED, "scratch"), range(0, 201, EVERY)):
                put(name, "arms", {**cell, "method": method, "step": step, "judge": draw()})
            flops = {"step_flops": 1e9, "distance_flops": 1e9, "source_flops": 1e11}
            put(name, "costs", {**cell, **flops})
        for size in ("twice", "half wider"):
            near = {"start": start, "size": size, "first": 0.1, "second": 0.2}
            put(arms.TEXT[0], "distances", near)
        for size, arm in product(("twice", "half wider"), ARMS):
            cell = {"start": start, "size": size, "arm": arm}
            name = arms.TEXT[0]
            if start == "own" and not ARMS[arm].matched and ARMS[arm].weights in ("", "nearest"):
                continue  # measured with a shared start
            for step in range(0, 401, 20):
                row = {"step": step, "judge": draw(), "choose": draw(), "accuracy": 0.3}
                put(name, "curves", {**cell, **row})
            flops = {"step_flops": 1e9, "added_flops": 1e9, "source_flops": 1e11}
            put(name, "costs", {**cell, **flops})
    cells = [
        *((arms.LASTING, "GPT", size) for size in ("twice", "half wider")),
        (arms.UNLABELLED_LASTING, BYOL, "half wider"),
        *product([arms.UNLABELLED], (LABELS, BYOL), RESNETS),
        *product([arms.HALVES], [HALVES], RESNETS),
    ]
    for (name, *_), modality, size in cells:
        cell = {"start": "shared", "size": size}
        if modality != "GPT":
            cell |= {"modality": modality, "target": "cifar10"}
        near = {"first": 0.1, "second": 0.2}
        put(name, "distances", near | cell)
        random = ("scratch, tuned", "random, same scale") if modality == "GPT" else ("scratch",)
        for arm, step in product((*random, "nearest source", "SAIL"), range(0, 161, 20)):
            noise = draw() - 2.5
            loss = 2.45 + noise + (step == 0)  # who gets there; of GPTs all alike
            if arm == "scratch" or modality == "GPT":
                loss = 2.6 - step / 1000 + draw() - 2.5
            row = {"step": step, "judge": loss, "choose": loss, "accuracy": 0.3}
            put(name, "curves", {**cell, "arm": arm, **row})
            if not step:
                put(name, "costs", {**cell, "arm": arm} | flops)
    for start, number in product(STARTS, (1, 2)):
        spot: dict[str, Any] = {"start": start, "source": number}
        lengths = [{"parameters": draw(), "random": draw()} for _ in range(4)]
        put("tinyshakespeare-text_nearness", "sources", {**spot, **lengths[0]})
        for reading, squares in zip(READINGS, lengths[1:], strict=True):
            put(spirals.FILE, "sources", {**spot, "reading": reading, **squares})
    return tables


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = [made(seed) for seed in range(5)]

    def load(name: str, part: str) -> pd.DataFrame:
        return pd.DataFrame([row for tables in seeds for row in tables.get(name, {}).get(part, [])])

    def also(name: str, part: str) -> pd.DataFrame:
        return load(name, part) if part in seeds[0].get(name, {}) else load_table(name, part)

    for module in (sweeps, arms):
        monkeypatch.setattr(module, "load_table", load)
    for module in (spirals, read):
        monkeypatch.setattr(module, "load_table", also)
    monkeypatch.setattr(sweeps, "goals_of_text", lambda _: {"easy": 2.495, "hard": 2.493})
    goals = {"easy": 2.505, "hard": 2.5, "late": 2.495}
    easy = {"easy": 2.505}  # one goal is enough for pictures
    monkeypatch.setattr(arms, "goals_for", lambda kind, *_: goals if kind == "GPT" else easy)


@pytest.mark.parametrize("key", KEYS)
def test_made_up_results_decide(key: str, results: None) -> None:
    claim = next(claim for claim in sail.CLAIMS if claim.key == key)
    assert judge([claim])[0]["verdict"].item() in ("undecided", "does not hold here")


def test_flat_curves_have_no_best_weight(results: None) -> None:
    """Where γ does nothing: whatever the best one is, it speaks neither for a claim nor against."""
    claim = next(claim for claim in sail.CLAIMS if claim.key == "S2")
    _, checks = judge([claim])
    slopes = checks[checks["metric"] == "slope"]
    assert len(slopes) == 5
    assert slopes["what"].str.endswith(" (a flat curve)").all()
    assert set(slopes["role"]) == {"secondary"}
    assert set(slopes["outcome"]) == {"open"}
