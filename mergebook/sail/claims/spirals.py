"""Checks of SAIL's claims on two spirals: its start is the average by Theorem 3's weights."""

from collections.abc import Iterator
from itertools import pairwise, product

import pandas as pd

from mergebook.ledger.checks import SEED, Check, Role, above, pick
from mergebook.ledger.verdicts import Load
from mergebook.sail.claims import speeds
from mergebook.sail.claims.curves import near_ends as near_ends_of
from mergebook.sail.costs import ENOUGH, Account
from mergebook.sail.measure.spirals import EPOCHS, READINGS
from mergebook.sail.read import spirals
from mergebook.sail.read.flatness import flat

NEAR_POINTS = 0.5  # of accuracy, to lose at most: "maintains"
RANKS = "rank correlation"
WORDS = {"shared": "shared start", "own": "own starts", "re-basin": "own starts, matched"}
CELLS = tuple(product(READINGS, spirals.STARTS))


def _named(reading: str, start: str) -> str:
    return f"spirals, {reading}, {WORDS[start]}"


def _sides(
    table: pd.DataFrame, column: str, *methods: str
) -> Iterator[tuple[str, list["pd.Series[float]"]]]:
    """What methods have in a column in each cell, by seed."""
    for reading, start in CELLS:
        cell = {"reading": reading, "start": start}
        sides = [pick(table, column, keys=SEED, method=name, **cell) for name in methods]
        yield _named(reading, start), sides


def faster(load: Load) -> list[Check]:
    """S1: log₂ speed-up over scratch."""
    table = load(spirals.compared)
    cases: list[tuple[str, Account, Role]] = [("theorem", "A", "primary")]
    cases += [("theorem", "B", "secondary"), ("theorem", "C", "secondary")]
    cases += [("nearest source", "A", "control")]
    checks = []
    for (method, account, role), goal in product(cases, ("easy", "hard")):
        rows = spirals.speed_ups(table, goal, account, method)
        for reading, start in CELLS:
            what = f"{_named(reading, start)}: {method} faster, {goal} goal, account {account}"
            cell = {"reading": reading, "start": start}
            checks.append(speeds.faster(what, rows, cell, role))
    return checks


def spike(load: Load) -> list[Check]:
    """S3 on spirals, of which the paper does not say it: a barrier at γ = ½."""
    table = load(spirals.barriers)
    checks = []
    for start, (reading, steps) in product(WORDS, product(READINGS, table["steps"].unique())):
        chosen = {"reading": reading, "start": start, "steps": steps}
        sides = [
            pick(table, "loss", keys=SEED, place=place, **chosen) for place in ("middle", "ends")
        ]
        what = f"{_named(reading, start)}: a barrier after {steps} steps"
        checks.append(above(what, *sides, role="secondary", unit="nats"))
    return checks


def maintained(
    words: str,
    own: "pd.Series[float]",
    scratch: "pd.Series[float]",
    after: str = "",
    role: Role = "primary",
) -> list[Check]:
    """S10: an accuracy at most `NEAR_POINTS` below that of scratch, and better than it."""
    worse = f"{words}: not worse than scratch by {NEAR_POINTS} points in the end{after}"
    better = f"{words}: better than scratch in the end{after}"
    return [
        above(worse, own, scratch, role=role, bound=-NEAR_POINTS),
        above(better, own, scratch, role="secondary"),
    ]


def better(load: Load) -> list[Check]:
    """S10: test accuracy after the full budget."""
    checks = []
    for words, (own, scratch) in _sides(load(spirals.compared), "accuracy", "theorem", "scratch"):
        checks += maintained(words, own, scratch)
    return checks


