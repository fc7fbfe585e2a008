"""Checks of SAIL's claims on two spirals: its start is the average by Theorem 3's weights."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from mergelib.ledger.checks import SEED, Check, Role, above, matrix, pick
from mergelib.ledger.sail import speeds
from mergelib.ledger.sail.curves import of_best
from mergelib.ledger.verdicts import Load
from mergelib.sail.retraining import ENOUGH, Account
from mergelib.studies.analysis.sail import spirals
from mergelib.studies.analysis.sail.flatness import flat
from mergelib.studies.papers.sail.spirals import EPOCHS, READINGS

NEAR_POINTS = 0.5  # of accuracy, to lose at most: "maintains"
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
    """S3: the loss at γ = ½ above the mean of both ends."""
    table = load(spirals.barriers)
    checks = []
    for start, (reading, steps) in product(WORDS, product(READINGS, table["steps"].unique())):
        role: Role = "primary" if start == "own" else "secondary"
        chosen = {"reading": reading, "start": start, "steps": steps}
        sides = [
            pick(table, "loss", keys=SEED, place=place, **chosen) for place in ("middle", "ends")
        ]
        what = f"{_named(reading, start)}: a barrier after {steps} steps"
        checks.append(above(what, *sides, role=role, unit="nats"))
    return checks


def maintained(
    words: str,
    own: "pd.Series[float]",
    scratch: "pd.Series[float]",
    after: str = "",
    role: Role = "primary",
) -> list[Check]:
    """S10: an accuracy better than that of scratch, and not worse by more than `NEAR_POINTS`."""
    better = f"{words}: better than scratch in the end{after}"
    worse = f"{words}: not worse than scratch by {NEAR_POINTS} points in the end{after}"
    return [
        above(better, own, scratch, role=role),
        above(worse, own, scratch, role="secondary", bound=-NEAR_POINTS),
    ]


def better(load: Load) -> list[Check]:
    """S10: test accuracy after the full budget."""
    checks = []
    for words, (own, scratch) in _sides(load(spirals.compared), "accuracy", "theorem", "scratch"):
        checks += maintained(words, own, scratch)
    return checks


def calmer(load: Load) -> list[Check]:
    """S12: log gradient norm of scratch less SAIL's, at equal steps and at equal loss.

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
            checks.append(above(what, *(side[both] for side in sides), unit="log ratio"))
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
    """S15: share of seeds whose best γ is near 0 or 1, above the share of the grid."""
    table = load(spirals.sweep)
    chance = float(spirals.is_near(pd.Series(table["gamma"].unique())).mean())
    checks = []
    roles: dict[str, Role] = {"loss_50": "primary", "loss_0": "secondary", "loss_200": "secondary"}
    for column, role in roles.items():
        best = spirals.best_weights(table, column)
        steps = column.removeprefix("loss_")
        swept = table[table["start"].isin(spirals.STARTS)]
        level = flat(swept, ["reading", "start"], column)
        for reading, start in CELLS:
            own = best[(best["reading"] == reading) & (best["start"] == start)]
            shares = own.set_index("seed")["near"] - chance
            what = f"{_named(reading, start)}: best γ near 0 or 1 after {steps} steps, not by lot"
            options: dict[str, Any] = {"role": role, "unit": "share"}
            checks.append(of_best(what, shares, 0.0, flat=bool(level[reading, start]), **options))
    return checks


def together(load: Load) -> list[Check]:
    """S16: test loss of the nearest source alone, retrained, less that of SAIL."""
    return [
        above(f"{words}: lower final loss than the nearest source alone", *sides, unit="nats")
        for words, sides in _sides(load(spirals.compared), "loss", "nearest source", "theorem")
    ]


def chained(load: Load) -> list[Check]:
    """S18: each link of the chain ranks a seed's six sources as the one before.

    Matched sources differ from those with own starts in the distance of parameters alone.
    """
    table = load(spirals.chain)
    checks = []
    names = {"data": "data distance", "parameters": "parameter distance"}
    names |= {"before": "loss before", "after": "loss after retraining"}
    links = [*zip(spirals.LINKS, spirals.LINKS[1:], strict=False)]
    cases: list[tuple[str, tuple[str, str], Role]] = [
        *((start, link, "primary") for start, link in product(spirals.STARTS, links)),
        *(("re-basin", link, "secondary") for link in links if "parameters" in link),
    ]
    for start, (first, second), role in cases:
        values = matrix(spirals.rank_correlations(table, start, (first, second)))
        what = f"spirals, {WORDS[start]}: {names[second]} rises with {names[first]}"
        checks.append(Check(what, np.asarray(values), role=role, unit="rank correlation"))
    return checks
