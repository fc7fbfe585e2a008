"""What SAIL's claims on texts compare: sweeps over γ for two GPTs, and their retraining."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pandas as pd

from mergebook.ledger import Comparison, Load, comparison
from mergebook.ledger.checks import SEED, Role, Rows
from mergebook.sail.claims import speeds, spirals
from mergebook.sail.claims.spirals import WORDS, of_best
from mergebook.sail.read import flat, sweeps, text
from mergebook.sail.read.spirals import is_near

STARTS = ("shared", "own")
SLOPE = 0.25  # of the best γ on the theorem's: how far from 1
REGRET = 0.1  # of what the best γ gains over the even average
ALIGNED = 0.2  # of γ: "closely aligns"
MIXED = {  # words, by what is mixed, and start
    **{("texts", start): "mixtures" for start in WORDS},
    **{("thirds", start): "mixtures of thirds" for start in STARTS},
}
FAR = "don_quijote_es"  # a text in another language, which the paper does not have
SOON = 50  # steps, after which the paper draws losses over γ by overlap
OVERLAPS = ("alpha", "beta")
TEXT = {"modality": "text"}


def _of(result: Any, where: Rows, **about: Any) -> dict[str, Any]:
    return {"result": result, "where": where, "about": {**TEXT, **about, **where}}


def followed(load: Load) -> Iterator[Comparison]:
    """S2: best γ by MMD² on thirds; secondary on mixtures, whose shares are averaged in a seed."""
    yield from _aligned(load)
    losses = load(sweeps.mixed)
    curved = losses.merge(load(sweeps.curved), on=["parts", "start", "share"])
    compare = partial(comparison, role="secondary", keys=("seed", "share"), columns="designed")
    for (parts, start), mixed in MIXED.items():
        words, cell = f"{mixed}, {WORDS[start]}", {"parts": parts, "start": start}
        left = curved[(curved["parts"] == parts) & (curved["start"] == start)]
        level = left["share"].nunique() < 2
        slopes = sweeps.slopes(losses if level else curved, start, parts).rename("slope")
        tests: dict[str, Any] = {"bound": 1.0, "tolerance": SLOPE, "unit": "slope", "keys": SEED}
        tests |= {"result": slopes.reset_index, "value": "slope", "role": "secondary"}
        about = TEXT | cell
        says = f"{words}: slope of the best γ on the theorem's"
        yield of_best(says, flat=level, about=about | {"metric": "slope"}, **tests)
        wide = losses[(losses["parts"] == parts) & (losses["start"] == start)]
        wide = wide.pivot(index=["seed", "share"], columns="method", values="loss")
        allowed = REGRET * (wide["uniform"] - wide["best"])
        wide = wide.assign(allowed=allowed, regret=wide["theorem"] - wide["best"])
        says = f"{words}: the theorem's γ costs less than a tenth of what the best γ gains over ½"
        rows: dict[str, Any] = {"result": wide.reset_index, "worse": {}, "unit": "nats"}
        rows |= {"about": about | {"metric": "regret"}, "value": ("allowed", "regret")}
        yield compare(says, **rows)
        low = _of(sweeps.mixed, cell) | {"value": "loss", "falling": True, "unit": "nats"}
        for rival in ("uniform", "nearest source"):
            yield compare(f"{words}: lower loss than {rival}", "theorem", rival, **low)


def _aligned(load: Load) -> Iterator[Comparison]:
    """The paper's own words: on thirds by mean token value, the best γ is that by MMD²."""
    curves, distances = load(text.swept), load(text.distances).drop_duplicates()
    best, level = text.chosen(curves), flat(text.last(curves), ["tokens", "start"])
    own = distances[distances["split"] == "thirds"][["tokens", "features", "seed", "gamma"]]
    both = best.merge(own, on=["tokens", "seed"], suffixes=("", "_by_distance"))
    options: dict[str, Any] = {"tolerance": ALIGNED, "unit": "γ", "keys": SEED, "worse": {}}
    options["value"] = ("gamma", "gamma_by_distance")
    cases = product(text.SWEEPS, STARTS, distances["features"].unique())
    for tokens, start, features in cases:
        says = f"thirds, {tokens}, {WORDS[start]}: best γ less that by MMD² ({features})"
        cell = {"tokens": tokens, "start": start, "features": features}
        rows = _of(both.copy, cell, parts="thirds")
        yield of_best(says, flat=bool(level[tokens, start]), **rows, **options)


