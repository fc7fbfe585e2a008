"""Checks of SAIL's claims on texts: sweeps over γ for two GPTs, and their retraining."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pandas as pd

from mergebook.ledger.checks import SEED, Check, Limit, Role, above, pick
from mergebook.ledger.verdicts import Load
from mergebook.sail.claims import speeds, spirals
from mergebook.sail.claims.curves import of_best
from mergebook.sail.costs import Account
from mergebook.sail.read import sweeps, text
from mergebook.sail.read.flatness import flat
from mergebook.sail.read.spirals import is_near

WORDS = {"shared": "shared start", "own": "own starts", "re-basin": "own starts, matched"}
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
_SHARE = ("seed", "share")


def followed(load: Load) -> list[Check]:
    """S2: on thirds the best γ is that by MMD²; secondary on mixtures, whose best γ is known.

    Shares of mixtures are fixed points, so they are averaged within each seed.
    """
    weights, losses = load(sweeps.weights), load(sweeps.mixed)
    curved = weights.merge(load(sweeps.curved), on=["parts", "start", "share"])
    checks: list[Check] = [*_aligned(load)]
    among: dict[str, Any] = {"role": "secondary", "unit": "nats", "columns": "designed"}
    for (parts, start), mixed in MIXED.items():
        words = f"{mixed}, {WORDS[start]}"
        what = f"{words}: slope of the best γ on the theorem's"
        left = curved[(curved["parts"] == parts) & (curved["start"] == start)]
        level = left["share"].nunique() < 2
        slopes = sweeps.slopes(weights if level else curved, start, parts)
        tests: dict[str, Any] = {"bound": 1.0, "tolerance": SLOPE, "unit": "slope"}
        tests["role"] = "secondary"
        checks.append(of_best(what, slopes, 0.0, flat=level, **tests))
        of = {
            name: pick(losses, "loss", keys=_SHARE, method=name, start=start, parts=parts)
            for name in (*sweeps.MERGED, "best")
        }
        allowed = REGRET * (of["uniform"] - of["best"])
        regret = of["theorem"] - of["best"]
        what = f"{words}: the theorem's γ costs less than a tenth of what the best γ gains over ½"
        checks.append(above(what, allowed, regret, **among))
        for rival in ("uniform", "nearest source"):
            what = f"{words}: lower loss than {rival}"
            checks.append(above(what, of[rival], of["theorem"], **among))
    return checks


def _aligned(load: Load) -> Iterator[Check]:
    """The paper's own words: on thirds by mean token value, the best γ is that by MMD²."""
    curves, distances = load(text.swept), load(text.distances)
    chosen, level = text.chosen(curves), flat(text.last(curves), ["tokens", "start"])
    cases = product(text.SWEEPS, STARTS, distances["features"].unique())
    for tokens, start, features in cases:
        best = pick(chosen, "gamma", keys=SEED, start=start, tokens=tokens)
        cell = {"split": "thirds", "features": features, "tokens": tokens}
        own = pick(distances, "gamma", keys=SEED, **cell)
        what = f"thirds, {tokens}, {WORDS[start]}: best γ less that by MMD² ({features})"
        options: dict[str, Any] = {"tolerance": ALIGNED, "unit": "γ"}
        yield of_best(what, best, own, flat=bool(level[tokens, start]), **options)


def spike(load: Load) -> list[Check]:
    """S3, in text: the loss at γ = ½ above the mean of both ends, after the paper's 50 steps.

    Overlaps are fixed points, so they are averaged within each seed.
    """
    overlaps = text.heights(load(sweeps.overlapping), OVERLAPS)
    heights = text.heights(load(text.swept))
    checks = []
    for start in STARTS:
        values = pick(overlaps, "height", keys=("seed", *OVERLAPS), start=start)
        what = f"text, overlapping thirds, {WORDS[start]}: a barrier after 50 steps"
        wide = values.unstack([*OVERLAPS])
        checks.append(Check(what, wide.to_numpy(), unit="nats", columns="designed"))
    for tokens, start, step in product(text.SWEEPS, WORDS, heights["step"].unique()):
        role: Role = "primary" if start in STARTS and step == SOON else "secondary"
        values = pick(heights, "height", keys=SEED, start=start, step=step, tokens=tokens)
        what = f"text, {tokens}, {WORDS[start]}: a barrier after {step} steps"
        checks.append(above(what, values, 0.0, role=role, unit="nats"))
    return checks