def calmer(load: Load) -> list[Check]:
    """S12: log gradient norm of scratch less SAIL's, at equal steps; secondary at equal loss.

    At equal loss over the seeds in which both come down to the easy goal, where these are `ENOUGH`.
    """
    table = load(spirals.compared)
    checks = []
    columns = ("gradient", "easy", "gradient_easy")
    cells = (_sides(table, column, "scratch", "theorem") for column in columns)
    for (words, early), (_, steps), (_, sides) in zip(*cells, strict=True):
        what = f"{words}: smaller gradients in the first tenth of steps"
        checks.append(above(what, *early, unit="log ratio"))
        own, rival = (side.between(1, EPOCHS - 1) for side in steps)
        both = own & rival
        if both.mean() >= ENOUGH:
            what = f"{words}: smaller gradients at the easy goal"
            pair = [side[both] for side in sides]
            checks.append(above(what, *pair, role="secondary", unit="log ratio"))
    return checks


def nearer(load: Load) -> list[Check]:
    """S14: log squared distance of fresh weights to an optimum, less that of sources."""
    table = load(spirals.nearness)
    return [
        nearer_than_random(_named(reading, start), table, reading=reading, start=start)
        for reading, start in CELLS
    ]


def nearer_than_random(words: str, table: pd.DataFrame, **cell: str) -> Check:
    """S14 for some rows of a table like `spirals.nearness`: means over both sources."""
    sides = [
        pick(table, "log", keys=("seed", "source"), point=point, **cell).groupby("seed").mean()
        for point in ("random", "source")
    ]
    return above(f"{words}: sources nearer to the optimum", *sides, unit="log ratio")


def near_ends(load: Load) -> list[Check]:
    """S15 on spirals, of which the paper does not say it: best γ near 0 or 1."""
    table = load(spirals.sweep)
    grid = spirals.is_near(pd.Series(table["gamma"].unique()))
    checks = []
    for column in ("loss_0", "loss_50", "loss_200"):
        best = spirals.best_weights(table, column)
        steps = column.removeprefix("loss_")
        swept = table[table["start"].isin(spirals.STARTS)]
        level = flat(swept, ["reading", "start"], column)
        for reading, start in CELLS:
            own = best[(best["reading"] == reading) & (best["start"] == start)]
            words = f"{_named(reading, start)}, after {steps} steps"
            near = own.set_index("seed")["near"]
            is_flat = bool(level[reading, start])
            checks.append(near_ends_of(words, near, grid, flat=is_flat, role="secondary"))
    return checks


def together(load: Load) -> list[Check]:
    """S16 on spirals, where nothing is grown: final loss of the nearest source less SAIL's.

    The words name the cases in which both end above scratch.
    """
    checks = []
    methods = ("scratch", "nearest source", "theorem")
    for words, (scratch, *pair) in _sides(load(spirals.compared), "loss", *methods):
        behind = all(own.mean() > scratch.mean() for own in pair)
        what = f"{words}: lower final loss than the nearest source alone"
        what += " (scratch ends below both)" if behind else ""
        checks.append(above(what, *pair, role="secondary", unit="nats"))
    return checks


def chained(load: Load) -> list[Check]:
    """S18: of two sources, each link of the chain is larger for the same one as the link before.

    Within a reading, over seeds: the difference of its two sources in one link against that in the
    next. Secondary: the order of the three readings, which are three fixed points, in each seed.
    Matched sources differ from those with own starts in the distance of parameters alone.
    """
    table = load(spirals.chain)
    within: list[Check] = []
    between: list[Check] = []
    names = {"data": "data distance", "parameters": "parameter distance"}
    names |= {"before": "loss before", "after": "loss after retraining"}
    for start, link in product(WORDS, pairwise(spirals.LINKS)):
        if start == "re-basin" and "parameters" not in link:
            continue
        words = f"{names[link[1]]} rises with {names[link[0]]}"
        role: Role = "secondary" if start == "re-basin" else "primary"
        for reading in READINGS:
            pairs = spirals.differences(table, reading, start, link).to_numpy()
            what = f"{_named(reading, start)}: {words}"
            within.append(Check(what, pairs, "correlation", role, unit=RANKS))
        orders = spirals.rank_correlations(table, start, link)
        what = f"spirals, {WORDS[start]}, order of the three readings: {words}"
        between.append(above(what, orders, 0.0, role="secondary", unit=RANKS))
    return [*within, *between]
