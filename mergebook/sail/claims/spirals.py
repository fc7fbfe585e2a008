"""What SAIL's claims on two spirals compare: its start is the average by Theorem 3's weights."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise, product
from typing import Any

import pandas as pd

from mergebook.ledger import Comparison, Load, comparison
from mergebook.ledger.checks import SEED, Role, chosen
from mergebook.sail.claims import speeds
from mergebook.sail.costs import ENOUGH, Account
from mergebook.sail.measure.spirals import EPOCHS, READINGS
from mergebook.sail.read import flat, spirals

NEAR_POINTS = 0.5  # of accuracy, to lose at most: "maintains"
RANKS: dict[str, Any] = {"unit": "rank correlation", "worse": {}, "where": {}}
WORDS = {
    "shared": "shared initialisation",
    "own": "separate initialisations",
    "re-basin": "separate initialisations, matched",
}
CASES: tuple[tuple[str, Account, Role], ...] = (
    *(("theorem", account, role) for account, role in speeds.ROLES.items()),
    ("nearest source", "A", "control"),
)
Cell = tuple[str, dict[str, str], "partial[Comparison]"]


def _cell(reading: str, start: str, result: Any, **about: Any) -> Cell:
    """A case in words, its rows, and a comparison of them."""
    cell = {"reading": reading, "start": start}
    about = {"modality": "spirals", **cell, **about}
    words = f"spirals, {reading}, {WORDS[start]}"
    return words, cell, partial(comparison, about=about, result=result, where=cell, keys=SEED)


def _cells(result: Any, **about: Any) -> list[Cell]:
    cases = product(READINGS, spirals.STARTS)
    return [_cell(reading, start, result, **about) for reading, start in cases]


def faster(load: Load) -> Iterator[Comparison]:
    """S1: log₂ speed-up over scratch."""
    for (method, account, role), goal in product(CASES, ("easy", "hard")):
        for words, _, compare in _cells(spirals.compared):
            case: Any = (f"{words}: {method} faster", method, "scratch", goal, account)
            yield speeds.faster(*case, role=role, **compare.keywords)


def spike(load: Load) -> Iterator[Comparison]:
    """S3 on spirals, of which the paper does not say it: a barrier at γ = ½."""
    times = load(spirals.barriers)["steps"].unique()
    sides: dict[str, Any] = {"better": "middle", "worse": "ends", "by": "place", "value": "loss"}
    for start, (reading, steps) in product(WORDS, product(READINGS, times)):
        words, cell, compare = _cell(reading, start, spirals.barriers, steps=steps)
        says, where = f"{words}: a barrier after {steps} steps", cell | {"steps": steps}
        yield compare(says, **sides, where=where, role="secondary")


def maintained(
    words: str, own: str, after: str = "", role: Role = "primary", **options: Any
) -> Iterator[Comparison]:
    """S10: an accuracy at most `NEAR_POINTS` below that of scratch, and better than it."""
    about = options.pop("about")
    says = f"{words}: not worse than scratch by {NEAR_POINTS} points in the end{after}"
    near = {"bound": -NEAR_POINTS, "about": about | {"margin": NEAR_POINTS}}
    yield comparison(says, own, "scratch", role=role, **options, **near)
    says = f"{words}: better than scratch in the end{after}"
    about = about | {"margin": 0}
    yield comparison(says, own, "scratch", role="secondary", about=about, **options)


def better(load: Load) -> Iterator[Comparison]:
    """S10: test accuracy after the full budget."""
    for words, _, compare in _cells(spirals.compared):
        yield from maintained(words, "theorem", **compare.keywords)


def calmer(load: Load) -> Iterator[Comparison]:
    """S12: log gradient norm of scratch less SAIL's, at equal steps; secondary at equal loss."""
    table = load(spirals.compared)
    low: dict[str, Any] = {"falling": True, "unit": "log ratio"}
    for words, cell, compare in _cells(spirals.compared):
        says = f"{words}: smaller gradients in the first tenth of steps"
        about = compare.keywords["about"]
        early = {"value": "gradient", "about": about | {"at": "first steps"}}
        yield compare(says, "theorem", "scratch", **early, **low)
        both = table[chosen(table, cell | {"method": ("theorem", "scratch")})]
        there = both["easy"].between(1, EPOCHS - 1).groupby(both["seed"]).all()
        if there.mean() >= ENOUGH:
            rows = both[both["seed"].isin(there.index[there])]
            says = f"{words}: smaller gradients at the easy goal"
            late: dict[str, Any] = {"value": "gradient_easy", "role": "secondary"}
            late |= {"result": rows.copy, "about": about | {"at": "easy goal"}}
            yield compare(says, "theorem", "scratch", **late, **low)