def symmetric(load: Load) -> list[Check]:
    """S4: asymmetry of the curves falls with overlap of the sources, and with the target."""
    table = load(sweeps.asymmetries)
    steps = sorted(table["step"].unique())
    others = {"alpha": "of the sources", "beta": "with the target"}
    checks = []
    for start, step in product(STARTS, steps):
        falls = sweeps.falls(table, start, step)
        role: Role = "primary" if step == steps[-1] else "secondary"
        for name, words in others.items():
            what = f"overlap {words}, {WORDS[start]}: more symmetric curves after {step} steps"
            checks.append(above(what, falls[name], 0.0, role=role, unit="share of the range"))
    return checks


def transferred(load: Load) -> list[Check]:
    """S5: from one text to another, a γ between 0 and 1 beats each source alone."""
    interiors = load(sweeps.interiors)
    checks = []
    for words, cell in _directions(interiors):
        sides = [
            pick(interiors, "loss", keys=SEED, place=place, **cell) for place in ("end", "interior")
        ]
        what = f"{words}: a γ between 0 and 1 beats both ends"
        checks.append(above(what, *sides, role=_near_or_far(cell), unit="nats"))
    return checks


def carried(load: Load) -> list[Check]:
    """S21: from one text to another, faster than scratch."""
    crossed = load(sweeps.crossed)
    cases: list[tuple[str, Account, Role]] = [("theorem", "A", "primary")]
    cases += [("theorem", "B", "secondary"), ("theorem", "C", "secondary")]
    cases += [("nearest source", "A", "control")]
    checks = []
    for (method, account, role), goal in product(cases, ("easy", "hard")):
        rows = sweeps.speed_ups(crossed, goal, account, method)
        for words, cell in _directions(rows):
            what = f"{words}: {method} faster, {goal} goal, account {account}"
            far = role == "primary" and _near_or_far(cell) == "secondary"
            checks.append(speeds.faster(what, rows, cell, "secondary" if far else role))
    return checks


def _near_or_far(cell: dict[str, str]) -> Role:
    """The paper's target is a text in its sources' language; that of `FAR` is in another."""
    return "secondary" if cell["target"] == FAR else "primary"


def _directions(table: pd.DataFrame) -> Iterator[tuple[str, dict[str, str]]]:
    """In words and as columns: from which text, to which, from which start."""
    keys = ["source", "target", "start"]
    for names in table[keys].drop_duplicates().itertuples(index=False, name=None):
        source, target, start = names
        yield f"{source} to {target}, {WORDS[start]}", dict(zip(keys, names, strict=True))


def nearer(load: Load) -> list[Check]:
    """S14, in text: log squared distance of random weights to an optimum, less that of sources."""
    table = load(text.nearness_in_text)
    return [
        spirals.nearer_than_random(f"text, {WORDS[start]}", table, start=start) for start in STARTS
    ]


def near_ends(load: Load) -> list[Check]:
    """S15, in text: the best γ of a curve is near 0 or 1, by thirds and by overlap.

    Curves are of networks and blocks of their own; flat ones, whose best γ is chance, are left out.
    """
    curves, overlaps = load(text.swept), load(sweeps.overlapping)
    checks = []
    for table, keys, words in (
        (text.last(curves), ["tokens", "start"], "text, thirds"),
        (overlaps, [*OVERLAPS, "start"], "text, thirds that overlap"),
    ):
        table = table[table["start"].isin(STARTS)]
        chance = float(is_near(pd.Series(table["gamma"].unique())).mean())
        level = flat(table, keys).rename("flat")
        best = text.best(table, [*keys, "seed"]).merge(level.reset_index(), on=keys)
        for start, own in best.groupby("start", sort=False):
            clear = own[~own["flat"]]
            what = (
                f"{words}, {WORDS[str(start)]}: best γ near 0 or 1 in {len(clear)} of {len(own)} "
            )
            what += "curves, the others being flat"
            near = is_near((own if clear.empty else clear)["gamma"]).to_numpy(dtype=float)
            limit: Limit = "none" if clear.empty else ""
            options: dict[str, Any] = {"bound": chance, "unit": "of curves", "limit": limit}
            checks.append(Check(what, near, "fraction", **options))
    return checks