def spike(load: Load) -> Iterator[Comparison]:
    """S3, in text: loss at γ = ½ above the ends' mean after 50 steps, averaged over overlaps."""
    overlaps = text.heights(load(sweeps.overlapping), OVERLAPS)
    overlaps["cell"] = overlaps["alpha"].astype(str) + " " + overlaps["beta"].astype(str)
    heights = text.heights(load(text.swept))
    compare = partial(comparison, value="height", unit="nats")
    for start in STARTS:
        says = f"text, overlapping thirds, {WORDS[start]}: a barrier after 50 steps"
        rows = _of(overlaps.copy, {"start": start}, parts="overlaps")
        yield compare(says, columns="designed", keys=("seed", "cell"), **rows)
    for tokens, start, step in product(text.SWEEPS, WORDS, heights["step"].unique()):
        role: Role = "primary" if start in STARTS and step == SOON else "secondary"
        says = f"text, {tokens}, {WORDS[start]}: a barrier after {step} steps"
        rows = _of(heights.copy, {"tokens": tokens, "start": start, "step": step})
        yield compare(says, keys=SEED, role=role, **rows)


def symmetric(load: Load) -> Iterator[Comparison]:
    """S4: asymmetry of the curves falls with overlap of the sources, and with the target."""
    table = load(sweeps.asymmetries)
    steps = sorted(table["step"].unique())
    for start, step in product(STARTS, steps):
        options: dict[str, Any] = {"result": sweeps.falls(table, start, step).reset_index}
        options |= {"keys": SEED, "role": "primary" if step == steps[-1] else "secondary"}
        for name, words in {"alpha": "of the sources", "beta": "with the target"}.items():
            says = f"overlap {words}, {WORDS[start]}: more symmetric curves after {step} steps"
            about = TEXT | {"start": start, "step": step, "overlap": name}
            yield comparison(says, about=about, value=name, unit="share of the range", **options)


def transferred(load: Load) -> Iterator[Comparison]:
    """S5: from one text to another, a γ between 0 and 1 beats each source alone."""
    options: dict[str, Any] = {"by": "place", "value": "loss", "falling": True, "keys": SEED}
    for words, cell, role in _directions(load(sweeps.interiors)):
        says = f"{words}: a γ between 0 and 1 beats both ends"
        rows = _of(sweeps.interiors, cell) | {"role": role}
        yield comparison(says, "interior", "end", **rows, **options)


def carried(load: Load) -> Iterator[Comparison]:
    """S21: from one text to another, faster than scratch."""
    for (method, account, role), goal in product(spirals.CASES, ("easy", "hard")):
        for words, cell, near in _directions(load(sweeps.crossed)):
            rows = _of(sweeps.crossed, cell) | {"role": near if role == "primary" else role}
            case: Any = (f"{words}: {method} faster", method, "scratch", goal, account)
            yield speeds.faster(*case, **rows)


def _directions(table: pd.DataFrame) -> Iterator[tuple[str, dict[str, str], Role]]:
    """From which text to which, from which start, in words and as columns; role by language."""
    keys = ["source", "target", "start"]
    for names in table[keys].drop_duplicates().itertuples(index=False, name=None):
        source, target, start = names
        words = f"{source} to {target}, {WORDS[start]}"
        role: Role = "secondary" if target == FAR else "primary"
        yield words, dict(zip(keys, names, strict=True)), role


def nearer(load: Load) -> Iterator[Comparison]:
    """S14, in text: log squared distance of random weights to an optimum, less that of sources."""
    for start in STARTS:
        compare = partial(comparison, **_of(text.nearness, {"start": start}))
        yield spirals.nearer_than_random(f"text, {WORDS[start]}", compare)


def near_ends(load: Load) -> Iterator[Comparison]:
    """S15, in text: the best γ is near 0 or 1, by thirds and by overlap, but for flat curves."""
    curves, overlaps = load(text.swept), load(sweeps.overlapping)
    for table, keys, parts in (
        (text.last(curves), ["tokens", "start"], "thirds"),
        (overlaps, [*OVERLAPS, "start"], "thirds that overlap"),
    ):
        table = table[table["start"].isin(STARTS)]
        chance = float(is_near(pd.Series(table["gamma"].unique())).mean())
        level = flat(table, keys).rename("flat")
        best = text.best(table, [*keys, "seed"]).merge(level.reset_index(), on=keys)
        best = best.assign(near=is_near(best["gamma"]))
        for start, own in best.groupby("start", sort=False):
            clear = own[~own["flat"]]
            says = (
                f"text, {parts}, {WORDS[str(start)]}: best γ near 0 or 1 in {len(clear)} of "
                f"{len(own)} curves, the others being flat"
            )
            fraction: dict[str, Any] = {"kind": "fraction", "bound": chance, "unit": "of curves"}
            fraction |= {"value": "near", "keys": (*keys, "seed")}
            fraction |= {"result": (own if clear.empty else clear).copy}
            about, limit = TEXT | {"parts": parts, "start": start}, "none" if clear.empty else ""
            yield comparison(says, about=about, limit=limit, **fraction)