def nearer(load: Load) -> Iterator[Comparison]:
    """S14: log squared distance of fresh weights to an optimum, less that of sources."""
    for words, _, compare in _cells(spirals.nearness):
        yield nearer_than_random(words, compare)


def nearer_than_random(words: str, compare: "partial[Comparison]") -> Comparison:
    """S14 for some rows of a table like `spirals.nearness`: means over both sources."""
    sides: dict[str, Any] = {"better": "source", "worse": "random", "by": "point"}
    sides |= {"falling": True, "keys": ("seed", "source"), "by_seed": True, "value": "log"}
    return compare(f"{words}: sources nearer to the optimum", **sides, unit="log ratio")


def of_best(says: str, *, flat: bool, **options: Any) -> Comparison:
    """A comparison of each seed's best γ, which stays open where the curve is `flat`."""
    return comparison(says + " (a flat curve)" * flat, limit="none" if flat else "", **options)


def near_ends(load: Load) -> Iterator[Comparison]:
    """S15 on spirals, of which the paper does not say it: best γ near 0 or 1."""
    table = load(spirals.sweep)
    chance = float(spirals.is_near(pd.Series(table["gamma"].unique())).mean())
    options: dict[str, Any] = {"value": "near", "kind": "fraction", "bound": chance}
    options |= {"unit": "of seeds", "role": "secondary"}
    for steps in (0, 50, 200):
        best = spirals.best_weights(table, f"loss_{steps}")
        swept = table[table["start"].isin(spirals.STARTS)]
        level = flat(swept, ["reading", "start"], f"loss_{steps}")
        for words, cell, compare in _cells(best.copy, steps=steps):
            says = f"{words}, after {steps} steps: best γ near 0 or 1"
            is_flat = bool(level[cell["reading"], cell["start"]])
            yield of_best(says, flat=is_flat, **compare.keywords, **options)


def together(load: Load) -> Iterator[Comparison]:
    """S16 on spirals, where nothing is grown: final loss of the nearest source less SAIL's."""
    table = load(spirals.compared)
    low: dict[str, Any] = {"value": "loss", "falling": True, "role": "secondary"}
    for words, cell, compare in _cells(spirals.compared):
        means = table[chosen(table, cell)].groupby("method")["loss"].mean()
        behind = (means[["nearest source", "theorem"]] > means["scratch"]).all()
        says = f"{words}: lower final loss than the nearest source alone"
        says += " (scratch ends below both)" if behind else ""
        yield compare(says, "theorem", "nearest source", **low)


def chained(load: Load) -> Iterator[Comparison]:
    """S18: of two sources, each link of the chain is larger for the one of the link before."""
    table = load(spirals.chain)
    between: list[Comparison] = []
    names = {"data": "data distance", "parameters": "parameter distance"}
    names |= {"before": "loss before", "after": "loss after retraining"}
    for start, link in product(WORDS, pairwise(spirals.LINKS)):
        if start == "re-basin" and "parameters" not in link:
            continue
        rises = f"{names[link[1]]} rises with {names[link[0]]}"
        role: Role = "secondary" if start == "re-basin" else "primary"
        options: dict[str, Any] = RANKS | {"kind": "correlation", "value": link, "role": role}
        own = table[table["start"] == start]
        wide = own.pivot(index="seed", columns=["cell", "link"], values="value")
        for reading in READINGS:
            pairs = (wide[f"{reading} 1"] - wide[f"{reading} 2"])[[*link]].reset_index
            words, _, compare = _cell(reading, start, pairs, link=link[1])
            yield compare(f"{words}: {rises}", **options)
        orders = spirals.rank_correlations(table, start, link).rename("rank").reset_index
        says = f"spirals, {WORDS[start]}, order of the three readings: {rises}"
        _, _, compare = _cell("all", start, orders, link=link[1])
        options = RANKS | {"value": "rank", "role": "secondary", "worse": 0.0}
        between.append(compare(says, **options))
    yield from between
